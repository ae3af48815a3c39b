/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/conn.h"

#include <errno.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/clock.h"

#define MS UINT64_C(1000000) /* ns */
#define BACKOFF_FIRST 100u   /* ms of delay after the first failure */
#define BACKOFF_MAX 5000u
#define MAX_ARGS 8
#define LARGE (16u << 10) /* bytes; a larger command is not copied into the batch */

struct skv_store_conn *skv_store_conn_new(const struct skv_store_config *config, struct skv_store_tls *tls,
                                          const struct skv_store_address *a)
{
	struct skv_store_conn *c = calloc(1, sizeof(*c));

	if (c) {
		c->config = config;
		c->tls = tls;
		c->address = *a;
		c->socket = (struct skv_store_socket)SKV_STORE_SOCKET_NULL;
	}
	return c;
}

static void close_it(struct skv_store_conn *c)
{
	skv_store_socket_close(&c->socket);
	skv_store_replies_free(&c->replies);
	redisFreeCommand(c->large);
	c->large = NULL;
	c->n_batch = c->n_large = c->n_sent = 0;
}

struct skv_store_conn *skv_store_conn_free(struct skv_store_conn *c)
{
	if (c) {
		close_it(c);
		skv_store_resolver_free(&c->resolver);
		explicit_bzero(c->batch, sizeof(c->batch)); /* AUTH put the password there */
		free(c);
	}
	return NULL;
}

bool skv_store_conn_is_open(const struct skv_store_conn *c)
{
	return c->socket.fd >= 0;
}

void skv_store_conn_down(struct skv_store_conn *c)
{
	char was[SKV_STORE_TEXT];
	const bool v6 = strchr(c->address.host, ':');

	close_it(c);
	c->backoff_ms = c->backoff_ms ? 2 * c->backoff_ms : BACKOFF_FIRST;
	if (c->backoff_ms > BACKOFF_MAX)
		c->backoff_ms = BACKOFF_MAX;
	c->retry_ns = skv_now_ns() + c->backoff_ms * MS;
	memcpy(was, c->why, sizeof(was));
	if (c->address.port)
		skv_store_refuse(c->why, 0, "%s%.*s%s:%u: %.*s", v6 ? "[" : "", 64, c->address.host, v6 ? "]" : "",
		                 c->address.port, 170, was);
	else
		skv_store_refuse(c->why, 0, "%.*s: %.*s", 64, c->address.host, 180, was);
}

void skv_store_conn_succeeded(struct skv_store_conn *c)
{
	c->backoff_ms = 0;
}

/* ---- commands -------------------------------------------------------------------------------------- */

bool skv_store_conn_has_room(const struct skv_store_conn *c)
{
	return !c->large && c->n_batch <= SKV_STORE_BATCH - 2 * LARGE; /* room for a command and ASKING before it */
}

int skv_store_conn_command(struct skv_store_conn *c, int n, const char **args, const size_t *bytes)
{
	char *command;
	const long long len = redisFormatCommandArgv(&command, n, args, bytes);

	if (len < 0)
		return skv_store_refuse(c->why, -ENOMEM, "no memory for a command");
	if (len > (long long)LARGE) {
		c->large = command;
		c->n_large = (size_t)len;
		return 0;
	}
	memcpy(c->batch + c->n_batch, command, (size_t)len);
	c->n_batch += (size_t)len;
	redisFreeCommand(command);
	return 0;
}

int skv_store_conn_send(struct skv_store_conn *c)
{
	const size_t all = c->n_batch + c->n_large;
	const bool in_batch = c->n_sent < c->n_batch;
	ssize_t n;

	if (all == 0)
		return 0;
	n = in_batch ? skv_store_socket_write(&c->socket, c->batch + c->n_sent, c->n_batch - c->n_sent, c->why)
	             : skv_store_socket_write(&c->socket, c->large + (c->n_sent - c->n_batch), all - c->n_sent,
	                                         c->why);
	if (n < 0)
		return n == -EAGAIN ? 0 : (int)n;
	c->n_sent += (size_t)n;
	if (c->n_sent == all) {
		redisFreeCommand(c->large);
		c->large = NULL;
		c->n_batch = c->n_large = c->n_sent = 0;
	}
	return 1;
}

int skv_store_conn_receive(struct skv_store_conn *c, char *piece)
{
	ssize_t n = skv_store_socket_read(&c->socket, piece, SKV_STORE_PIECE, c->why);
	int r;

	if (n < 0)
		return n == -EAGAIN ? 0 : (int)n;
	r = skv_store_replies_feed(&c->replies, piece, (size_t)n, c->why);
	if (r == 0)
		do
			r = skv_store_replies_next(&c->replies, c->why);
		while (r == 1);
	return r < 0 ? r : 1;
}

short skv_store_conn_events(const struct skv_store_conn *c)
{
	return (short)(c->socket.read_events | (c->n_batch + c->n_large > 0 ? c->socket.write_events : 0));
}

/* ---- single commands ------------------------------------------------------------------------------- */

/* A command of skv_store_conn_ask(), to which exactly one reply is expected. */
struct question {
	skv_store_part_fn fn;
	void *ctx;
	uint32_t n_replies;
};

static int count_reply(void *ctx, const struct skv_store_part *part, char why[SKV_STORE_TEXT])
{
	struct question *q = ctx;

	if (part->depth == 0 && q->n_replies++)
		return skv_store_refuse(why, -EPROTO, "the server sent a reply without a request");
	return q->fn(q->ctx, part, why);
}

static int wait_for_reply(struct skv_store_conn *c, const struct question *q, uint64_t deadline_ns)
{
	char *piece = malloc(SKV_STORE_PIECE);
	int r = piece ? 0 : skv_store_refuse(c->why, -ENOMEM, "no memory for a reply"), sent;

	/*
	 * the reply is complete when its first part has arrived and the parser is between replies (has_part is false)
	 */
	while (r >= 0 && (q->n_replies == 0 || c->replies.has_part)) {
		struct pollfd p = {.fd = c->socket.fd};

		sent = skv_store_conn_send(c);
		r = sent < 0 ? sent : skv_store_conn_receive(c, piece);
		if (r < 0)
			break;
		p.events = skv_store_conn_events(c);
		if (r == 0 && sent == 0)
			r = skv_store_wait(&p, 1, deadline_ns);
		if (r < 0 || skv_now_ns() >= deadline_ns)
			r = skv_store_refuse(c->why, -ETIMEDOUT, "the server gave no answer in time");
	}
	free(piece);
	return r < 0 ? r : 0;
}

int skv_store_conn_ask(struct skv_store_conn *c, int n, const char **args, skv_store_part_fn fn, void *ctx,
                       uint64_t deadline_ns)
{
	struct question q = {fn, ctx, 0};
	size_t bytes[MAX_ARGS];
	int r;

	for (int i = 0; i < n; i++)
		bytes[i] = strlen(args[i]);
	skv_store_replies_expect(&c->replies, SKV_STORE_LINE, count_reply, &q);
	r = skv_store_conn_command(c, n, args, bytes);
	return r < 0 ? r : wait_for_reply(c, &q, deadline_ns);
}

/* ---- opening --------------------------------------------------------------------------------------- */

static int expect_ok(void *ctx, const struct skv_store_part *part, char why[SKV_STORE_TEXT])
{
	const char *command = ctx;

	if (part->type == SKV_STORE_STATUS && part->n == 2 && memcmp(part->text, "OK", 2) == 0)
		return 0;
	if (part->type == SKV_STORE_ERROR)
		return skv_store_refuse(why, -EACCES, "%s: the server says \"%.*s\"", command,
		                        part->n < 128 ? (int)part->n : 128, part->text);
	return skv_store_refuse(why, -EPROTO, "%s: got a reply of another type than a status", command);
}

static int introduce(struct skv_store_conn *c, uint64_t deadline_ns)
{
	const struct skv_store_config *f = c->config;
	const char *with_user[] = {"AUTH", f->user, f->password}, *without[] = {"AUTH", f->password};
	char db[16];
	int r = 0;

	if (f->password[0])
		r = f->user[0] ? skv_store_conn_ask(c, 3, with_user, expect_ok, (void *)"AUTH", deadline_ns)
		               : skv_store_conn_ask(c, 2, without, expect_ok, (void *)"AUTH", deadline_ns);
	if (r == 0 && f->db) {
		snprintf(db, sizeof(db), "%u", f->db);
		r = skv_store_conn_ask(c, 2, (const char *[]){"SELECT", db}, expect_ok, (void *)"SELECT", deadline_ns);
	}
	return r;
}

/* Returns whether the connection is open and has no input. Called while no reply is outstanding: input is an error. */
static bool is_usable(struct skv_store_conn *c)
{
	char byte;

	return skv_store_conn_is_open(c) && skv_store_socket_read(&c->socket, &byte, 1, c->why) == -EAGAIN;
}

int skv_store_conn_open(struct skv_store_conn *c, uint64_t deadline_ns)
{
	const uint64_t now = skv_now_ns(), own = now + c->config->connect_ms * MS;
	int r;

	if (is_usable(c))
		return 0;
	close_it(c);
	if (c->backoff_ms && now < c->retry_ns)
		return -EHOSTDOWN;
	deadline_ns = own < deadline_ns ? own : deadline_ns;
	r = skv_store_socket_open(&c->socket, &c->address, &c->resolver, c->tls, c->config->tls_name, deadline_ns,
	                             c->why);
	if (r == 0 && skv_store_replies_init(&c->replies) < 0)
		r = skv_store_refuse(c->why, -ENOMEM, "no memory for a connection");
	if (r == 0)
		r = introduce(c, deadline_ns);
	if (r < 0)
		skv_store_conn_down(c);
	return r;
}
