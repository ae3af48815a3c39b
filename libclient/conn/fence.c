/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/conn/fence.c - lets threads that are in a step notice that the client's connection has ended.
 *
 * When a client's connection ends for any reason, the daemon records this in the control page. The daemon gives the
 * client's pages and sequences to no other client until this process has exited, or has reported that none of them is
 * mapped any more (CLIENT_END). So a step that began before the end commits nothing, and what such a step still writes
 * goes to pages that no other client uses. When the daemon dies, the client's word in the control page does not change,
 * and steps go on: without a daemon no other client can get the pages.
 *
 * The memory of each sequence names the client that holds the sequence; no other client commits to it.
 *
 * A child of fork(2) may use nothing, because it has none of the memory, and its socket belongs to its parent's
 * connection. Public functions check this first, with fence_enter(), or with fence_forked() if they lock no session.
 * Functions that only read the process's own memory, such as skv_policy_spec(), do not check.
 */
#include "libclient/conn/fence.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include "common/fd.h"
#include "libclient/conn/conn.h"
#include "libclient/error.h"
#include "libclient/seq.h"

static _Atomic unsigned forks; /* number of forks since the library was loaded, up to this process */

static void forked_child(void)
{
	atomic_fetch_add_explicit(&forks, 1, memory_order_relaxed);
}

static void watch(void)
{
	(void)pthread_atfork(NULL, NULL, forked_child);
}

void fence_watch_forks(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, watch);
}

unsigned fence_forks(void)
{
	return atomic_load_explicit(&forks, memory_order_relaxed);
}

bool fence_forked(const struct skv_client *c)
{
	return c->forks != fence_forks();
}

int fence_enter(struct skv_session *s)
{
	if (fence_forked(s->client))
		return fence_check(s->client);
	pthread_mutex_lock(&s->lock);
	return 0;
}

bool fence_stands(const struct skv_client *c)
{
	return atomic_load_explicit(&c->control->fence[skv_client_row_of(c->id)], memory_order_acquire) == c->id;
}

/* Break the connection, with the daemon's message as the reason if the daemon sent one. */
static int fell(struct skv_client *c)
{
	conn_turn(c);
	pthread_mutex_lock(&c->lock);
	conn_break_locked(c, -ECONNRESET, "the daemon ended the connection");
	pthread_mutex_unlock(&c->lock);
	return error_set(-ECONNRESET, "%s; steps do not count any more", c->broken_text);
}

int fence_check(struct skv_client *c)
{
	if (fence_forked(c))
		return error_set(-EPERM, "the connection is of the process that made it: after fork(2) a child connects anew");
	return fence_stands(c) ? 0 : fell(c);
}

int fence_check_held(struct skv_client *c, struct skv_seq *const *seqs, uint32_t n)
{
	int e = fence_check(c);

	for (uint32_t i = 0; i < n && e == 0; i++) {
		uint32_t holder = atomic_load_explicit(&seqs[i]->mem->holder, memory_order_relaxed);

		if (holder != c->id)
			e = error_set(-ECONNRESET, "the sequence is held by client %#x, expected %#x, this one", holder, c->id);
	}
	return e;
}

/* Report the end to the daemon. Returns false if the daemon did not answer; it may have exited before it could. */
static bool told_end(const struct skv_client *c, int64_t deadline)
{
	struct {
		struct skv_msg_header h;
		struct skv_msg_client m;
	} packet = {{.length = sizeof(packet), .type = SKV_MSG_CLIENT_END, .serial = 1}, {.client = c->id}};
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	SKV_FD_CLEANUP int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct pollfd p = {.fd = fd, .events = POLLIN};
	int64_t left = deadline - now_ms();

	strcpy(addr.sun_path, c->path);
	if (fd < 0)
		return !skv_is_shortage(-errno);
	if (connect(fd, (const struct sockaddr *)&addr, sizeof(addr)) < 0)
		return errno != EAGAIN; /* no daemon listens */
	return send(fd, &packet, sizeof(packet), MSG_NOSIGNAL) == (ssize_t)sizeof(packet) && left > 0 && poll(&p, 1, (int)left) == 1 &&
	       recv(fd, &packet, sizeof(packet), 0) > 0;
}

/* If the daemon exits meanwhile and a service manager listens for the next daemon, the next daemon is told instead. */
void fence_tell_end(const struct skv_client *c)
{
	const int64_t deadline = conn_deadline(c);

	/* if the daemon cannot be told now, it notices when this process exits */
	while (!told_end(c, deadline) && now_ms() < deadline)
		nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}
