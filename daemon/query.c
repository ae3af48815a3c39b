/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/query.c - lists of sessions and sequences, which may be long: a few rows a turn, sent as they are made.
 *
 * A query holds a packet's worth of text, and waits while the connection's queue is full; the connection's next request
 * is received after the answer. Users take turns, whatever number of queries each has under way.
 */
#include "daemon/query.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/core/core.h"
#include "daemon/parking.h"
#include "daemon/report.h"
#include "daemon/server-priv.h"
#include "daemon/sys/clock.h"
#include "daemon/sys/json.h"
#include "daemon/sys/log.h"

#define TURN_UNITS 40000u
#define PART (SKV_WIRE_MAX_SENT - sizeof(struct skv_msg_header) - sizeof(struct skv_msg_text))

struct skv_querying {
	struct skv_querying *next;
	uint64_t conn; /* its number */
	uid_t uid;
	uint64_t served; /* turn in which its user had the last one */
	bool waits;      /* for the connection's queue to drain */
	struct skv_msg_header header;
	enum skv_query what;
	struct skv_core_walk walk;
	size_t parked; /* the next one of them */
	bool any; /* row before */
	bool failed; /* no memory for a row */
	size_t len;
	char text[PART];
};

struct writer {
	struct skv_server *server;
	struct skv_querying *query;
};

/* Sending may end the connection. */
static void send_part(const struct writer *w, bool more)
{
	struct skv_querying *q = w->query;
	struct skv_conn *conn = skv_ipc_find(w->server->ipc, q->conn);
	struct skv_msg_text body = {.length = (uint32_t)q->len, .more = more};

	if (conn)
		skv_conn_send(conn, q->header.type | SKV_REPLY, q->header.serial, &body, sizeof(body), q->text, q->len, NULL, 0);
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

/* Consumes the row. */
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
		.next = s->queries,
		.conn = skv_conn_number(conn),
		.uid = skv_conn_peer(conn)->uid,
		.header = *h,
		.what = what,
		.walk = {.all = skv_conn_is_operator(conn), .uid = skv_conn_peer(conn)->uid},
	};
	for (const struct skv_querying *other = s->queries; other; other = other->next)
		if (other->uid == q->uid && other->served > q->served)
			q->served = other->served;
	s->queries = q;
	skv_conn_pause(conn, true);
	write_text(&(struct writer){s, q}, what == SKV_QUERY_SEQS ? "{\"sequences\":[" : "{\"sessions\":[",
	           what == SKV_QUERY_SEQS ? 14 : 13);
}

/* Whose turn it is: of those that do not wait, one of the user who had none for longest; and of a user's, the oldest. */
static struct skv_querying *whose_turn(struct skv_server *s)
{
	struct skv_querying *next = NULL;

	for (struct skv_querying *q = s->queries; q; q = q->next)
		if (!q->waits && (!next || q->served <= next->served))
			next = q;
	if (!next)
		return NULL;
	s->query_turns++;
	for (struct skv_querying *q = s->queries; q; q = q->next)
		if (q->uid == next->uid)
			q->served = s->query_turns;
	return next;
}

static void query_free(struct skv_server *s, struct skv_querying *q)
{
	struct skv_querying **at = &s->queries;

	while (*at != q)
		at = &(*at)->next;
	*at = q->next;
	free(q);
}

static void end(struct skv_server *s, struct skv_querying *q)
{
	struct skv_conn *conn = skv_ipc_find(s->ipc, q->conn);
	char time[64];
	int n;

	if (conn && q->failed) {
		skv_conn_close(conn, LOG_ERR, "no memory for its answer");
	} else if (conn) {
		/* when these figures were read: rates are made of two answers */
		n = q->what == SKV_QUERY_SEQS ? snprintf(time, sizeof(time), "]}")
		                              : snprintf(time, sizeof(time), "],\"time_s\":%.9f}", (double)skv_now_ns() / 1e9);
		write_text(&(struct writer){s, q}, time, (size_t)n);
		send_part(&(struct writer){s, q}, false);
		skv_conn_pause(conn, false);
	}
	query_free(s, q);
}

static bool any_can_go_on(const struct skv_server *s)
{
	const struct skv_querying *q = s->queries;

	while (q && q->waits)
		q = q->next;
	return q != NULL;
}

bool skv_query_work(struct skv_server *s)
{
	struct skv_querying *q = whose_turn(s);
	struct skv_conn *conn = q ? skv_ipc_find(s->ipc, q->conn) : NULL;
	uint32_t units = TURN_UNITS;
	struct writer w = {s, q};
	bool through;

	if (!q)
		return false;
	if (!conn) {
		query_free(s, q);
		return any_can_go_on(s);
	}
	q->waits = skv_conn_is_full(conn);
	if (q->waits)
		return any_can_go_on(s);
	if (q->what == SKV_QUERY_SEQS)
		through = skv_core_seqs_some(s->core, &q->walk, &units, write_seq, &w) &&
		          skv_parking_rows_some(s, q->walk.all, q->walk.uid, &q->parked, &units, write_row, &w); /* those in files come last */
	else
		through = skv_core_sessions_some(s->core, &q->walk, &units, write_session, &w);
	if (through || q->failed)
		end(s, q);
	return any_can_go_on(s);
}

void skv_query_drained(struct skv_server *s, const struct skv_conn *conn)
{
	for (struct skv_querying *q = s->queries; q; q = q->next)
		if (q->conn == skv_conn_number(conn))
			q->waits = false;
}

void skv_query_forget(struct skv_server *s, const struct skv_conn *conn)
{
	for (struct skv_querying *q = s->queries; q; q = q->next)
		if (q->conn == skv_conn_number(conn)) { /* its next turn, which may be this one, frees it */
			q->conn = 0;
			q->waits = false;
		}
}

void skv_query_free_all(struct skv_server *s)
{
	while (s->queries)
		query_free(s, s->queries);
}
