/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/requests/query.c - replies with the list of all sessions or sequences. Such a list may be long, so each turn
 * of the loop makes a few rows, which are sent at once.
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
#include "daemon/core/operations/turns.h"
#include "daemon/core/operations/views.h"
#include "daemon/parked/parking.h"
#include "daemon/requests/deferred.h"
#include "daemon/requests/report.h"
#include "daemon/server/server-priv.h"
#include "daemon/sys/json.h"
#include "daemon/sys/log.h"

#define PART (SKV_WIRE_MAX_SENT - sizeof(struct skv_msg_header) - sizeof(struct skv_msg_text))

struct skv_querying {
	struct skv_deferred request;
	struct skv_queued queued;
	enum skv_query what;
	struct skv_core_walk walk;
	size_t parked; /* index of the parked sequence whose row comes next */
	bool any; /* a row was written, so the next one begins with a comma */
	bool failed; /* there was no memory for a row, so the list is incomplete */
	size_t len;
	char text[PART];
};

struct writer {
	struct skv_server *server;
	struct skv_querying *query;
};

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

/* Writes a row of the list (consumed) as JSON. */
static void write_row(void *writer, json_t *row)
{
	const struct writer *w = writer;
	char *text = skv_json_text(row, JSON_COMPACT | JSON_ENSURE_ASCII);

	json_decref(row);
	if (text) {
		write_text(w, ",", w->query->any);
		write_text(w, text, strlen(text));
		w->query->any = true;
	} else {
		w->query->failed = true;
	}
	free(text);
}

static void write_session(void *writer, const struct skv_core_session_view *v)
{
	write_row(writer, skv_report_session(v));
}

static void write_seq(void *writer, const struct skv_core_seq_view *v)
{
	write_row(writer, skv_report_seq(v));
}

void skv_query_begin(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h, enum skv_query what)
{
	struct skv_querying *q = malloc(sizeof(*q));

	if (!q) {
		skv_conn_error(conn, h->serial, ENOMEM, "the daemon is out of memory for this answer");
		return;
	}
	*q = (struct skv_querying){
		.what = what,
		.walk = {.all = skv_conn_is_operator(conn), .uid = skv_conn_peer(conn)->uid},
	};
	skv_queue_put(&s->requests.queries, &q->queued, skv_conn_peer(conn)->uid);
	skv_deferred_begin(&q->request, conn, h, true);
	write_text(&(struct writer){s, q}, what == SKV_QUERY_SEQS ? "{\"sequences\":[" : "{\"sessions\":[",
	           what == SKV_QUERY_SEQS ? 14 : 13);
}

static void forget(struct skv_querying *q)
{
	skv_deferred_end(&q->request);
	free(q);
}

static void end(struct skv_server *s, struct skv_querying *q)
{
	struct skv_conn *conn = q->request.conn;
	char time[64];
	int n;

	if (conn && q->failed) {
		skv_conn_close(conn, LOG_ERR, "out of memory for a reply to it");
	} else if (conn) {
		/* time_s: when the rows were made, because sparsekvctl computes rates from two replies */
		n = q->what == SKV_QUERY_SEQS
		            ? snprintf(time, sizeof(time), "]}")
		            : snprintf(time, sizeof(time), "],\"time_s\":%.9f}", (double)skv_now_ns() / 1e9);
		write_text(&(struct writer){s, q}, time, (size_t)n);
		send_part(&(struct writer){s, q}, false);
	}
	forget(q);
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
	struct writer w = {s, q};
	bool through;

	if (!conn) {
		forget(q);
		return;
	}
	if (skv_conn_is_full(conn)) {
		skv_queue_put(&s->requests.full_queries, &q->queued, q->queued.user);
		return;
	}
	if (q->what == SKV_QUERY_SEQS)
		through = skv_core_seqs_some(s->core, &q->walk, &units, write_seq, &w) &&
		          /* rows of parked sequences come after those in memory */
		          skv_parking_rows_some(s, q->walk.all, q->walk.uid, &q->parked, &units, write_row, &w);
	else
		through = skv_core_sessions_some(s->core, &q->walk, &units, write_session, &w);
	if (through || q->failed)
		end(s, q);
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
