/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/fence.c - clients whose connection ended before their process did.
 *
 * The end of a connection is not the end of a process: a child of fork(2) hangs up for its parent, a queue overflows, a
 * process that is stopped goes on later, a device finishes what was queued there. A process in the middle of a step may still
 * write to its pages. So what such a client has is nobody's until its process is gone (its pidfd says so) or has said
 * that it has nothing mapped any more (CLIENT_END). Meanwhile the control page tells it that it is fenced, and its
 * library begins and commits no step. A client without a session has no memory, and goes at once.
 *
 * An attach of a sequence of such a client waits a moment: the kernel closes a dying process's socket before the process
 * is gone.
 */
#include "daemon/fence.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include "common/fd.h"
#include "daemon/core/core.h"
#include "daemon/reply.h"
#include "daemon/server-priv.h"
#include "daemon/sys/clock.h"
#include "daemon/sys/log.h"
#include "daemon/turns.h"

#define ATTACH_WAIT_NS 1000000000u
#define MOST_WAITING 16u /* of a connection */

struct skv_fence {
	struct skv_fence *next;
	struct skv_server *server;
	uint32_t client;
	bool done; /* gone from the core: only the operation is left */
	struct skv_peer peer;
	uint64_t begun_ns;
	struct skv_op death_op;
};

/* A SEQ_ATTACH that waits. */
struct skv_attaching {
	struct skv_attaching *next;
	struct skv_server *server;
	uint64_t conn; /* its number; 0: it was answered, only the operation is left */
	struct skv_msg_header header;
	struct skv_msg_seq_name m;
	struct skv_op timer_op;
};

/* ---- those who wait ---- */

/* False: the holder is fenced, and this may wait for it; or it is gone, and ends in turns. */
static bool attach(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                   const struct skv_msg_seq_name *m, bool wait)
{
	struct skv_core_seq_info info = {.fd = -1};
	int r = skv_core_seq_attach(s->core, skv_conn_client(conn), m->session, m->name, &info);

	if (r == SKV_CORE_E_LEAVING || (r == SKV_CORE_E_FENCED && wait))
		return false;
	skv_turns_answer(s, conn, h, r, &info);
	return true;
}

/* Try again. False: it goes on waiting. */
static bool attach_again(struct skv_attaching *a, bool wait)
{
	struct skv_server *s = a->server;
	struct skv_conn *conn = a->conn ? skv_ipc_find(s->ipc, a->conn) : NULL;

	if (conn && !attach(s, conn, &a->header, &a->m, wait))
		return false;
	a->conn = 0;
	skv_op_cancel(s->loop, &a->timer_op);
	return true;
}

static void attach_late(struct skv_op *op, int res)
{
	struct skv_attaching *a = SKV_OP_OWNER(op, struct skv_attaching, timer_op), **at = &a->server->attaching;

	if (res == 0 && a->conn && !attach_again(a, false)) {
		skv_op_timer(a->server->loop, op, ATTACH_WAIT_NS, attach_late);
		return;
	}
	while (*at != a)
		at = &(*at)->next;
	*at = a->next;
	free(a);
}

void skv_fence_attach(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h, const void *body,
                      int *fds)
{
	const struct skv_msg_seq_name *m = body;
	struct skv_attaching *a = NULL;
	unsigned n = 0;

	(void)fds;
	if (attach(s, conn, h, m, true))
		return;
	for (a = s->attaching; a; a = a->next)
		n += a->conn == skv_conn_number(conn);
	a = n < MOST_WAITING ? calloc(1, sizeof(*a)) : NULL;
	if (!a) {
		skv_conn_error(conn, h->serial, EBUSY, "%s; %u requests of this client wait already", skv_core_why(s->core), n);
		return;
	}
	a->server = s;
	a->conn = skv_conn_number(conn);
	a->header = *h;
	a->m = *m;
	a->next = s->attaching;
	s->attaching = a;
	skv_op_timer(s->loop, &a->timer_op, ATTACH_WAIT_NS, attach_late);
}

void skv_fence_forget(struct skv_server *s, const struct skv_conn *conn)
{
	for (struct skv_attaching *a = s->attaching; a; a = a->next)
		if (a->conn == skv_conn_number(conn)) {
			a->conn = 0;
			skv_op_cancel(s->loop, &a->timer_op);
		}
}

/* ---- those who are gone ---- */

/* It can write no more: what it has is taken back, in turns. */
static void take_back(struct skv_server *s, uint32_t client)
{
	int r = skv_core_client_gone(s->core, client, skv_now_ns());

	if (r && r != SKV_CORE_E_NOENT)
		skv_server_fail(s, "taking back what a client had", r < 0 ? r : -EUCLEAN);
}

void skv_fence_gone(struct skv_server *s, uint64_t took_ns)
{
	s->clients_gone++;
	s->reclaim_last_ns = took_ns;
	if (s->reclaim_last_ns > s->reclaim_max_ns)
		s->reclaim_max_ns = s->reclaim_last_ns;
	for (struct skv_attaching *a = s->attaching; a; a = a->next)
		if (a->conn)
			(void)attach_again(a, true);
}

static void fence_free(struct skv_fence *f)
{
	struct skv_fence **at = &f->server->fences;

	while (*at != f)
		at = &(*at)->next;
	*at = f->next;
	skv_close_fd(f->peer.pidfd);
	free(f);
}

static void died(struct skv_op *op, int res)
{
	struct skv_fence *f = SKV_OP_OWNER(op, struct skv_fence, death_op);

	if (!f->done && res != -ECANCELED)
		take_back(f->server, f->client);
	fence_free(f);
}

/* Until the process ends that the caller puts there, or says so. NULL: there is no memory. */
static struct skv_fence *watch(struct skv_server *s, uint32_t client, const char *name)
{
	struct skv_fence *f = calloc(1, sizeof(*f));

	if (!f) {
		/* no way to watch it, so what it has stays as it is: nobody else gets it, and nothing is lost */
		skv_log(LOG_ERR, "%s: no memory to watch its process with: what it has is kept", name);
		return NULL;
	}
	f->server = s;
	f->client = client;
	f->next = s->fences;
	s->fences = f;
	return f;
}

void skv_fence_begin(struct skv_server *s, struct skv_conn *conn)
{
	uint32_t client = skv_conn_client(conn);
	struct skv_fence *f;

	if (!skv_core_client_fence(s->core, client)) {
		take_back(s, client);
		return;
	}
	f = watch(s, client, skv_conn_name(conn));
	if (!f)
		return;
	f->peer = skv_conn_take_peer(conn);
	skv_op_poll(s->loop, &f->death_op, f->peer.pidfd, POLLIN, died);
}

void skv_fence_resume(struct skv_server *s, uint32_t client, struct skv_peer *peer)
{
	struct skv_fence *f = NULL;

	if (!skv_core_client_fence(s->core, client) || peer->pidfd < 0)
		take_back(s, client);
	else
		f = watch(s, client, "a client of the daemon before");
	if (!f) {
		peer->pidfd = skv_close_fd(peer->pidfd);
		return;
	}
	f->peer = *peer;
	peer->pidfd = -1;
	skv_op_poll(s->loop, &f->death_op, f->peer.pidfd, POLLIN, died);
}

/* Do two pidfds mean one process? Numbers of processes are used again, but not while the first one lives. */
static bool same_process(const struct skv_peer *a, const struct skv_peer *b)
{
	struct stat x, y;

	if (fstat(a->pidfd, &x) < 0 || fstat(b->pidfd, &y) < 0)
		return false;
	if (a->pid || b->pid)
		return a->pid == b->pid;
	return x.st_dev == y.st_dev && x.st_ino == y.st_ino; /* each has its own since Linux 6.9 */
}

void skv_fence_client_end(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                          const void *body, int *fds)
{
	const struct skv_msg_client *m = body;
	const struct skv_peer *peer = skv_conn_peer(conn);
	struct skv_fence *f = s->fences;

	(void)fds;
	while (f && (f->done || f->client != m->client || f->peer.uid != peer->uid))
		f = f->next;
	if (!f || !same_process(&f->peer, peer)) {
		skv_conn_error(conn, h->serial, ENOENT, "this process has no client %#x whose connection ended", m->client);
		return;
	}
	f->done = true;
	take_back(s, f->client);
	skv_op_cancel(s->loop, &f->death_op);
	skv_reply(s, conn, h, NULL, 0, NULL, 0);
}

void skv_fence_free_all(struct skv_server *s)
{
	while (s->fences)
		fence_free(s->fences);
}
