/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/conn/conn.c - sends requests to the daemon over a socket, and handles its messages.
 *
 *   - The socket never blocks. A packet that the socket does not take is sent in a later turn, so a stopped daemon
 *     cannot stop a step.
 *   - Replies are matched to requests by serial. Threads wait for replies without the lock. One thread at a time polls
 *     and handles all messages; other threads wait on the condition variable `news`.
 *   - The daemon carries out requests even if no thread waits any more. Their replies are undone: orphan_undo().
 *   - If the connection is lost because the daemon died, reconnect.c connects to the next daemon.
 *   - A connection that breaks gets one error, with which all its requests complete. Memory stays mapped.
 */
#include "libclient/conn/conn.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "common/fd.h"
#include "libclient/conn/reconnect.h"
#include "libclient/error.h"

int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

int64_t conn_deadline(const struct skv_client *c)
{
	return now_ms() + atomic_load_explicit(&c->timeout_ms, memory_order_relaxed);
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Returns true if the packet was sent or the connection broke. */
static bool send_packet(struct skv_client *c, const void *packet, size_t bytes)
{
	for (;;) {
		if (send(c->fd, packet, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
			if (c->debug)
				skv_wire_dump(stderr, "client >", packet, bytes, 0);
			return true;
		}
		if (errno == EINTR)
			continue;
		if (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM)
			return false;
		/* receive() decides about the connection, after the daemon's last messages */
		if (errno != EPIPE && errno != ECONNRESET)
			conn_break_locked(c, -errno, "cannot send to the daemon: %s", strerror(errno));
		return true;
	}
}

void conn_send_queue(struct skv_client *c)
{
	while (c->link != LINK_LOST && c->unsent && !c->unsent->waits) {
		if (!send_packet(c, c->unsent->packet, c->unsent->packet->length) || c->broken)
			return; /* if the connection broke, the queue is empty */
		c->unsent->sent = true;
		c->unsent = c->unsent->next;
	}
}

void conn_append(struct skv_client *c, struct request *r)
{
	r->next = NULL;
	*c->requests_end = r;
	c->requests_end = &r->next;
	if (!c->unsent)
		c->unsent = r;
}

static int prepare_locked(struct skv_client *c, uint16_t type, const void *body, size_t bytes, struct request **ret)
{
	struct request *r;

	if (c->broken)
		return error_set(c->broken, "%s", c->broken_text);
	r = request_new(&c->serial, type, body, bytes);
	if (!r)
		return error_set(-ENOMEM, "out of memory");
	*ret = r;
	return 0;
}

int conn_prepare(struct skv_client *c, uint16_t type, const void *body, size_t bytes, struct request **ret)
{
	int e;

	pthread_mutex_lock(&c->lock);
	e = prepare_locked(c, type, body, bytes, ret);
	pthread_mutex_unlock(&c->lock);
	return e;
}

static void post_prepared_locked(struct skv_client *c, struct request *r)
{
	r->waits = c->link != LINK_UP;
	conn_append(c, r);
	if (c->broken)
		conn_fail_all(c);
	else
		conn_send_queue(c);
}

void conn_post_prepared(struct skv_client *c, struct request *r)
{
	pthread_mutex_lock(&c->lock);
	post_prepared_locked(c, r);
	pthread_mutex_unlock(&c->lock);
}

static int post_locked(struct skv_client *c, uint16_t type, const void *body, size_t bytes, struct request **ret)
{
	struct request *r = NULL;
	int e = prepare_locked(c, type, body, bytes, &r);

	if (e < 0)
		return e;
	r->orphan = !ret;
	if (ret)
		*ret = r;
	post_prepared_locked(c, r);
	return 0;
}

int conn_post(struct skv_client *c, uint16_t type, const void *body, size_t bytes, struct request **ret)
{
	int r;

	pthread_mutex_lock(&c->lock);
	r = post_locked(c, type, body, bytes, ret);
	pthread_mutex_unlock(&c->lock);
	return r;
}

int conn_close_session_locked(struct skv_client *c, uint32_t session, struct pool *pool, struct request **ret)
{
	struct skv_msg_session m = {.session = session};
	struct request *r = NULL;
	int e = post_locked(c, SKV_MSG_CLOSE, &m, sizeof(m), &r);

	if (e < 0) {
		conn_break_locked(c, e, "out of memory to close a session");
		return e;
	}
	r->pool = pool;
	r->orphan = !ret;
	if (ret)
		*ret = r;
	return 0;
}

/* ---- undoing, breaking ----------------------------------------------------------------------- */

/* Record that the pages of a LEASE_GET reply are given back. */
static void unlease(struct skv_client *c, const struct skv_msg_runs *m)
{
	const struct held_session *s = held_session(&c->held, m->session);
	const struct skv_wire_run *run = (const void *)(m + 1);

	for (uint32_t i = 0; s && i < m->n_runs; i++)
		for (uint32_t page = run[i].first; page < run[i].first + run[i].count; page++)
			pool_unlease(s->pool, page);
}

/*
 * Post a message that the daemon must get. If posting fails, the connection breaks: daemon and client would disagree.
 */
static void tell(struct skv_client *c, uint16_t type, const void *body, size_t bytes)
{
	if (post_locked(c, type, body, bytes, NULL) < 0)
		conn_break_locked(c, -ENOMEM, "out of memory to tell the daemon what it has to know");
}

/*
 * Undo what the daemon did for a request, because no thread waits for the reply. If the daemon refuses pages that are
 * given back, the connection breaks: daemon and client disagree about the pages' owner, so no page is safe.
 */
static void orphan_undo(struct skv_client *c, struct request *r)
{
	if (c->broken)
		return;
	if (r->error) {
		if (r->type == SKV_MSG_LEASE_PUT || r->type == SKV_MSG_SEQ_RELEASE)
			conn_break_locked(c, -EPROTO, "the daemon refused %s: %s", skv_wire_name(r->type),
			                  r->text);
		if (r->then_close)
			conn_close_session_locked(c, r->session, r->pool, NULL);
		return;
	}
	switch (r->type) {
	case SKV_MSG_OPEN: {
		const struct skv_msg_open_ok *ok = r->body;

		conn_close_session_locked(c, ok->session, r->pool, NULL);
		break;
	}
	case SKV_MSG_SEQ_NEW:
	case SKV_MSG_PREFIX_NEW:
	case SKV_MSG_SEQ_FORK:
	case SKV_MSG_SEQ_ATTACH: {
		const struct skv_msg_seq_ok *ok = r->body;
		struct skv_msg_seq m = {.session = r->session, .seq = ok->seq};

		tell(c, r->type == SKV_MSG_SEQ_ATTACH ? SKV_MSG_SEQ_DETACH : SKV_MSG_SEQ_DROP, &m, sizeof(m));
		break;
	}
	case SKV_MSG_LEASE_GET: {
		const struct skv_msg_runs *runs = r->body;

		unlease(c, runs);
		if (runs->n_runs > 0)
			tell(c, SKV_MSG_LEASE_PUT, runs, sizeof(*runs) + runs->n_runs * sizeof(struct skv_wire_run));
		if (r->then_close)
			conn_close_session_locked(c, r->session, r->pool, NULL);
		break;
	}
	default:
		break;
	}
}

void conn_break_locked(struct skv_client *c, int error, const char *fmt, ...)
{
	va_list ap;

	if (c->broken)
		return;
	va_start(ap, fmt);
	vsnprintf(c->broken_text, sizeof(c->broken_text), fmt, ap);
	va_end(ap);
	/* a shortage is an error of one call, but `broken` is the error of all later calls */
	c->broken = c->welcome && skv_is_shortage(error) ? -ECONNRESET : error;
	conn_fail_all(c);
}

void conn_fail_all(struct skv_client *c)
{
	while (c->requests) {
		struct request *r = c->requests;

		c->unclosed |= r->type == SKV_MSG_CLOSE;
		c->requests = r->next;
		r->error = c->broken;
		snprintf(r->text, sizeof(r->text), "%s", c->broken_text);
		r->done = true;
		if (r->orphan)
			request_free(r);
	}
	c->requests_end = &c->requests;
	c->unsent = NULL;
	pthread_cond_broadcast(&c->news);
}

/* ---- receiving ------------------------------------------------------------------------------- */

static void break_if(struct skv_client *c, const struct pool_fault *fault)
{
	if (fault->error)
		conn_break_locked(c, fault->error, "%s", fault->text);
}

static void open_pool(struct skv_client *c, struct request *r)
{
	const struct skv_msg_open_ok *ok = r->body;
	struct pool_fault fault = {0};

	r->error = pool_open(&c->pools, ok, r->device, &r->pool, &fault);
	if (r->error == 0) {
		break_if(c, &fault);
	} else {
		snprintf(r->text, sizeof(r->text), "%s", fault.text);
		tell(c, SKV_MSG_CLOSE, &(struct skv_msg_session){.session = ok->session}, sizeof(struct skv_msg_session));
	}
}

void conn_finish(struct skv_client *c, struct request *r)
{
	r->done = true;
	/*
	 * The pool is opened and closed here, in the order of the daemon's replies, not by the threads that wait for
	 * these replies: a pool must be known from the first OPEN to the last CLOSE as the daemon saw them.
	 */
	if (r->type == SKV_MSG_OPEN && !r->error)
		open_pool(c, r);
	if (!held_update(&c->held, r))
		conn_break_locked(c, -ENOMEM, "out of memory for a reply of the daemon");
	if (r->type == SKV_MSG_CLOSE)
		pool_close(&c->pools, r->pool);
	if (r->orphan) {
		orphan_undo(c, r);
		request_free(r);
	} else {
		reconnect_pin_reply(c, r);
		pthread_cond_broadcast(&c->news);
	}
}

static void complete(struct skv_client *c, const struct skv_msg_header *h, int *fds)
{
	const void *body = h + 1;
	size_t bytes = h->length - sizeof(*h);
	struct request **p = &c->requests, *r;

	while (*p && (*p)->serial != h->serial)
		p = &(*p)->next;
	r = *p;
	if (!r || !r->sent || (h->type != SKV_MSG_ERROR && h->type != (r->type | SKV_REPLY))) {
		conn_break_locked(c, -EPROTO, "the daemon answered with %s to a request that was not made",
		                  skv_wire_name(h->type));
		return;
	}
	if (h->type == SKV_MSG_ERROR) {
		const struct skv_msg_error *e = body;

		r->error = -e->error;
		snprintf(r->text, sizeof(r->text), "%s", e->text);
	} else if (bytes > 0) {
		r->body = malloc(bytes);
		if (!r->body) {
			conn_break_locked(c, -ENOMEM, "out of memory for a reply of the daemon");
			return;
		}
		memcpy(r->body, body, bytes);
	}
	for (unsigned i = 0; i < h->n_fds; i++) {
		r->fds[i] = fds[i];
		fds[i] = -1;
	}
	*p = r->next;
	if (!*p)
		c->requests_end = p;
	if (r->internal)
		reconnect_answered(c, r);
	else
		conn_finish(c, r);
}

/* Handle the daemon's notice that it is working on a long request: wait longer for the reply. */
static void wait_notice(struct skv_client *c, const struct skv_msg_wait *m)
{
	for (struct request *r = c->requests; r; r = r->next)
		if (r->serial == m->serial)
			r->until_ms = conn_deadline(c);
}

/* Handle the announcement or withdrawal of a segment. Returns false if the message is neither. */
static bool segment_notice(struct skv_client *c, const struct skv_msg_header *h, int *fds)
{
	struct pool_fault fault = {0};

	switch (h->type) {
	case SKV_MSG_SEGMENT: {
		struct skv_msg_segment_ipc m = {.segment = *(const struct skv_msg_segment *)(h + 1)};

		pool_segment_add(&c->pools, &m, fds[0], &fault);
		fds[0] = -1;
		break;
	}
	case SKV_MSG_SEGMENT_IPC:
		pool_segment_add(&c->pools, (const void *)(h + 1), -1, &fault);
		break;
	case SKV_MSG_SEGMENT_GONE:
		pool_segment_gone(&c->pools, (const void *)(h + 1), &fault);
		if (!fault.error)
			tell(c, SKV_MSG_SEGMENT_ACK, h + 1, sizeof(struct skv_msg_segment));
		break;
	default:
		return false;
	}
	break_if(c, &fault);
	return true;
}

static void dispatch(struct skv_client *c, size_t bytes, int *fds, unsigned n_fds)
{
	const struct skv_msg_header *h = (const void *)c->packet;
	const char *wrong = skv_wire_check(c->packet, bytes, n_fds, false);

	if (c->debug)
		skv_wire_dump(stderr, "client <", c->packet, bytes, n_fds);
	if (wrong) {
		conn_break_locked(c, -EPROTO, "the daemon sent a malformed message: %s", wrong);
		return;
	}
	if (segment_notice(c, h, fds))
		return;
	if (h->type == SKV_MSG_WAIT) {
		wait_notice(c, (const void *)(h + 1));
		return;
	}
	if (h->type == SKV_MSG_ERROR && h->serial == 0) {
		const struct skv_msg_error *e = (const void *)(h + 1);

		conn_break_locked(c, -e->error, "the daemon ends the connection: %s", e->text);
		return;
	}
	complete(c, h, fds);
}

/* Handle all messages that have arrived. The lock is held, and no other thread polls. */
static void receive(struct skv_client *c)
{
	while (!c->broken && c->link != LINK_LOST) {
		union {
			struct cmsghdr align;
			char buf[CMSG_SPACE(sizeof(int) * SKV_WIRE_MAX_FDS)];
		} control;
		struct iovec iov = {.iov_base = c->packet, .iov_len = SKV_WIRE_MAX};
		struct msghdr m = {
		        .msg_iov = &iov,
		        .msg_iovlen = 1,
		        .msg_control = control.buf,
		        .msg_controllen = sizeof(control.buf),
		};
		int fds[SKV_WIRE_MAX_FDS];
		unsigned n_fds = 0;
		ssize_t n = recvmsg(c->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n < 0 && errno != ECONNRESET) {
			conn_break_locked(c, -errno, "cannot receive from the daemon: %s", strerror(errno));
			return;
		}
		if (n <= 0) {
			reconnect_begin(c);
			return;
		}
		for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h))
			if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) {
				n_fds = (unsigned)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
				memcpy(fds, CMSG_DATA(h), n_fds * sizeof(int));
			}
		if (m.msg_flags & MSG_CTRUNC)
			conn_break_locked(c, -EMFILE, SKV_FD_CUT_OFF);
		else if (m.msg_flags & MSG_TRUNC)
			conn_break_locked(c, -EPROTO, "a message of the daemon was truncated");
		else
			dispatch(c, (size_t)n, fds, n_fds);
		for (unsigned i = 0; i < n_fds; i++)
			skv_close_fd(fds[i]);
	}
}

static void turn_locked(struct skv_client *c)
{
	/* a polling thread handles messages itself: it would not wake up for one that was received here */
	if (!c->polling)
		receive(c);
	reconnect_turn(c);
	conn_send_queue(c);
}

void conn_turn(struct skv_client *c)
{
	pthread_mutex_lock(&c->lock);
	turn_locked(c);
	pthread_mutex_unlock(&c->lock);
}

bool conn_all_sent(struct skv_client *c)
{
	bool r;

	pthread_mutex_lock(&c->lock);
	r = !c->unsent && !c->broken && c->link == LINK_UP;
	pthread_mutex_unlock(&c->lock);
	return r;
}

bool request_done(struct skv_client *c, const struct request *r)
{
	bool done;

	pthread_mutex_lock(&c->lock);
	done = r->done;
	pthread_mutex_unlock(&c->lock);
	return done;
}

void conn_orphan(struct skv_client *c, struct request *r)
{
	if (!r)
		return;
	pthread_mutex_lock(&c->lock);
	r->orphan = true;
	if (r->done) {
		orphan_undo(c, r);
		reconnect_unpin_reply(c, r);
		request_free(r);
	}
	pthread_mutex_unlock(&c->lock);
}

void conn_acted(struct skv_client *c, struct request *r)
{
	pthread_mutex_lock(&c->lock);
	reconnect_unpin_reply(c, r);
	pthread_mutex_unlock(&c->lock);
}

/* Wait until there is something to do, at most until `deadline`. The lock is held on entry and on return. */
static void sleep_locked(struct skv_client *c, int64_t deadline)
{
	if (c->polling) {
		struct timespec ts = {.tv_sec = deadline / 1000, .tv_nsec = deadline % 1000 * 1000000};

		pthread_cond_timedwait(&c->news, &c->lock, &ts);
		return;
	}
	struct pollfd p = {.fd = c->fd, .events = (short)(POLLIN | (c->unsent && !c->unsent->waits ? POLLOUT : 0))};
	const int64_t left = deadline - now_ms(), most = c->link == LINK_LOST ? RECONNECT_EVERY_MS : 100;

	c->polling = true;
	pthread_mutex_unlock(&c->lock);
	/* at most a tenth of a second, because meanwhile another thread may queue a packet */
	poll(&p, 1, left < 0 ? 0 : left > most ? (int)most : (int)left);
	pthread_mutex_lock(&c->lock);
	c->polling = false;
	turn_locked(c);
	pthread_cond_broadcast(&c->news);
}

static int64_t later(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

int conn_wait(struct skv_client *c, struct request *r, int64_t deadline)
{
	bool done;

	pthread_mutex_lock(&c->lock);
	turn_locked(c);
	while (!r->done && now_ms() < (deadline = later(deadline, r->until_ms)) && !reconnect_is_vain(c))
		sleep_locked(c, deadline);
	done = r->done;
	pthread_mutex_unlock(&c->lock);
	return done ? 0 : -ETIMEDOUT;
}

int conn_call(struct skv_client *c, uint16_t type, const void *body, size_t bytes, struct request **ret)
{
	struct request *r;
	int e = conn_post(c, type, body, bytes, &r);

	return e < 0 ? e : conn_answer(c, r, ret);
}

int conn_answer(struct skv_client *c, struct request *r, struct request **ret)
{
	int e;

	if (conn_wait(c, r, conn_deadline(c)) < 0) {
		e = conn_late(c, skv_wire_name(r->type));
		conn_orphan(c, r);
		return e;
	}
	if (r->error) {
		e = error_set(r->error, "%s", r->text);
		request_free(r);
		return e;
	}
	*ret = r;
	return 0;
}

void conn_hang_up(struct skv_client *c)
{
	int64_t deadline = conn_deadline(c);

	pthread_mutex_lock(&c->lock);
	/*
	 * The daemon releases everything of this client when it sees the end of the connection, and then closes its
	 * end. Wait for that, so that the next holder finds this client's named sequences free.
	 */
	c->leaving = true;
	if (c->welcome && !c->broken && c->link == LINK_UP && shutdown(c->fd, SHUT_WR) == 0)
		while (!c->broken && now_ms() < deadline)
			sleep_locked(c, deadline);
	conn_break_locked(c, -ECONNRESET, "the connection was closed"); /* completes requests without an answer */
	pthread_mutex_unlock(&c->lock);
}
