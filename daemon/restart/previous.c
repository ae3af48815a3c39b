/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/restart/previous.c - starts the daemon with the state that the previous daemon left.
 *
 * The service manager keeps descriptors for the daemon (FDSTORE=1): of the state, and of pools, segments, sequences,
 * sessions and clients' processes, by names that the core gives them. The manager passes the descriptors to the next
 * daemon, whatever ended this one, unless the service was stopped. So the memory of all sequences outlives the daemon,
 * and the engines' mappings of it stay valid.
 *
 * Connections end with the daemon. So a client of the previous daemon is treated as a client whose connection has
 * ended: it is fenced, and its memory is kept until its process has ended, reports that it needs the memory no more, or
 * reconnects (fence.c).
 *
 * If the state cannot be taken over, the daemon starts with a new state, and the manager forgets all descriptors. If
 * the cause is a lack of memory or descriptors, the daemon ends instead, and the next one tries again.
 */
#include "daemon/restart/previous.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <time.h>
#include "common/fd.h"
#include "daemon/core/restart/life.h"
#include "daemon/core/operations/clients.h"
#include "daemon/server/device.h"
#include "daemon/sys/log.h"
#include "daemon/sys/sd.h"

#define DEVICE_TRIES 10

/* A client of the previous daemon, whose process is to be watched. */
struct skv_past_client {
	uint32_t client;
	bool gone; /* the client's process has ended */
	struct skv_peer peer;
};

static bool add(void *ctx, const char *name, int fd)
{
	(void)ctx;
	return skv_sd_fdstore_add(name, fd);
}

static bool remove_one(void *ctx, const char *name)
{
	(void)ctx;
	return skv_sd_fdstore_remove(name);
}

static const struct skv_core_fdstore fdstore = {.add = add, .remove = remove_one};

static void on_lost(void *server, const char *name, const char *why)
{
	(void)server;
	skv_log(LOG_ERR, "descriptor %s of the previous daemon cannot be restored: %s", name, why);
}

/*
 * Opens a device on which the state has memory. If the driver fails, the function tries again for about a second, since
 * the driver may recover; it does not if the device does not exist.
 */
static int on_device(void *server, struct skv_core *core, uint32_t device)
{
	const struct timespec pause = {.tv_nsec = 100000000};
	struct skv_server *s = server;
	char why[SKV_TEXT_MAX];
	int r;

	s->core = core; /* skv_device_need() adds the device to the core */
	for (unsigned tries = 0; (r = skv_device_need(s, device, why)) != 0; tries++) {
		skv_log(LOG_ERR, "device %u, which has memory of the previous daemon, cannot be opened: %s",
		        device - 1, why);
		if (r == ENODEV || r == EOPNOTSUPP || tries == DEVICE_TRIES)
			break;
		nanosleep(&pause, NULL);
	}
	return skv_is_shortage(-r) ? -r : r != 0;
}

/*
 * Returns whether fd is a pidfd. Another file in its place might be readable at once, as the pidfd of a process that
 * has ended is.
 */
static bool is_pidfd(int fd)
{
	return fd >= 0 && (pidfd_send_signal(fd, 0, NULL, 0) == 0 || errno != EBADF);
}

/*
 * Records a client of the previous daemon. Without a stored pidfd, the function opens the process that has the client's
 * PID now, which may be another process. If there is no such process, the client's process has ended.
 */
static int on_client(void *server, const struct skv_core_past_client *c)
{
	struct skv_server *s = server;
	struct skv_past_client *more = realloc(s->restart.clients, (s->restart.n_clients + 1) * sizeof(*more));
	int pidfd = c->pidfd;

	if (!more) {
		skv_close_fd(pidfd);
		return -ENOMEM;
	}
	s->restart.clients = more;
	if (!is_pidfd(pidfd)) {
		skv_close_fd(pidfd);
		pidfd = pidfd_open(c->pid, 0);
		if (pidfd < 0 && skv_is_shortage(-errno))
			return -errno;
	}
	s->restart.clients[s->restart.n_clients++] = (struct skv_past_client){
		.client = c->client,
		.gone = pidfd < 0 && errno == ESRCH,
		.peer = {.uid = c->uid, .gid = (gid_t)-1, .pid = c->pid, .pidfd = pidfd},
	};
	return 0;
}

/*
 * Closes descriptors that were kept, and makes the service manager forget those to which the state does not refer,
 * which an interrupted change may have left; or (`all`) all descriptors. The core has already taken the ones to which
 * the state refers.
 */
static void give_up(struct skv_core_found *found, size_t n, bool all)
{
	for (size_t i = 0; i < n; i++) {
		if (all || !found[i].claimed)
			(void)skv_sd_fdstore_remove(found[i].name);
		if (found[i].fd >= 0 && !all)
			skv_log_peer(LOG_WARNING,
			             "the descriptor that was stored as %s is closed and no longer stored: the state "
			             "does not refer to it",
			             found[i].name);
		skv_close_fd(found[i].fd);
	}
}

static int resume(struct skv_server *s, const struct skv_core_config *config)
{
	const size_t n = s->restart.passed.n_kept;
	struct skv_core_found *found = calloc(n, sizeof(*found));
	struct skv_core_past past = {
		.found = found, .n = n, .device = on_device, .client = on_client, .lost = on_lost, .ctx = s};
	const char *why;
	int r;

	if (!found)
		return -ENOMEM;
	if (skv_sd_is_there())
		past.fdstore = fdstore;
	for (size_t i = 0; i < n; i++)
		found[i] = (struct skv_core_found){.name = s->restart.passed.kept[i].name,
		                                   .fd = s->restart.passed.kept[i].fd};
	r = skv_core_resume(config, &s->hostmem.ops, &past, &s->core, &why);
	if (r < 0) {
		s->core = NULL;
		skv_log(LOG_CRIT, "the state of the previous daemon cannot be taken over, %s: %s: %s",
		        skv_is_shortage(r) ? "but is kept for the next start" : "so all sequences are lost", strerror(-r), why);
	}
	if (!skv_is_shortage(r))
		give_up(found, n, r < 0);
	free(found);
	return r;
}

int skv_past_start(struct skv_server *s, const struct skv_core_config *config)
{
	int r = -ENOENT;

	if (s->restart.passed.n_kept > 0)
		r = resume(s, config);
	if (r == 0) {
		skv_log(LOG_NOTICE, "the daemon continues where the previous daemon ended: %u clients, %u sequences",
		        s->restart.n_clients, skv_core_sequences(s->core));
		return 0;
	}
	if (skv_is_shortage(r))
		return r;
	skv_past_free(s);
	r = skv_core_new(config, &s->hostmem.ops, &s->core);
	if (r < 0)
		skv_log(LOG_ERR, "the memory for the daemon's state cannot be created: %s", strerror(-r));
	else if (s->options.service && skv_sd_is_there())
		skv_core_set_fdstore(s->core, &fdstore);
	return r;
}

void skv_past_watch_clients(struct skv_server *s,
                            void (*watch)(struct skv_server *, uint32_t client, struct skv_peer *))
{
	for (uint32_t i = 0; i < s->restart.n_clients; i++) {
		struct skv_past_client *p = &s->restart.clients[i];

		if (p->peer.pidfd >= 0 || p->gone) {
			watch(s, p->client, &p->peer);
			continue;
		}
		/* the process may be alive and write to its pages, so the client stays fenced */
		(void)skv_core_client_fence(s->core, p->client);
		skv_log(LOG_ERR, "client %#x: its process cannot be watched, so its sequences and pages stay allocated",
		        p->client);
	}
	s->restart.n_clients = 0;
}

void skv_past_leave(struct skv_server *s)
{
	skv_core_commit(s->core);
	skv_log(LOG_NOTICE, "the state is consistent; %u sequences are kept for the next daemon",
	        skv_core_sequences(s->core));
	s->core = skv_core_abandon(s->core);
}

void skv_past_free(struct skv_server *s)
{
	for (uint32_t i = 0; i < s->restart.n_clients; i++)
		skv_close_fd(s->restart.clients[i].peer.pidfd);
	free(s->restart.clients);
	s->restart.clients = NULL;
	s->restart.n_clients = 0;
}
