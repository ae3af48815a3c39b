/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/past.c - a daemon that follows another one.
 *
 * The service manager keeps descriptors for us (FDSTORE=1): of the state, of pools, segments, sequences and sessions, by the names that the
 * core gives them, and of clients' processes. It passes them to the next daemon, whatever ended this one, but for a stop of the
 * service. So the memory of all sequences outlives us, and so do the engines' mappings of it.
 *
 * Connections end with the daemon. A client of the one before is therefore what a client is whose connection ended: fenced,
 * and what it has is nobody's else until its process has ended, or says that it needs it no more (fence.c).
 *
 * A state that cannot be taken is not: then all begins anew, and what was kept is given up.
 */
#include "daemon/past.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include "common/fd.h"
#include "daemon/device.h"
#include "daemon/fence.h"
#include "daemon/sys/log.h"
#include "daemon/sys/sd.h"

/* A client of the daemon before. */
struct skv_past_client {
	uint32_t client;
	bool gone; /* there is no such process any more */
	struct skv_peer peer;
};

static void add(void *ctx, const char *name, int fd)
{
	(void)ctx;
	skv_sd_fdstore_add(name, fd);
}

static void remove_one(void *ctx, const char *name)
{
	(void)ctx;
	skv_sd_fdstore_remove(name);
}

static const struct skv_core_fdstore fdstore = {.add = add, .remove = remove_one};

static void on_lost(void *server, const char *name, const char *why)
{
	(void)server;
	skv_log(LOG_ERR, "%s cannot be had back: %s", name, why);
}

static bool on_device(void *server, struct skv_core *core, uint32_t device)
{
	struct skv_server *s = server;
	char why[SKV_TEXT_MAX];

	s->core = core; /* which the device is made known to */
	if (skv_device_need(s, device, why) == 0)
		return true;
	skv_log(LOG_ERR, "device %u, with memory in use: %s", device - 1, why);
	return false;
}

/* Without its pidfd: that of the process with its number, which may be another one; if there is none, its own has ended. */
static void on_client(void *server, const struct skv_core_past_client *c)
{
	struct skv_server *s = server;
	struct skv_past_client *more = realloc(s->past, (s->n_past + 1) * sizeof(*more));

	if (!more) {
		skv_log(LOG_ERR, "client %u: no memory to watch its process with: what it has is kept", c->client);
		skv_close_fd(c->pidfd);
		return;
	}
	const int pidfd = c->pidfd >= 0 ? c->pidfd : pidfd_open(c->pid, 0);

	s->past = more;
	s->past[s->n_past++] = (struct skv_past_client){
		.client = c->client,
		.gone = pidfd < 0 && errno == ESRCH,
		.peer = {.uid = c->uid, .gid = (gid_t)-1, .pid = c->pid, .pidfd = pidfd},
	};
}

/* The manager is to keep nothing that is not needed. */
static void give_up(struct skv_core_found *found, size_t n, bool all)
{
	for (size_t i = 0; i < n; i++)
		if (all || !found[i].claimed) {
			skv_sd_fdstore_remove(found[i].name);
			skv_close_fd(found[i].fd);
		}
}

static int resume(struct skv_server *s, const struct skv_core_config *config)
{
	const size_t n = s->passed.n_kept;
	struct skv_core_found *found = calloc(n, sizeof(*found));
	struct skv_core_past past = {
		.found = found, .n = n, .fdstore = fdstore, .device = on_device, .client = on_client, .lost = on_lost, .ctx = s};
	const char *why;
	int r;

	if (!found)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		found[i] = (struct skv_core_found){.name = s->passed.kept[i].name, .fd = s->passed.kept[i].fd};
	r = skv_core_resume(config, &s->hostmem.ops, &past, &s->core, &why);
	if (r < 0) {
		s->core = NULL;
		skv_log(LOG_CRIT, "what the daemon before has left cannot be taken, all sequences are lost: %s", why);
	}
	give_up(found, n, r < 0);
	free(found);
	return r;
}

int skv_past_start(struct skv_server *s, const struct skv_core_config *config)
{
	int r = -ENOENT;

	if (s->passed.n_kept > 0)
		r = resume(s, config);
	if (r == 0) {
		skv_log(LOG_NOTICE, "goes on where the daemon before has ended: %u clients, %u sequences", s->n_past,
		        skv_core_sequences(s->core));
		return 0;
	}
	skv_past_free(s);
	r = skv_core_new(config, &s->hostmem.ops, &s->core);
	if (r < 0)
		skv_log(LOG_ERR, "the core cannot be made: %s", strerror(-r));
	else if (s->options.service && skv_sd_is_there())
		skv_core_set_fdstore(s->core, &fdstore);
	return r;
}

void skv_past_watch_clients(struct skv_server *s)
{
	for (uint32_t i = 0; i < s->n_past; i++) {
		struct skv_past_client *p = &s->past[i];

		if (p->peer.pidfd >= 0 || p->gone) {
			skv_fence_resume(s, p->client, &p->peer);
			continue;
		}
		/* it may live, and write to its pages */
		(void)skv_core_client_fence(s->core, p->client);
		skv_log(LOG_ERR, "client %#x: its process cannot be watched: what it has is kept", p->client);
	}
	s->n_past = 0;
}

void skv_past_leave(struct skv_server *s)
{
	skv_core_commit(s->core);
	skv_log(LOG_NOTICE, "state balances; %u sequences are kept", skv_core_sequences(s->core));
	s->core = skv_core_abandon(s->core);
}

void skv_past_free(struct skv_server *s)
{
	for (uint32_t i = 0; i < s->n_past; i++)
		skv_close_fd(s->past[i].peer.pidfd);
	free(s->past);
	s->past = NULL;
	s->n_past = 0;
}
