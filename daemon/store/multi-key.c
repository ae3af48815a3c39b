/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/multi-key.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/clock.h"

#define MS UINT64_C(1000000)  /* ns in a millisecond */
#define MAX_REDIRECTIONS 5    /* maximum number of redirections of a key in a call */
#define SMALLEST_VALUE 64u    /* approximate minimum size in bytes of a reply that the server buffers */

/* TO_ASK: ASKING has to be sent before the key's command; ASKED: the reply to ASKING is outstanding */
enum asking { NOT_ASKING, TO_ASK, ASKED };

struct key {
	uint32_t next; /* index of the next key in the list of the node, or SKV_STORE_NONE */
	uint8_t redirections, asking;
};

struct run {
	struct skv_store_line *line;
	const struct skv_store_call *call;
	struct key *keys;      /* [call->n] */
	struct pollfd *polls;  /* [n_polls] */
	uint32_t n_polls;
	struct skv_store_node *node; /* the node whose replies are being parsed */
	uint64_t deadline_ns;
	uint32_t n_left, n_in_flight; /* number of keys without a status; number of those whose command is in flight */
	int error; /* the first negative status of a key, or 0 */
};

/* ---- lists ----------------------------------------------------------------------------------------- */

static void push(struct run *run, struct skv_store_list *l, uint32_t i)
{
	run->keys[i].next = SKV_STORE_NONE;
	if (l->last == SKV_STORE_NONE)
		l->first = i;
	else
		run->keys[l->last].next = i;
	l->last = i;
}

static uint32_t pop(struct run *run, struct skv_store_list *l)
{
	const uint32_t i = l->first;

	l->first = run->keys[i].next;
	if (l->first == SKV_STORE_NONE)
		l->last = SKV_STORE_NONE;
	return i;
}

static bool is_empty(const struct skv_store_list *l)
{
	return l->first == SKV_STORE_NONE;
}

static bool has_work(const struct skv_store_node *node)
{
	return !is_empty(&node->unsent) || !is_empty(&node->in_flight);
}

/* ---- completion of keys ----------------------------------------------------------------------------- */

static void finish(struct run *run, uint32_t i, int status, const char *why)
{
	run->call->status[i] = status;
	run->n_left--;
	if (status < 0 && !run->error) {
		run->error = status;
		snprintf(run->line->why, sizeof(run->line->why), "%s", why);
	}
}

static uint32_t land(struct run *run)
{
	run->n_in_flight--;
	return pop(run, &run->node->in_flight);
}

/*
 * Fails all keys of a node that is unusable for the rest of the call: connecting, or its open connection, has failed.
 */
static void fail_node(struct run *run, struct skv_store_node *node, int error)
{
	if (skv_store_conn_is_open(node->conn))
		skv_store_conn_down(node->conn);
	run->line->cluster->stale = true;
	run->node = node;
	while (!is_empty(&node->in_flight))
		finish(run, land(run), error, node->conn->why);
	while (!is_empty(&node->unsent))
		finish(run, pop(run, &node->unsent), error, node->conn->why);
	node->ready = false;
}

/* ---- replies --------------------------------------------------------------------------------------- */

/*
 * The first word of an error reply, its errno, and whether the error concerns one key, all writes, or the whole server.
 */
static const struct server_error {
	const char *word;
	int error;
	enum { KEY, WRITES, SERVER } of;
} server_errors[] = {
	{"OOM", -ENOSPC, WRITES},
	{"MISCONF", -EIO, WRITES},
	{"READONLY", -EROFS, WRITES},
	{"NOREPLICAS", -EIO, WRITES},
	{"WRONGTYPE", -EBADMSG, KEY},
	{"TRYAGAIN", -EAGAIN, KEY},
	{"NOPERM", -EACCES, KEY},
	{"NOAUTH", -EACCES, SERVER},
	{"CLUSTERDOWN", -EHOSTDOWN, SERVER},
	{"LOADING", -EHOSTDOWN, SERVER},
	{"MASTERDOWN", -EHOSTDOWN, SERVER},
	{"BUSY", -EHOSTDOWN, SERVER},
	{"", -EREMOTEIO, KEY},
};

static const struct server_error *find_error(const struct skv_store_part *part)
{
	const struct server_error *e = server_errors;
	size_t n = 0;

	while (n < part->n && part->text[n] != ' ')
		n++;
	while (*e->word && (strlen(e->word) != n || memcmp(e->word, part->text, n) != 0))
		e++;
	return e;
}

static int redirect(struct run *run, const struct skv_store_redirection *to, char *why)
{
	struct skv_store_cluster *c = run->line->cluster;
	const uint32_t i = run->node->in_flight.first;
	struct key *k = &run->keys[i];
	const struct skv_store_bytes *key = &run->call->keys[i];
	struct skv_store_node *node;

	if (!c->map || to->hash_slot != skv_store_hash_slot(key->at, key->n))
		return skv_store_refuse(why, -EPROTO, "the server redirects a key to %s:%u, %s", to->to.host,
		                        to->to.port,
		                        c->map ? "for another hash slot"
		                               : "as a node of a cluster does: expected cluster=on");
	land(run);
	skv_store_conn_succeeded(run->node->conn);
	node = skv_store_cluster_node(c, &to->to);
	if (!node || k->redirections++ == MAX_REDIRECTIONS) {
		finish(run, i, node ? -ELOOP : -ENOMEM,
		       node ? "nodes of the cluster redirect a key to each other" : "no memory for a node");
		return 0;
	}
	if (to->ask)
		k->asking = TO_ASK;
	else
		skv_store_cluster_move(c, to->hash_slot, node);
	push(run, &node->unsent, i);
	return 0;
}

static int take_error(struct run *run, const struct skv_store_part *part, char *why)
{
	struct skv_store_node *node = run->node;
	struct skv_store_redirection to;
	const struct server_error *e;
	int r = skv_store_redirection_parse(part->text, part->n, &node->conn->address, &to);

	if (r == 1)
		return redirect(run, &to, why);
	if (r < 0)
		return skv_store_refuse(why, r, "got the redirection \"%.*s\"", part->n < 128 ? (int)part->n : 128,
		                        part->text);
	e = find_error(part);
	(void)skv_store_refuse(why, e->error, "the server says \"%.*s\"", part->n < 128 ? (int)part->n : 128,
	                       part->text);
	if (e->of == SERVER)
		return e->error;
	skv_store_conn_succeeded(node->conn);
	finish(run, land(run), e->error, why);
	if (e->of == WRITES && run->call->op == SKV_STORE_SET)
		while (!is_empty(&node->unsent)) /* the server would refuse these writes, too */
			finish(run, pop(run, &node->unsent), e->error, why);
	return 0;
}

static void take_value(struct run *run, const struct skv_store_part *part)
{
	struct skv_store_line *line = run->line;
	const bool is_value = part->type == SKV_STORE_STRING;
	const uint32_t i = land(run);

	if (part->n >= line->value_bytes)
		line->value_bytes = part->n;
	else if (is_value)
		line->value_bytes -= (line->value_bytes - part->n) / 8;
	run->call->fn(run->call->ctx, i, is_value ? part->text : NULL, part->n);
	finish(run, i, is_value, "");
}

static bool take_answer(struct run *run, const struct skv_store_part *part)
{
	switch (run->call->op) {
	case SKV_STORE_GET:
		if (part->type != SKV_STORE_STRING && part->type != SKV_STORE_NIL)
			return false;
		take_value(run, part);
		return true;
	case SKV_STORE_SET:
		if (part->type == SKV_STORE_NIL
		            ? !run->call->only_new
		            : part->type != SKV_STORE_STATUS || part->n != 2 || memcmp(part->text, "OK", 2) != 0)
			return false;
		finish(run, land(run), part->type == SKV_STORE_STATUS, "");
		return true;
	default:
		if (part->type != SKV_STORE_INTEGER || part->integer < 0 || part->integer > 1)
			return false;
		finish(run, land(run), (int)part->integer, "");
		return true;
	}
}

static int take_part(void *ctx, const struct skv_store_part *part, char why[SKV_STORE_TEXT])
{
	struct run *run = ctx;
	struct skv_store_node *node = run->node;
	struct key *k;

	if (is_empty(&node->in_flight))
		return skv_store_refuse(why, -EPROTO, "the server sent a reply without a request");
	k = &run->keys[node->in_flight.first];
	if (k->asking == ASKED && (part->type == SKV_STORE_STATUS || part->type == SKV_STORE_ERROR)) {
		k->asking = NOT_ASKING; /* if the server refused ASKING, its reply to the key's command is an error */
		return 0;
	}
	if (k->asking != ASKED && part->type == SKV_STORE_ERROR && part->depth == 0)
		return take_error(run, part, why);
	if (k->asking == ASKED || part->depth || !take_answer(run, part))
		return skv_store_refuse(why, -EPROTO, "the server sent a reply of a type that was not asked for");
	skv_store_conn_succeeded(node->conn);
	return 0;
}

/* ---- commands -------------------------------------------------------------------------------------- */

static int command(const struct skv_store_call *call, uint32_t i, struct skv_store_conn *conn)
{
	static const char *const names[] = {"GET", "SET", "EXISTS", "DEL", "TOUCH"};
	const struct skv_store_bytes *value = call->op == SKV_STORE_SET ? &call->values[i] : NULL,
				     *key = &call->keys[i];
	const char *args[6] = {names[call->op], key->n ? key->at : ""};
	size_t bytes[6] = {strlen(names[call->op]), key->n};
	char ttl[24];
	int n = 2;

	if (value) {
		args[n] = value->n ? value->at : "";
		bytes[n++] = value->n;
		if (call->ttl_ms) {
			args[n] = "PX";
			bytes[n++] = 2;
			args[n] = ttl;
			bytes[n++] = (size_t)snprintf(ttl, sizeof(ttl), "%llu", (unsigned long long)call->ttl_ms);
		}
		if (call->only_new) {
			args[n] = "NX";
			bytes[n++] = 2;
		}
	}
	return skv_store_conn_command(conn, n, args, bytes);
}

static bool may_send(const struct run *run)
{
	const size_t each = run->line->value_bytes > SMALLEST_VALUE ? run->line->value_bytes : SMALLEST_VALUE;

	return run->call->op != SKV_STORE_GET || run->n_in_flight == 0 ||
	       run->n_in_flight + 1 <= SKV_STORE_IN_FLIGHT / each;
}

static int send_keys(struct run *run, struct skv_store_node *node)
{
	int r = 0;

	while (r == 0 && !is_empty(&node->unsent) && skv_store_conn_has_room(node->conn) && may_send(run)) {
		const uint32_t i = node->unsent.first;
		struct key *k = &run->keys[i];

		if (k->asking == TO_ASK) {
			r = skv_store_conn_command(node->conn, 1, (const char *[]){"ASKING"}, (const size_t[]){6});
			k->asking = ASKED;
		}
		if (r == 0)
			r = command(run->call, i, node->conn);
		push(run, &node->in_flight, pop(run, &node->unsent));
		run->n_in_flight++;
	}
	return r;
}

/*
 * Sends commands to a node and receives its replies. Returns 1 if there was progress, 0 if not, or a negative errno.
 * Does not wait, except for the connection to be opened.
 */
static int serve(struct run *run, struct skv_store_node *node)
{
	int sent, got;

	if (!node->ready) {
		sent = skv_store_conn_open(node->conn, run->deadline_ns);
		if (sent < 0)
			return sent;
		skv_store_replies_expect(&node->conn->replies,
		                         run->call->op == SKV_STORE_GET ? SKV_STORE_MAX_VALUE : SKV_STORE_LINE,
		                         take_part, run);
		node->ready = true;
	}
	sent = send_keys(run, node);
	if (sent == 0)
		sent = skv_store_conn_send(node->conn);
	if (sent < 0)
		return sent;
	run->node = node;
	got = skv_store_conn_receive(node->conn, run->line->piece);
	return got < 0 ? got : sent || got;
}

/* ---- the call -------------------------------------------------------------------------------------- */

/* Appends each key to the `unsent` list of its node; fails a key that is too long or that no node has. */
static void distribute(struct run *run)
{
	const struct skv_store_call *call = run->call;
	struct skv_store_cluster *c = run->line->cluster;

	for (uint32_t i = 0; i < call->n; i++) {
		const struct skv_store_bytes *key = &call->keys[i];
		struct skv_store_node *node = NULL;

		if (key->n > SKV_STORE_MAX_KEY ||
		    (call->op == SKV_STORE_SET && call->values[i].n > SKV_STORE_MAX_VALUE)) {
			finish(run, i, -EMSGSIZE, "store: a key or a value is too long");
			continue;
		}
		node = skv_store_cluster_find(c, c->map ? skv_store_hash_slot(key->at, key->n) : 0);
		if (node) {
			push(run, &node->unsent, i);
			continue;
		}
		c->stale = true;
		finish(run, i, -EHOSTDOWN, "store: no node of the cluster has the key's hash slot");
	}
}

/* Waits until a server can be read from or written to, or the deadline has passed. Returns 0 or -ENOMEM. */
static int wait_for_servers(struct run *run)
{
	const struct skv_store_cluster *c = run->line->cluster;
	uint32_t n = 0;

	if (run->n_polls < c->n_nodes) {
		struct pollfd *polls = realloc(run->polls, c->n_nodes * sizeof(*polls));

		if (!polls)
			return -ENOMEM;
		run->polls = polls;
		run->n_polls = c->n_nodes;
	}
	for (uint32_t i = 0; i < c->n_nodes; i++)
		if (has_work(c->nodes[i]))
			run->polls[n++] = (struct pollfd){.fd = c->nodes[i]->conn->socket.fd,
			                                  .events = skv_store_conn_events(c->nodes[i]->conn)};
	(void)skv_store_wait(run->polls, n, run->deadline_ns);
	return 0;
}

static void fail_all(struct run *run, int error, const char *why)
{
	struct skv_store_cluster *c = run->line->cluster;

	for (uint32_t i = 0; i < c->n_nodes; i++)
		if (has_work(c->nodes[i])) {
			snprintf(c->nodes[i]->conn->why, SKV_STORE_TEXT, "%s", why);
			fail_node(run, c->nodes[i], error);
		}
}

static void exchange(struct run *run)
{
	struct skv_store_cluster *c = run->line->cluster;
	int r = 0;

	while (run->n_left > 0) {
		bool done = false;

		for (uint32_t i = 0; i < c->n_nodes; i++)
			if (has_work(c->nodes[i])) {
				r = serve(run, c->nodes[i]);
				if (r < 0)
					fail_node(run, c->nodes[i], r);
				done = done || r != 0;
			}
		r = done ? 0 : wait_for_servers(run);
		if (r < 0)
			fail_all(run, r, "no memory for a call");
		else if (skv_now_ns() >= run->deadline_ns)
			fail_all(run, -ETIMEDOUT, "the server gave no answer in time");
	}
}

int skv_store_call_run(struct skv_store_line *line, const struct skv_store_call *call, uint32_t timeout_ms)
{
	struct skv_store_cluster *c = line->cluster;
	struct run run = {.line = line, .call = call, .deadline_ns = skv_now_ns() + timeout_ms * MS, .n_left = call->n};
	int r;

	line->why[0] = '\0';
	run.keys = calloc((size_t)call->n + 1, sizeof(*run.keys));
	r = run.keys ? skv_store_cluster_refresh(c, run.deadline_ns, line->why)
	             : skv_store_refuse(line->why, -ENOMEM, "store: no memory for a call");
	if (r < 0) {
		for (uint32_t i = 0; i < call->n; i++)
			call->status[i] = r;
		free(run.keys);
		return call->n ? r : 0;
	}
	line->why[0] = '\0';
	for (uint32_t i = 0; i < c->n_nodes; i++)
		c->nodes[i]->ready = false;
	distribute(&run);
	exchange(&run);
	free(run.polls);
	free(run.keys);
	return run.error;
}
