/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/requests/fence.c - fenced clients: those whose connection ended before their process did.
 *
 * A connection may end while its process lives: a child of fork(2) may end the connection that it shares with its
 * parent, or the daemon disconnects a client that does not read. The process, even if it is stopped and continues
 * later, may then still write to its pages in the middle of a step, and so may a device that completes queued work. So
 * the daemon gives the memory of a fenced client to no other client until its process has ended (the pidfd tells) or
 * has reported that it has nothing mapped any more (CLIENT_END). Meanwhile the control page tells the client library
 * that the client is fenced, and the library begins and commits no step. A client without a session has no memory
 * mapped, and is removed at once.
 *
 * An attach of a sequence that a fenced client holds waits up to a second, because the kernel closes the socket of a
 * dying process shortly before the process is gone.
 */
#include "daemon/requests/fence.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "common/clock.h"
#include "common/fd.h"
#include "daemon/core/operations/clients.h"
#include "daemon/core/operations/requests.h"
#include "daemon/parked/parking.h"
#include "daemon/requests/deferred.h"
#include "daemon/requests/reply.h"
#include "daemon/requests/tasks.h"
#include "daemon/server/server-priv.h"
#include "daemon/sys/log.h"

#define ATTACH_WAIT_NS 1000000000u

struct skv_fence {
	struct skv_fence *next;
	struct skv_server *server;
	uint32_t client;
	bool done; /* the client was removed from the core; the struct lives until death_op has ended */
	struct skv_peer peer;
	uint64_t begun_ns;
	struct skv_op death_op;
};

/* A request SEQ_ATTACH that waits. */
struct skv_attaching {
	struct skv_deferred request;
	struct skv_attaching *next;
	struct skv_server *server;
	struct skv_msg_seq_name m;
	bool read; /* the sequence is being read from its file, or has been */
	struct skv_op timer_op;
};

/* ---- attach requests that wait ---- */

/* Starts to read a sequence that is not in memory from its file. Returns what skv_parking_attach() returns. */
static int read_back(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_seq_name *m,
                     char why[SKV_TEXT_MAX])
{
	const struct skv_model *model;

	if (skv_core_session_model(s->core, skv_conn_client(conn), m->session, &model))
		return 0; /* the session does not exist, which the core's error already says */
	return skv_parking_attach(s, skv_conn_peer(conn)->uid, model, m->name, why);
}

/*
 * Tries to attach a sequence, and replies. Returns false if the request has to wait instead: the sequence's holder is
 * fenced (only if `wait`), or the holder is gone and is being reclaimed in turns, or the sequence is being read from
 * its file (then *read is set).
 */
static bool attach(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                   const struct skv_msg_seq_name *m, bool wait, bool *read)
{
	struct skv_core_seq_info info = {.fd = -1};
	int r = skv_core_seq_attach(s->core, skv_conn_client(conn), m->session, m->name, &info), parked = 0;
	char why[SKV_TEXT_MAX];

	if (r == SKV_CORE_E_LEAVING || (r == SKV_CORE_E_FENCED && wait))
		return false;
	if (r == SKV_CORE_E_NOENT)
		parked = read_back(s, conn, m, why);
	*read |= parked > 0;
	if (parked > 0)
		return false;
	if (r == 0 || r == SKV_CORE_E_TURNS)
		skv_parking_attached(s, skv_conn_peer(conn)->uid, *read);
	if (parked < 0)
		skv_conn_error(conn, h->serial, -parked, "%s", why);
	else
		skv_tasks_answer(s, conn, h, r, &info);
	return true;
}

/*
 * Tries a waiting attach again. Returns false if it still has to wait. An attach does not pause its connection, so
 * another request of the client may be in turns; a client has one task at a time.
 */
static bool attach_again(struct skv_attaching *a, bool wait)
{
	struct skv_conn *conn = a->request.conn;

	if (conn && skv_deferred_pauses(conn))
		return false;
	if (conn && !attach(a->server, conn, &a->request.header, &a->m, wait, &a->read))
		return false;
	skv_deferred_end(&a->request);
	skv_op_cancel(a->server->loop, &a->timer_op);
	return true;
}

static void attach_late(struct skv_op *op, int res)
{
	struct skv_attaching *a = SKV_OP_OWNER(op, struct skv_attaching, timer_op),
			     **at = &a->server->requests.attaching;

	if (res == 0 && a->request.conn && !attach_again(a, false)) {
		skv_op_timer(a->server->loop, op, ATTACH_WAIT_NS, attach_late);
		return;
	}
	while (*at != a)
		at = &(*at)->next;
	*at = a->next;
	skv_deferred_end(&a->request);
	free(a);
}

void skv_fence_attach(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h, const void *body,
                      int *fds)
{
	const struct skv_msg_seq_name *m = body;
	struct skv_attaching *a;
	bool read = false;

	(void)fds;
	if (attach(s, conn, h, m, true, &read) || skv_deferred_refuses(conn, h))
		return;
	a = calloc(1, sizeof(*a));
	if (!a) {
		skv_conn_error(conn, h->serial, ENOMEM, "the daemon is out of memory");
		return;
	}
	skv_deferred_begin(&a->request, conn, h, false);
	a->server = s;
	a->m = *m;
	a->read = read;
	a->next = s->requests.attaching;
	s->requests.attaching = a;
	skv_op_timer(s->loop, &a->timer_op, ATTACH_WAIT_NS, attach_late);
}

/* Returns whether the attach waits for the sequence with this user, model and name. */
static bool is_for(struct skv_attaching *a, struct skv_conn *conn, uid_t uid, const struct skv_model *m,
                   const char *name)
{
	const struct skv_model *model;

	return skv_conn_peer(conn)->uid == uid && !strcmp(a->m.name, name) &&
	       !skv_core_session_model(a->server->core, skv_conn_client(conn), a->m.session, &model) &&
	       !strcmp(model->name, m->name) && model->rank == m->rank && model->n_ranks == m->n_ranks;
}

void skv_fence_restored(struct skv_server *s, uid_t uid, const struct skv_model *m, const char *name, int error,
                        const char *why)
{
	for (struct skv_attaching *a = s->requests.attaching; a; a = a->next) {
		struct skv_conn *conn = a->request.conn;

		if (!conn || !a->read || !is_for(a, conn, uid, m, name))
			continue;
		if (error == 0) {
			(void)attach_again(a, true);
			continue;
		}
		skv_deferred_error(&a->request, -error, "%s", why);
		skv_op_cancel(s->loop, &a->timer_op);
	}
}

void skv_fence_retry(struct skv_server *s)
{
	for (struct skv_attaching *a = s->requests.attaching; a; a = a->next)
		(void)attach_again(a, true);
}

/* ---- clients that are gone ---- */

/* Reclaims the memory of a client whose process cannot write to it any more; the core does that in turns. */
static void take_back(struct skv_server *s, uint32_t client)
{
	int r = skv_core_client_gone(s->core, client, skv_now_ns());

	if (r && r != SKV_CORE_E_NOENT)
		skv_server_fail(s, "reclaiming the memory of a client", r < 0 ? r : -EUCLEAN);
}

void skv_fence_gone(struct skv_server *s, uid_t uid, uint64_t took_ns)
{
	skv_count(s->counts, uid, SKV_COUNT_GONE, 1);
	skv_count_time(s->counts, uid, SKV_COUNT_RECLAIM_NS, took_ns);
}

static void fence_free(struct skv_fence *f)
{
	struct skv_fence **at = &f->server->requests.fences;

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

/*
 * Allocates the fence of a client. The caller sets `peer`, the process whose end (or CLIENT_END) ends the fence.
 * Returns NULL if there is no memory; the daemon then stops.
 */
static struct skv_fence *watch(struct skv_server *s, uint32_t client)
{
	struct skv_fence *f = calloc(1, sizeof(*f));

	if (!f) {
		skv_server_fail(s, "watching a client's process", -ENOMEM);
		return NULL;
	}
	f->server = s;
	f->client = client;
	f->next = s->requests.fences;
	s->requests.fences = f;
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
	f = watch(s, client);
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
		f = watch(s, client);
	if (!f) {
		peer->pidfd = skv_close_fd(peer->pidfd);
		return;
	}
	f->peer = *peer;
	peer->pidfd = -1;
	skv_op_poll(s->loop, &f->death_op, f->peer.pidfd, POLLIN, died);
}

/* Returns whether two pidfds refer to the same process. A PID is not reused while its process lives. */
static bool same_process(const struct skv_peer *a, const struct skv_peer *b)
{
	struct stat x, y;

	if (fstat(a->pidfd, &x) < 0 || fstat(b->pidfd, &y) < 0)
		return false;
	if (a->pid || b->pid)
		return a->pid == b->pid;
	return x.st_dev == y.st_dev && x.st_ino == y.st_ino; /* pidfds have unique inodes since Linux 6.9 */
}

/*
 * Finds the fence of a client that belongs to the process on this connection. If there is none, sends an error and
 * returns NULL.
 */
static struct skv_fence *find(struct skv_server *s, struct skv_conn *conn, uint32_t serial, uint32_t client)
{
	const struct skv_peer *peer = skv_conn_peer(conn);
	struct skv_fence *f = s->requests.fences;

	while (f && (f->done || f->client != client || f->peer.uid != peer->uid))
		f = f->next;
	if (f && same_process(&f->peer, peer))
		return f;
	skv_conn_error(conn, serial, ENOENT, "this process has no client %#x whose connection ended", client);
	return NULL;
}

/*
 * Closes an older connection of the same client. The process closed the old connection before it opened the new one,
 * but the daemon may not have seen that yet, since messages on the old connection may still be waiting, even a
 * RECONNECT. The later of two connections counts.
 */
static void hang_up(struct skv_server *s, const struct skv_conn *conn, uint32_t client)
{
	struct skv_conn *other = skv_ipc_first(s->ipc);

	while (other && (skv_conn_client(other) != client || skv_conn_number(other) >= skv_conn_number(conn)))
		other = skv_conn_next(other);
	if (other && skv_conn_peer(other)->uid == skv_conn_peer(conn)->uid &&
	    same_process(skv_conn_peer(other), skv_conn_peer(conn)))
		skv_conn_close(other, LOG_DEBUG, "the client's process reported that this connection has ended");
}

void skv_fence_client_end(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                          const void *body, int *fds)
{
	const struct skv_msg_client *m = body;
	struct skv_fence *f;

	(void)fds;
	hang_up(s, conn, m->client);
	f = find(s, conn, h->serial, m->client);
	if (!f)
		return;
	f->done = true;
	take_back(s, f->client);
	skv_op_cancel(s->loop, &f->death_op);
	skv_reply(s, conn, h, NULL, 0, NULL, 0);
}

void skv_fence_reconnect(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                         const void *body, int *fds)
{
	const struct skv_msg_reconnect *m = body;
	struct skv_msg_hello_ok ok = {.client = m->client};
	struct skv_fence *f;

	(void)fds;
	if (!skv_reply_can_serve(conn, h->serial, &m->hello))
		return;
	hang_up(s, conn, m->client);
	f = find(s, conn, h->serial, m->client);
	if (!f ||
	    skv_reply_failed(s, conn, h->serial, "reconnecting a client", skv_core_reconnect(s->core, m->client))) {
		skv_conn_finish(conn);
		return;
	}
	f->done = true;
	skv_op_cancel(s->loop, &f->death_op);
	skv_conn_set_client(conn, m->client, *m->hello.program ? m->hello.program : "?");
	skv_reply_hello(s, conn, h, &ok);
	skv_log(LOG_INFO, "%s, uid %u: reconnected as client %#x", skv_conn_name(conn),
	        (unsigned)skv_conn_peer(conn)->uid, m->client);
}

void skv_fence_free_all(struct skv_server *s)
{
	while (s->requests.fences)
		fence_free(s->requests.fences);
}
