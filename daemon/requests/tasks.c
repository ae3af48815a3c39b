/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/requests/tasks.c - work of the core that takes more than one turn of the loop.
 *
 * A turn takes less than a millisecond, and requests of other clients are served between two turns. The client that
 * asked gets its reply when the work has ended; the daemon receives no other request of this client until then.
 * Reclaiming the memory of a client that is gone is work that no request asked for.
 */
#include "daemon/requests/tasks.h"

#include <stdlib.h>
#include "common/clock.h"
#include "daemon/core/operations/turns.h"
#include "daemon/requests/deferred.h"
#include "daemon/requests/fence.h"
#include "daemon/requests/lease.h"
#include "daemon/requests/reply.h"
#include "daemon/server/server-priv.h"
#include "daemon/sys/log.h"

struct skv_task_reply {
	struct skv_deferred request;
	struct skv_task_reply *next;
	uint32_t client;
	skv_tasks_settle settle; /* NULL: the client gets the core's result */
};

static void wait(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h, skv_tasks_settle settle)
{
	struct skv_task_reply *t = malloc(sizeof(*t));

	if (!t) {
		skv_conn_close(conn, LOG_ERR, "no memory for a request that takes several turns");
		return;
	}
	*t = (struct skv_task_reply){.next = s->requests.tasks, .client = skv_conn_client(conn), .settle = settle};
	s->requests.tasks = t;
	skv_deferred_begin(&t->request, conn, h, true);
}

static void answer(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h, int r, const char *why,
                   const struct skv_core_seq_info *info)
{
	struct skv_msg_seq_ok ok = {0};

	if (r < 0) {
		skv_server_fail(s, skv_wire_name(h->type), r);
	} else if (r > 0) {
		skv_conn_error(conn, h->serial, skv_core_errno((enum skv_core_error)r), "%s", why);
	} else if (info->fd >= 0) {
		ok = (struct skv_msg_seq_ok){.seq = info->seq, .max_tokens = info->max_tokens, .bytes = info->bytes};
		skv_reply(s, conn, h, &ok, sizeof(ok), &info->fd, 1);
	} else {
		skv_reply(s, conn, h, NULL, 0, NULL, 0);
	}
}

void skv_tasks_answer(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h, int r,
                      const struct skv_core_seq_info *info)
{
	if (r == SKV_CORE_E_TURNS)
		wait(s, conn, h, NULL);
	else
		answer(s, conn, h, r, skv_core_why(s->core), info);
}

void skv_tasks_answer_settled(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h, int r,
                              skv_tasks_settle settle)
{
	if (r == SKV_CORE_E_TURNS)
		wait(s, conn, h, settle);
	else
		answer(s, conn, h, r < 0 ? r : settle(s, conn, h, r), skv_core_why(s->core),
		       &(struct skv_core_seq_info){.fd = -1});
}

static void answer_late(struct skv_server *s, struct skv_task_reply *t, const struct skv_core_done *done)
{
	struct skv_conn *conn = t->request.conn;
	const struct skv_msg_header *h = &t->request.header;

	skv_deferred_end(&t->request);
	if (conn)
		answer(s, conn, h, t->settle && done->result >= 0 ? t->settle(s, conn, h, done->result) : done->result,
		       done->why, &done->info);
}

bool skv_tasks_work(struct skv_server *s)
{
	struct skv_core_done done;

	skv_core_work(s->core, SKV_TURN_UNITS, &done);
	skv_loop_did(s->loop, done.work);
	if (done.failed) {
		skv_server_fail(s, "reclaiming or copying memory in turns", done.failed);
		return false;
	}
	s->requests.notices_due |= done.through;
	if (done.through || done.waits) /* memory may be free, or a task may wait for long */
		skv_lease_retry(s);
	skv_loop_did(s->loop, "leases that waited");
	if (!done.client)
		return done.more;
	for (struct skv_task_reply **at = &s->requests.tasks, *t; (t = *at);) {
		if (t->client != done.client) {
			at = &t->next;
			continue;
		}
		*at = t->next;
		answer_late(s, t, &done);
		free(t);
	}
	if (done.gone)
		skv_fence_gone(s, done.uid, skv_now_ns() - done.since_ns);
	skv_lease_retry(s); /* those of this client have waited for its task */
	skv_fence_retry(s);
	return done.more;
}

void skv_tasks_free_all(struct skv_server *s)
{
	while (s->requests.tasks) {
		struct skv_task_reply *t = s->requests.tasks;

		s->requests.tasks = t->next;
		free(t);
	}
}
