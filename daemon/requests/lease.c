/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/requests/lease.c - the request LEASE_GET, which may wait: for segments of a device that are being created, or
 * for memory that users with more than their share have to give up.
 *
 * A lease that needs pending segments is answered when the last of these segments has been created or has failed. A
 * lease that waits for the memory of sequences is answered when the sequences have been dropped or parked. Meanwhile
 * all other requests are served, also those of the same client. Every wait for a segment ends, because each pending
 * segment is created or fails (worker/worker.h). Users take turns; requests of one user are served oldest first.
 */
#include "daemon/requests/lease.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/core/memory/memory.h"
#include "daemon/core/operations/clients.h"
#include "daemon/core/operations/requests.h"
#include "daemon/jobs/jobs.h"
#include "daemon/requests/deferred.h"
#include "daemon/requests/reply.h"
#include "daemon/server/server-priv.h"

#define ALL_POOLS UINT32_MAX
#define MOST_RUNS \
	((SKV_WIRE_MAX_SENT - sizeof(struct skv_msg_header) - sizeof(struct skv_msg_runs)) / \
	 sizeof(struct skv_wire_run))

struct skv_waiting {
	struct skv_deferred request;
	struct skv_queued queued;
	uint32_t pool;
	struct skv_msg_lease_get m;
	/* a segment that the lease needs could not be created: the lease gets only pages of existing segments */
	bool failed;
	int error;
	char why[SKV_TEXT_MAX];
};

static struct skv_waiting *waiting_of(struct skv_queued *e)
{
	return SKV_QUEUED_OWNER(e, struct skv_waiting, queued);
}

/* Asks the core for pages, and replies. Returns false if the request has to wait. w: the waiting request, or NULL. */
static bool answer(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                   const struct skv_msg_lease_get *m, const struct skv_waiting *w)
{
	struct skv_wire_run runs[MOST_RUNS];
	struct skv_msg_runs ok = {.session = m->session};
	int r = (w && w->failed ? skv_core_lease_rest : skv_core_lease_get)(
		s->core, skv_conn_client(conn), m->session, m->least, m->most, runs, MOST_RUNS,
		&ok.n_runs);

	if (r == SKV_CORE_E_WAIT)
		return false;
	if (r == SKV_CORE_E_NOSPC && w && w->failed) {
		skv_conn_error(conn, h->serial, w->error, "%s", w->why);
	} else if (!skv_reply_failed(s, conn, h->serial, "leasing pages", r)) {
		skv_reply_announce(s, conn);
		skv_conn_send(conn, h->type | SKV_REPLY, h->serial, &ok, sizeof(ok), runs,
		              ok.n_runs * sizeof(*runs), NULL, 0);
	}
	return true;
}

void skv_lease_get(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                   const void *body, int *fds)
{
	const struct skv_msg_lease_get *m = body;
	struct skv_waiting *w;

	(void)fds;
	if (answer(s, conn, h, m, NULL) || skv_deferred_refuses(conn, h))
		return;
	w = calloc(1, sizeof(*w));
	if (!w) {
		skv_conn_error(conn, h->serial, ENOMEM, "the daemon is out of memory");
		return;
	}
	w->m = *m;
	/* this cannot fail: the core has just checked that the session exists */
	(void)skv_core_session_pool(s->core, skv_conn_client(conn), m->session, &w->pool);
	skv_deferred_begin(&w->request, conn, h, false);
	skv_queue_put(&s->requests.leases, &w->queued, skv_conn_peer(conn)->uid);
}

static void forget(struct skv_waiting *w)
{
	skv_deferred_end(&w->request);
	free(w);
}

/* Tries each waiting request for this pool, or for any pool (ALL_POOLS). Frees requests whose connection has ended. */
static void serve(struct skv_server *s, uint32_t pool)
{
	struct skv_queue round = {0};
	struct skv_queued *e;

	skv_queue_move(&round, &s->requests.leases);
	while ((e = skv_queue_take(&round))) {
		struct skv_waiting *w = waiting_of(e);
		struct skv_conn *conn = w->request.conn;

		if (conn && ((pool != ALL_POOLS && w->pool != pool) || skv_deferred_pauses(conn) ||
		             !answer(s, conn, &w->request.header, &w->m, w)))
			skv_queue_put(&s->requests.leases, e, e->user);
		else
			forget(w);
	}
	skv_jobs_retry(s->jobs);
}

void skv_lease_retry(struct skv_server *s)
{
	serve(s, ALL_POOLS);
}

void skv_lease_arrived(struct skv_server *s, uint32_t pool)
{
	serve(s, pool);
	skv_core_segments_served(s->core, pool);
}

void skv_lease_failed(struct skv_server *s, uint32_t pool, int error, const char *device, const char *why)
{
	SKV_QUEUE_EACH(e, &s->requests.leases) {
		struct skv_waiting *w = waiting_of(e);

		if (w->pool != pool || w->failed)
			continue;
		w->failed = true;
		w->error = error;
		snprintf(w->why, sizeof(w->why), "%s: %s", device, why);
	}
	serve(s, pool);
	skv_core_segments_served(s->core, pool);
}

void skv_lease_free_all(struct skv_server *s)
{
	struct skv_queued *e;

	while ((e = skv_queue_take(&s->requests.leases)))
		forget(waiting_of(e));
}
