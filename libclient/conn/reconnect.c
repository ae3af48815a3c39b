/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/conn/reconnect.c - lets a client outlive its daemon and continue with the next one.
 *
 * Under a service manager that keeps the daemon's memory, the next daemon knows everything that the previous daemon had
 * confirmed. Until the client is connected to it, steps go on with the pages on lease, and no function of this file
 * waits: each turn tries to connect, sends, and handles messages that have arrived.
 *
 * The next daemon may also have given this client something of which the client was not told in time. So the client
 * names what it has, and the daemon releases the rest, by these messages:
 *
 *   RECONNECT                    the daemon knows this client, and announces memory again. No daemon knows a client
 *                                without sessions: such a client says HELLO again
 *   RECONNECT_SESSION, _SEQ      the sessions and sequences that replies gave to this client (owned.h)
 *   SEQ_DETACH, _DROP, _RELEASE  sent again if not answered; the daemon also accepts those that it had carried out
 *   RECONNECT_PAGES              the pages on lease to this client, from the pools' bitmaps
 *   RECONNECT_DONE
 *
 * All these messages are queued at one moment, when no thread is between two actions that the daemon must see as one
 * (see reconnect_pin()). After the answer to RECONNECT_DONE, requests without an answer are sent again. LEASE_PUT and
 * CLOSE then need no answer, because the client did not name the pages and sessions that they gave back.
 */
#include "libclient/conn/reconnect.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/fd.h"
#include "libclient/conn/conn.h"
#include "libclient/conn/connect.h"
#include "libclient/conn/fence.h"
#include "libclient/error.h"

#define ASK_AGAIN_MS 5000
#define VAIN_AFTER_MS 1000 /* a service manager restarts a daemon faster than this */

/* ---- lost ------------------------------------------------------------------------------------ */

/* Drop this file's own requests; all other requests wait for the next daemon. */
static void hold_back(struct skv_client *c)
{
	struct request **at = &c->requests, *r;

	while ((r = *at)) {
		if (r->internal) {
			*at = r->next;
			request_free(r);
			continue;
		}
		r->sent = false;
		r->waits = true;
		at = &r->next;
	}
	c->requests_end = at;
	c->unsent = c->requests;
}

void reconnect_begin(struct skv_client *c)
{
	if (!c->welcome || c->leaving || !fence_stands(c)) {
		conn_break_locked(c, -ECONNRESET, "the daemon closed the connection");
		return;
	}
	c->fd = skv_close_fd(c->fd);
	if (c->link == LINK_UP)
		c->lost_ms = now_ms();
	c->link = LINK_LOST;
	c->next_try_ms = 0;
	hold_back(c);
	pools_uncertain(&c->pools);
}

bool reconnect_is_vain(const struct skv_client *c)
{
	return c->link == LINK_LOST && *c->nobody && now_ms() - c->lost_ms > VAIN_AFTER_MS;
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* Append a request of this file to the list. If there is no memory for the request, the connection breaks. */
static void post(struct skv_client *c, uint16_t type, const void *body, size_t bytes)
{
	struct request *r = c->broken ? NULL : request_new(&c->serial, type, body, bytes);

	if (!r) {
		conn_break_locked(c, -ENOMEM, "out of memory to reconnect with");
		return;
	}
	r->internal = r->orphan = true;
	conn_append(c, r);
}

/* Call when all requests are in the list again: send them, or complete them if the connection has broken meanwhile. */
static void send_or_fail(struct skv_client *c)
{
	if (c->broken)
		conn_fail_all(c);
	else
		conn_send_queue(c);
}

/* Append to the list the requests from `later` on, which wait until the daemon knows what this client has. */
static void append_waiting(struct skv_client *c, struct request *later)
{
	while (later) {
		struct request *r = later;

		later = r->next;
		r->waits = true;
		conn_append(c, r);
	}
}

static struct request *take_all(struct skv_client *c)
{
	struct request *all = c->requests;

	c->requests = NULL;
	c->requests_end = &c->requests;
	c->unsent = NULL;
	return all;
}

static void ask(struct skv_client *c)
{
	struct skv_msg_reconnect m = {.hello = {.version_min = SKV_PROTO_VERSION, .version_max = SKV_PROTO_VERSION}, .client = c->id};
	struct request *all = take_all(c);

	skv_wire_string(m.hello.program, sizeof(m.hello.program), program_invocation_short_name);
	if (c->anew)
		post(c, SKV_MSG_HELLO, &m.hello, sizeof(m.hello));
	else
		post(c, SKV_MSG_RECONNECT, &m, sizeof(m));
	append_waiting(c, all);
	send_or_fail(c);
}

void reconnect_turn(struct skv_client *c)
{
	int64_t now = (c->link == LINK_LOST || c->link == LINK_ASKED) && !c->broken ? now_ms() : 0;
	int e;

	if (c->link == LINK_ASKED && now - c->asked_ms > ASK_AGAIN_MS)
		/* the daemon died after it accepted, and another process has its end of the socket open */
		reconnect_begin(c);
	if (now < c->next_try_ms || c->link != LINK_LOST || c->broken)
		return;
	if (!fence_stands(c)) { /* the daemon ended the connection before it exited */
		conn_break_locked(c, -ECONNRESET, "the daemon closed the connection");
		return;
	}
	c->next_try_ms = now + RECONNECT_EVERY_MS;
	e = dial(c->path, &c->fd);
	snprintf(c->nobody, sizeof(c->nobody), "%s", e < 0 && e != -EAGAIN ? skv_last_error() : "");
	if (e == -EPERM) {
		conn_break_locked(c, e, "%s", c->nobody);
	} else if (e == 0) {
		c->link = LINK_ASKED;
		c->asked_ms = now;
		ask(c);
	}
}

/* ---- naming ---------------------------------------------------------------------------------- */

/* Does the request give something back, and is it sent again before the daemon knows what this client has? */
static bool is_giving(const struct request *r)
{
	return r->type == SKV_MSG_SEQ_DETACH || r->type == SKV_MSG_SEQ_DROP || r->type == SKV_MSG_SEQ_RELEASE;
}

/* Is the request settled by the naming itself, because what it gives back is then not named? */
static bool is_settled(const struct request *r)
{
	return r->type == SKV_MSG_LEASE_PUT || r->type == SKV_MSG_CLOSE || r->type == SKV_MSG_SEGMENT_ACK;
}

/* Does no thread wait for the request, so that its result is not wanted any more? */
static bool is_unwanted(const struct request *r)
{
	return r->orphan && !is_giving(r) && !is_settled(r) && r->type != SKV_MSG_POLICY_ACK;
}

static void forget(struct skv_client *c, struct request *r)
{
	if (r->then_close) {
		held_close(&c->held, r->session);
		pool_close(&c->pools, r->pool);
	}
	request_free(r);
}

/* Remove and free the unwanted requests. Returns the list of the remaining requests. */
static struct request *sift(struct skv_client *c, struct request *all)
{
	for (struct request **at = &all; *at;) {
		struct request *r = *at;

		r->settled = is_settled(r);
		if (!is_unwanted(r)) {
			at = &r->next;
			continue;
		}
		*at = r->next;
		forget(c, r);
	}
	return all;
}

static bool is_closing(const struct request *all, uint32_t session)
{
	for (; all; all = all->next)
		if ((all->type == SKV_MSG_CLOSE || all->then_close) && all->session == session)
			return true;
	return false;
}

/* Does this client have no sessions except those that it is closing? */
static bool has_nothing(const struct skv_client *c)
{
	for (size_t i = 0; i < c->held.n_sessions; i++)
		if (!is_closing(c->requests, c->held.sessions[i].id))
			return false;
	return true;
}

static bool is_given(const struct request *all, uint32_t seq)
{
	for (; all; all = all->next)
		if ((all->type == SKV_MSG_SEQ_DETACH || all->type == SKV_MSG_SEQ_DROP) &&
		    ((const struct skv_msg_seq *)(all->packet + 1))->seq == seq)
			return true;
	return false;
}

static void name_held(struct skv_client *c, const struct request *all)
{
	const struct held *h = &c->held;

	for (size_t i = 0; i < h->n_sessions; i++)
		if (!is_closing(all, h->sessions[i].id))
			post(c, SKV_MSG_RECONNECT_SESSION, &(struct skv_msg_session){.session = h->sessions[i].id}, sizeof(struct skv_msg_session));
	for (size_t i = 0; i < h->n_seqs; i++)
		if (!is_closing(all, h->seqs[i].session) && !is_given(all, h->seqs[i].id))
			post(c, SKV_MSG_RECONNECT_SEQ, &(struct skv_msg_seq){.session = h->seqs[i].session, .seq = h->seqs[i].id},
			     sizeof(struct skv_msg_seq));
}

/* Move the requests that give sequences or their pages back to the list. Returns the other requests. */
static struct request *give_again(struct skv_client *c, struct request *all)
{
	for (struct request **at = &all; *at;) {
		struct request *r = *at;

		if (!is_giving(r)) {
			at = &r->next;
			continue;
		}
		*at = r->next;
		r->waits = false;
		conn_append(c, r);
	}
	return all;
}

/* Name the pages on lease in the pool, in as many messages as they need. */
static void name_pages_of(struct skv_client *c, const struct pool *p, uint32_t session)
{
	struct {
		struct skv_msg_runs m;
		struct skv_wire_run runs[SKV_WIRE_MAX_RUNS];
	} packet;
	uint32_t pages;
	uint64_t at = 0;

	do {
		packet.m = (struct skv_msg_runs){.session = session};
		for (pages = 0; packet.m.n_runs < SKV_WIRE_MAX_RUNS && pages < SKV_CALL_PAGES; packet.m.n_runs++) {
			struct skv_wire_run *run = &packet.runs[packet.m.n_runs];

			if (!pool_next_lease(p, &at, SKV_CALL_PAGES - pages, run))
				break;
			pages += run->count;
		}
		if (pages > 0)
			post(c, SKV_MSG_RECONNECT_PAGES, &packet, sizeof(packet.m) + packet.m.n_runs * sizeof(packet.runs[0]));
	} while (pages > 0 && !c->broken);
}

/* Name the pages on lease of every pool, under one session of the pool. */
static void name_pages(struct skv_client *c, const struct request *all)
{
	for (const struct pool *p = c->pools.first; p; p = p->next)
		for (size_t i = 0; i < c->held.n_sessions; i++)
			if (c->held.sessions[i].pool == p && !is_closing(all, c->held.sessions[i].id)) {
				name_pages_of(c, p, c->held.sessions[i].id);
				break;
			}
}

/* Tell the daemon all sessions, sequences and pages that this client has now. */
static void name_all(struct skv_client *c)
{
	const struct skv_msg_client done = {.client = c->id};
	struct request *all = sift(c, take_all(c));

	c->link = LINK_NAMING;
	name_held(c, all);
	all = give_again(c, all);
	name_pages(c, all);
	post(c, SKV_MSG_RECONNECT_DONE, &done, sizeof(done));
	append_waiting(c, all);
	send_or_fail(c);
}

void reconnect_pin(struct skv_client *c)
{
	pthread_mutex_lock(&c->lock);
	c->pins++;
	pthread_mutex_unlock(&c->lock);
}

static void unpin(struct skv_client *c)
{
	if (--c->pins == 0 && c->link == LINK_READY && !c->broken)
		name_all(c);
}

void reconnect_unpin(struct skv_client *c)
{
	pthread_mutex_lock(&c->lock);
	unpin(c);
	pthread_mutex_unlock(&c->lock);
}

void reconnect_pin_reply(struct skv_client *c, struct request *r)
{
	r->pinned = !r->error && (r->type == SKV_MSG_SEQ_NEW || r->type == SKV_MSG_PREFIX_NEW || r->type == SKV_MSG_SEQ_ATTACH || r->type == SKV_MSG_SEQ_FORK);
	c->pins += r->pinned;
}

void reconnect_unpin_reply(struct skv_client *c, struct request *r)
{
	if (!r->pinned)
		return;
	r->pinned = false;
	unpin(c);
}

/* ---- answered -------------------------------------------------------------------------------- */

/*
 * Map the new daemon's control page in place of the previous one, at the same address: other threads may be reading it.
 */
static int take_control(struct skv_client *c, struct request *r)
{
	const struct skv_msg_hello_ok *ok = r->body;
	void *page, *moved;
	int e;

	if (ok->version != SKV_PROTO_VERSION || (ok->client != c->id && !c->anew) || ok->control_bytes != c->control_bytes ||
	    skv_client_row_of(ok->client) >= (c->control_bytes - sizeof(*c->control)) / sizeof(c->control->fence[0]))
		return -EPROTO;
	e = skv_map_fd(r->fds[0], c->control_bytes, PROT_READ, true, &page);
	if (e < 0)
		return e;
	moved = mremap(page, c->control_bytes, c->control_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)(uintptr_t)c->control);
	if (moved == MAP_FAILED)
		return -errno;
	madvise(moved, c->control_bytes, MADV_DONTFORK);
	return 0;
}

/* The client is reconnected: send the requests that waited, and complete those that need no answer. */
static void go_on(struct skv_client *c)
{
	struct request *all = take_all(c);

	c->link = LINK_UP;
	pools_forget_early(&c->pools); /* of a session that this client was not told of; the daemon has closed it */
	while (all) {
		struct request *r = all;

		all = r->next;
		r->waits = false;
		if (r->settled)
			conn_finish(c, r);
		else
			conn_append(c, r);
	}
	conn_send_queue(c);
}

/* The daemon sees a new client. What requests wanted to give back or close is gone with the old client: settle them. */
static void begin_anew(struct skv_client *c, uint32_t id)
{
	struct request *all = sift(c, take_all(c));

	c->anew = false;
	c->id = id;
	for (struct request *r = all; r; r = r->next)
		r->settled |= is_giving(r);
	append_waiting(c, all);
	go_on(c);
}

static void welcomed(struct skv_client *c, struct request *r)
{
	int e = take_control(c, r);

	if (e < 0) {
		conn_break_locked(c, skv_is_shortage(e) ? e : -EPROTO, "the next daemon's control page cannot take the place of the one before: %s", strerror(-e));
		return;
	}
	if (c->anew) {
		begin_anew(c, ((const struct skv_msg_hello_ok *)r->body)->client);
		return;
	}
	c->link = LINK_READY;
	if (c->pins == 0)
		name_all(c);
}

void reconnect_answered(struct skv_client *c, struct request *r)
{
	if (r->error && r->type == SKV_MSG_RECONNECT && has_nothing(c)) {
		c->anew = true;
		reconnect_begin(c);
	} else if (r->error)
		conn_break_locked(c, r->type == SKV_MSG_RECONNECT ? -ECONNRESET : -EPROTO, "the daemon is another, and refuses %s: %s",
		                  skv_wire_name(r->type), r->text);
	else if (r->type == SKV_MSG_RECONNECT || r->type == SKV_MSG_HELLO)
		welcomed(c, r);
	else if (r->type == SKV_MSG_RECONNECT_DONE)
		go_on(c);
	request_free(r);
}

int conn_late(struct skv_client *c, const char *what)
{
	int e;

	pthread_mutex_lock(&c->lock);
	if (c->link == LINK_LOST && *c->nobody)
		e = error_set(-ECONNRESET, "%s: the daemon is gone, and there is no other: %s", what, c->nobody);
	else
		e = error_set(-ETIMEDOUT, "the daemon did not answer %s within %u ms", what, atomic_load(&c->timeout_ms));
	pthread_mutex_unlock(&c->lock);
	return e;
}
