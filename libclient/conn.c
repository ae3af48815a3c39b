/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/conn.c - the socket to the daemon.
 *
 *   - The socket never blocks. What it does not take is queued and sent with the next turn, so a
 *     daemon that is stopped cannot stop a step.
 *   - Replies are matched by serial. A thread that waits for one polls without the lock held; one thread
 *     polls at a time and deals with whatever comes, the others wait on `news`.
 *   - A request that timed out is not forgotten: the daemon will carry it out. Its reply is undone when
 *     it comes (orphan_undo), so the daemon keeps nothing of it.
 *   - The connection ends once, with a reason; every request then completes with it. Memory stays mapped.
 */
#include "libclient/conn.h"

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
#include "libclient/error.h"

/* A packet that waits for room in the socket. */
struct out {
	struct out *next;
	size_t bytes;
	char packet[];
};

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

static int conn_post_locked(struct skv_client *c, uint16_t type, const void *body, size_t bytes, struct request **ret);

/* ---- requests -------------------------------------------------------------------------------- */

struct request *request_free(struct request *r)
{
	if (!r)
		return NULL;
	for (unsigned i = 0; i < SKV_WIRE_MAX_FDS; i++)
		skv_close_fd(r->fds[i]);
	free(r->body);
	free(r);
	return NULL;
}

static struct request *request_new(struct skv_client *c, uint16_t type, const void *body, size_t bytes)
{
	struct request *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	if (++c->serial == 0)
		c->serial = 1; /* 0 is for the daemon's notices */
	r->serial = c->serial;
	r->type = type;
	/* every request about a session begins with its id */
	if (type != SKV_MSG_HELLO && type != SKV_MSG_OPEN && type != SKV_MSG_SEGMENT_ACK &&
	    bytes >= sizeof(uint32_t))
		memcpy(&r->session, body, sizeof(uint32_t));
	if (type == SKV_MSG_OPEN)
		r->device = ((const struct skv_msg_open *)body)->model.device;
	memset(r->fds, 0xff, sizeof(r->fds));
	return r;
}

/*
 * The reply to a request that no thread waits for any more: undo what the daemon did. A refusal of pages
 * given back means that the two sides disagree about who has them, and then no page is safe to use.
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
	case SKV_MSG_SEQ_FORK:
	case SKV_MSG_SEQ_ATTACH: {
		const struct skv_msg_seq_ok *ok = r->body;
		struct skv_msg_seq m = {.session = r->session, .seq = ok->seq};

		conn_post_locked(c, r->type == SKV_MSG_SEQ_ATTACH ? SKV_MSG_SEQ_DETACH : SKV_MSG_SEQ_DROP, &m,
		                 sizeof(m), NULL);
		break;
	}
	case SKV_MSG_LEASE_GET: {
		const struct skv_msg_runs *runs = r->body;

		if (runs->n_runs > 0)
			conn_post_locked(c, SKV_MSG_LEASE_PUT, runs,
			                 sizeof(*runs) + runs->n_runs * sizeof(struct skv_wire_run), NULL);
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
	c->broken = error;
	while (c->requests) {
		struct request *r = c->requests;

		c->unclosed |= r->type == SKV_MSG_CLOSE;
		c->requests = r->next;
		r->error = error;
		snprintf(r->text, sizeof(r->text), "%s", c->broken_text);
		r->done = true;
		if (r->orphan)
			request_free(r);
	}
	while (c->out) {
		struct out *o = c->out;

		c->out = o->next;
		free(o);
	}
	c->out_end = &c->out;
	pthread_cond_broadcast(&c->news);
}

/* ---- sending --------------------------------------------------------------------------------- */

/* true: the packet is gone, or the connection is. */
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
		/* what the daemon said before it went is still to be read: leave the verdict to receiving */
		if (errno != EPIPE && errno != ECONNRESET)
			conn_break_locked(c, -errno, "cannot send to the daemon: %s", strerror(errno));
		return true;
	}
}

static void send_queue(struct skv_client *c)
{
	while (c->out && send_packet(c, c->out->packet, c->out->bytes)) {
		struct out *o = c->out;

		if (!o)
			return; /* breaking the connection emptied the queue */
		c->out = o->next;
		if (!c->out)
			c->out_end = &c->out;
		free(o);
	}
}

static int conn_post_locked(struct skv_client *c, uint16_t type, const void *body, size_t bytes,
                     struct request **ret)
{
	struct skv_msg_header h = {.length = (uint32_t)(sizeof(h) + bytes), .type = type};
	struct request *r;
	struct out *o;

	if (c->broken)
		return error_set(c->broken, "%s", c->broken_text);
	r = request_new(c, type, body, bytes);
	o = malloc(sizeof(*o) + h.length);
	if (!r || !o) {
		free(r);
		free(o);
		return error_set(-ENOMEM, "out of memory");
	}
	h.serial = r->serial;
	*o = (struct out){.bytes = h.length};
	memcpy(o->packet, &h, sizeof(h));
	memcpy(o->packet + sizeof(h), body, bytes);
	*c->out_end = o;
	c->out_end = &o->next;

	r->orphan = !ret;
	r->next = c->requests;
	c->requests = r;
	if (ret)
		*ret = r;
	send_queue(c);
	return 0;
}

int conn_post(struct skv_client *c, uint16_t type, const void *body, size_t bytes, struct request **ret)
{
	int r;

	pthread_mutex_lock(&c->lock);
	r = conn_post_locked(c, type, body, bytes, ret);
	pthread_mutex_unlock(&c->lock);
	return r;
}

int conn_close_session_locked(struct skv_client *c, uint32_t session, struct pool *pool, struct request **ret)
{
	struct skv_msg_session m = {.session = session};
	struct request *r;
	int e = conn_post_locked(c, SKV_MSG_CLOSE, &m, sizeof(m), &r);

	if (e < 0)
		return e;
	r->pool = pool;
	r->orphan = !ret;
	if (ret)
		*ret = r;
	return 0;
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
		pool_map_early(&c->pools, r->pool, &fault);
		break_if(c, &fault);
	} else {
		snprintf(r->text, sizeof(r->text), "%s", fault.text);
		conn_post_locked(c, SKV_MSG_CLOSE, &(struct skv_msg_session){.session = ok->session},
		                 sizeof(struct skv_msg_session), NULL);
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
	if (!r || (h->type != SKV_MSG_ERROR && h->type != (r->type | SKV_REPLY))) {
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
	r->done = true;
	/*
	 * A pool is known from the first OPEN to the last CLOSE as the daemon saw them. Replies come in
	 * that order, so it is kept here and not by the thread that waits for them.
	 */
	if (r->type == SKV_MSG_OPEN && !r->error)
		open_pool(c, r);
	else if (r->type == SKV_MSG_CLOSE)
		pool_close(&c->pools, r->pool);
	if (r->orphan) {
		orphan_undo(c, r);
		request_free(r);
	} else {
		pthread_cond_broadcast(&c->news);
	}
}

/* A segment comes or goes. True: the message is dealt with. */
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
			conn_post_locked(c, SKV_MSG_SEGMENT_ACK, h + 1, sizeof(struct skv_msg_segment), NULL);
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
	if (h->type == SKV_MSG_ERROR && h->serial == 0) {
		const struct skv_msg_error *e = (const void *)(h + 1);

		conn_break_locked(c, -e->error, "the daemon ends the connection: %s", e->text);
		return;
	}
	complete(c, h, fds);
}

/* Everything that has come. Lock held, and no other thread polling. */
static void receive(struct skv_client *c)
{
	while (!c->broken) {
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
			conn_break_locked(c, -ECONNRESET, "the daemon closed the connection");
			return;
		}
		for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h))
			if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) {
				n_fds = (unsigned)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
				memcpy(fds, CMSG_DATA(h), n_fds * sizeof(int));
			}
		if (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
			conn_break_locked(c, -EPROTO, "a message of the daemon was truncated");
		else
			dispatch(c, (size_t)n, fds, n_fds);
		for (unsigned i = 0; i < n_fds; i++)
			skv_close_fd(fds[i]);
	}
}

static void turn_locked(struct skv_client *c)
{
	/* a thread that polls takes what comes as soon as it does; taking it here would leave that thread waiting */
	if (!c->polling)
		receive(c);
	send_queue(c);
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
	r = !c->out && !c->broken;
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
		request_free(r);
	}
	pthread_mutex_unlock(&c->lock);
}

/* Wait until there is something to do, at most until `deadline`. Lock held on entry and return. */
static void sleep_locked(struct skv_client *c, int64_t deadline)
{
	if (c->polling) {
		struct timespec ts = {.tv_sec = deadline / 1000, .tv_nsec = deadline % 1000 * 1000000};

		pthread_cond_timedwait(&c->news, &c->lock, &ts);
		return;
	}
	struct pollfd p = {.fd = c->fd, .events = (short)(POLLIN | (c->out ? POLLOUT : 0))};
	int64_t left = deadline - now_ms();

	c->polling = true;
	pthread_mutex_unlock(&c->lock);
	/* at most a tenth of a second: another thread may queue a packet meanwhile */
	poll(&p, 1, left < 0 ? 0 : left > 100 ? 100 : (int)left);
	pthread_mutex_lock(&c->lock);
	c->polling = false;
	turn_locked(c);
	pthread_cond_broadcast(&c->news);
}

int conn_wait(struct skv_client *c, struct request *r, int64_t deadline)
{
	bool done;

	pthread_mutex_lock(&c->lock);
	turn_locked(c);
	while (!r->done && now_ms() < deadline)
		sleep_locked(c, deadline);
	done = r->done;
	pthread_mutex_unlock(&c->lock);
	return done ? 0 : -ETIMEDOUT;
}

int conn_call(struct skv_client *c, uint16_t type, const void *body, size_t bytes, struct request **ret)
{
	struct request *r;
	int e = conn_post(c, type, body, bytes, &r);

	if (e < 0)
		return e;
	if (conn_wait(c, r, conn_deadline(c)) < 0) {
		conn_orphan(c, r);
		return error_set(-ETIMEDOUT, "the daemon did not answer %s within %u ms", skv_wire_name(type),
		            atomic_load(&c->timeout_ms));
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
	 * The daemon settles everything of ours when it sees the end, and then hangs up too: wait for
	 * that, so that the next holder finds our named sequences free.
	 */
	if (c->welcome && !c->broken && shutdown(c->fd, SHUT_WR) == 0)
		while (!c->broken && now_ms() < deadline)
			sleep_locked(c, deadline);
	conn_break_locked(c, -ECONNRESET, "the connection was closed"); /* frees what waited for an answer */
	pthread_mutex_unlock(&c->lock);
}
