/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/requests/query.c - replies to queries: the daemon's status, and lists of what it has. The tables behind them
 * may be long, so each turn of the loop makes a part of the text, and sends it at once.
 *
 * A query has memory for one packet of text, and waits while its connection's queue is full. The connection's next
 * request is received after the reply. Users take turns, however many queries a user has.
 */
#include "daemon/requests/query.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/clock.h"
#include "daemon/core/operations/policies.h"
#include "daemon/core/operations/turns.h"
#include "daemon/core/operations/views.h"
#include "daemon/core/state/units.h"
#include "daemon/parked/parking.h"
#include "daemon/requests/deferred.h"
#include "daemon/requests/report.h"
#include "daemon/server/server-priv.h"
#include "daemon/sys/json.h"
#include "daemon/sys/log.h"

#define PART (SKV_WIRE_MAX_SENT - sizeof(struct skv_msg_header) - sizeof(struct skv_msg_text))

#define ROW_UNITS 1000u /* cost of making a row, in units of work */

struct writer;

/* A part of an answer. some() makes the text of a turn's work, and returns true if the part is complete. */
struct part {
	const char *before; /* text before the part; NULL: the part goes on with the rows of the one before */
	bool (*some)(const struct writer *); /* NULL: only `before` */
};

struct skv_querying {
	struct skv_deferred request;
	struct skv_queued queued;
	const struct part *part; /* the part in progress; the last one has no some() */
	struct skv_core_walk walk; /* the part's progress */
	size_t parked; /* index of the parked sequence whose row comes next */
	uint32_t plugin, sessions; /* id of the plugin whose sessions are being counted, and their number so far */
	struct skv_core_held held; /* memory that has been added up so far */
	bool begun; /* the part's `before` was written */
	bool any; /* a row was written, so the next one begins with a comma */
	bool failed; /* there was no memory for a row, so the list is incomplete */
	size_t len;
	char text[PART];
};

struct writer {
	struct skv_server *server;
	struct skv_querying *query;
	uint32_t *units; /* of work that are left in this turn */
};

/* ---- text ------------------------------------------------------------------------------------- */

/* Sends the text that the query has collected. Sending may end the connection. */
static void send_part(const struct writer *w, bool more)
{
	struct skv_querying *q = w->query;
	struct skv_conn *conn = q->request.conn;
	struct skv_msg_text body = {.length = (uint32_t)q->len, .more = more};

	if (conn)
		skv_conn_send(conn, q->request.header.type | SKV_REPLY, q->request.header.serial, &body, sizeof(body),
		              q->text, q->len, NULL, 0);
	q->len = 0;
}

static void write_text(const struct writer *w, const char *text, size_t len)
{
	struct skv_querying *q = w->query;

	while (len) {
		size_t some = len < PART - q->len ? len : PART - q->len;

		memcpy(q->text + q->len, text, some);
		q->len += some;
		text += some;
		len -= some;
		if (len)
			send_part(w, true);
	}
}

static void write_json(const struct writer *w, json_t *value, size_t cut)
{
	char *text = skv_json_text(value, JSON_COMPACT | JSON_ENSURE_ASCII);

	json_decref(value);
	if (text)
		write_text(w, text, strlen(text) - cut);
	else
		w->query->failed = true;
	free(text);
}

/* Writes a row of a list (consumed). */
static void write_row(void *writer, json_t *row)
{
	const struct writer *w = writer;

	(void)skv_units_take(w->units, ROW_UNITS);
	write_text(w, ",", w->query->any);
	write_json(w, row, 0);
	w->query->any = true;
}

/* ---- parts ------------------------------------------------------------------------------------ */

/* A walk's callback, that writes the row of a view. */
#define WRITES_ROW(what)                                                                   \
	static void write_##what(void *writer, const struct skv_core_##what##_view *v)     \
	{                                                                                  \
		write_row(writer, skv_report_##what(v));                                   \
	}
WRITES_ROW(account)
WRITES_ROW(client)
WRITES_ROW(session)
WRITES_ROW(seq)
WRITES_ROW(pool)

/* Writes a row for each device on which the account has memory. */
static void write_device_accounts(void *writer, const struct skv_core_account_view *v)
{
	for (uint32_t i = SKV_DEVICE_CUDA(0); i < SKV_MEMORY_KINDS; i++)
		if (v->segment_bytes[i])
			write_row(writer, skv_report_device_account(v, i));
}

static bool sum_held(const struct writer *w)
{
	return skv_core_held_some(w->server->core, &w->query->walk, w->units, &w->query->held);
}

/* Writes the status without the closing brace: lists follow. */
static bool status(const struct writer *w)
{
	const struct skv_querying *q = w->query;

	write_json(w, skv_report_status(w->server, q->walk.all, q->walk.uid, &q->held), 1);
	return true;
}

static bool accounts(const struct writer *w)
{
	return skv_core_accounts_some(w->server->core, &w->query->walk, w->units, write_account, (void *)w);
}

static bool device_accounts(const struct writer *w)
{
	return skv_core_accounts_some(w->server->core, &w->query->walk, w->units, write_device_accounts, (void *)w);
}

static bool clients(const struct writer *w)
{
	return skv_core_clients_some(w->server->core, &w->query->walk, w->units, write_client, (void *)w);
}

static bool sessions(const struct writer *w)
{
	return skv_core_sessions_some(w->server->core, &w->query->walk, w->units, write_session, (void *)w);
}

/* The time when the rows were made, because sparsekvctl computes rates from two replies. */
static bool time_s(const struct writer *w)
{
	char text[40];
	int n = snprintf(text, sizeof(text), "%.9f", (double)skv_now_ns() / 1e9);

	write_text(w, text, (size_t)n);
	return true;
}

static bool seqs(const struct writer *w)
{
	return skv_core_seqs_some(w->server->core, &w->query->walk, w->units, write_seq, (void *)w);
}

static bool parked(const struct writer *w)
{
	struct skv_querying *q = w->query;

	return skv_parking_rows_some(w->server, q->walk.all, q->walk.uid, &q->parked, w->units, write_row, (void *)w);
}

static bool pools(const struct writer *w)
{
	return skv_core_pools_some(w->server->core, &w->query->walk, w->units, write_pool, (void *)w);
}

/* Returns the plugin with the lowest id of at least `id`, or NULL. Plugins come and go while they are listed. */
static const struct skv_plugin *plugin_from(const struct skv_registry *reg, uint32_t id)
{
	const struct skv_plugin *found = NULL;

	for (const struct skv_plugin *p = skv_registry_first(reg); p; p = p->next)
		if (p->id >= id && (!found || p->id < found->id))
			found = p;
	return found;
}

static void count_session(void *query, const struct skv_core_session_view *v)
{
	struct skv_querying *q = query;

	q->sessions += v->running_plugin == q->plugin;
}

static bool policies(const struct writer *w)
{
	struct skv_querying *q = w->query;
	const struct skv_plugin *p;

	for (; (p = plugin_from(w->server->registry, q->plugin)); q->plugin++, q->sessions = q->walk.row = 0) {
		if (p->id != q->plugin) {
			q->plugin = p->id;
			q->sessions = q->walk.row = 0;
		}
		if (!skv_core_sessions_some(w->server->core, &q->walk, w->units, count_session, q))
			return false;
		write_row((void *)w, skv_report_policy(p, q->sessions));
	}
	return true;
}

static bool generation(const struct writer *w)
{
	char text[24];
	int n = snprintf(text, sizeof(text), "%llu", (unsigned long long)skv_core_policy_generation(w->server->core));

	write_text(w, text, (size_t)n);
	return true;
}

static const struct part *const answers[] = {
	[SKV_QUERY_STATUS] = (const struct part[]){{"", sum_held},
	                                           {"", status},
	                                           {",\"accounts\":[", accounts},
	                                           {"],\"clients\":[", clients},
	                                           {"],\"device_accounts\":[", device_accounts},
	                                           {"]}", NULL}},
	[SKV_QUERY_SEQS] = (const struct part[]){{"{\"sequences\":[", seqs}, {NULL, parked}, {"]}", NULL}},
	[SKV_QUERY_POLICIES] =
		(const struct part[]){{"{\"policies\":[", policies}, {"],\"generation\":", generation}, {"}", NULL}},
	[SKV_QUERY_POOLS] = (const struct part[]){{"{\"pools\":[", pools}, {"]}", NULL}},
	[SKV_QUERY_SESSIONS] =
		(const struct part[]){{"{\"sessions\":[", sessions}, {"],\"time_s\":", time_s}, {"}", NULL}},
};

/* ---- turns ------------------------------------------------------------------------------------ */

void skv_query_begin(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h, const void *body,
                     int *fds)
{
	const struct skv_msg_query *m = body;
	struct skv_querying *q;

	(void)fds;
	if (m->what >= sizeof(answers) / sizeof(answers[0]) || !answers[m->what]) {
		skv_conn_error(conn, h->serial, EINVAL, "query %u: expected %d to %d", m->what, SKV_QUERY_STATUS,
		               SKV_QUERY_SESSIONS);
		return;
	}
	q = malloc(sizeof(*q));
	if (!q) {
		skv_conn_error(conn, h->serial, ENOMEM, "the daemon is out of memory for this answer");
		return;
	}
	if (m->what == SKV_QUERY_POLICIES)
		skv_registry_collect(s->registry);
	*q = (struct skv_querying){
		.part = answers[m->what],
		.walk = {.all = skv_conn_is_operator(conn), .uid = skv_conn_peer(conn)->uid},
	};
	skv_queue_put(&s->requests.queries, &q->queued, skv_conn_peer(conn)->uid);
	skv_deferred_begin(&q->request, conn, h, true);
}

static void forget(struct skv_querying *q)
{
	skv_deferred_end(&q->request);
	free(q);
}

/* Writes the answer until the turn's units of work are used up. Returns true if the answer is complete. */
static bool write_parts(const struct writer *w)
{
	struct skv_querying *q = w->query;

	for (;; q->part++, q->begun = false) {
		if (!q->begun && q->part->before) {
			write_text(w, q->part->before, strlen(q->part->before));
			q->any = false;
		}
		if (!q->begun)
			q->walk = (struct skv_core_walk){.all = q->walk.all, .uid = q->walk.uid};
		q->begun = true;
		if (!q->part->some || q->failed)
			return true;
		if (!q->part->some(w))
			return false;
	}
}

static void end(const struct writer *w)
{
	struct skv_conn *conn = w->query->request.conn;

	if (conn && w->query->failed)
		skv_conn_close(conn, LOG_ERR, "out of memory for a reply to it");
	else if (conn)
		send_part(w, false);
	forget(w->query);
}

/* Takes the next query out of a queue. Returns NULL if the queue is empty. */
static struct skv_querying *take(struct skv_queue *queue)
{
	struct skv_queued *e = skv_queue_take(queue);

	return e ? SKV_QUEUED_OWNER(e, struct skv_querying, queued) : NULL;
}

/* Does the work of a turn for a query. If the connection ends meanwhile, the next turn frees the query. */
static void work(struct skv_server *s, struct skv_querying *q)
{
	struct skv_conn *conn = q->request.conn;
	uint32_t units = SKV_TURN_UNITS;
	const struct writer w = {s, q, &units};

	if (!conn) {
		forget(q);
		return;
	}
	if (skv_conn_is_full(conn)) {
		skv_queue_put(&s->requests.full_queries, &q->queued, q->queued.user);
		return;
	}
	if (write_parts(&w))
		end(&w);
	else
		skv_queue_put(&s->requests.queries, &q->queued, q->queued.user);
}

bool skv_query_work(struct skv_server *s)
{
	struct skv_querying *q = take(&s->requests.queries);

	if (q)
		work(s, q);
	return s->requests.queries.first != NULL;
}

/* A connection has at most one query, so the first one found is the only one. */
void skv_query_go_on(struct skv_server *s, const struct skv_conn *conn)
{
	SKV_QUEUE_EACH(e, &s->requests.full_queries)
		if (SKV_QUEUED_OWNER(e, struct skv_querying, queued)->request.conn == conn) {
			skv_queue_remove(e);
			skv_queue_put(&s->requests.queries, e, e->user);
			return;
		}
}

void skv_query_free_all(struct skv_server *s)
{
	struct skv_querying *q;

	while ((q = take(&s->requests.queries)) || (q = take(&s->requests.full_queries)))
		forget(q);
}
