/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/ipc/conn.c - one connection. See conn.h for what it promises.
 *
 * Life. A connection is open from accept until skv_conn_close(). Closing tells the owner at once,
 * shuts the socket down, cancels what runs in the ring and starts one last operation, a timer of
 * nothing. Each operation's end looks whether it was the last one, and if so frees the struct. So
 * closing never frees, and a callback of the loop may use its connection until it returns.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/fd.h"
#include "daemon/ipc/ipc-priv.h"
#include "daemon/sys/log.h"

#define LOW_MARK (256u << 10) /* queued bytes above which nothing is received */
#define CHARGE_OF_FD 512u     /* an fd in the queue weighs as much as so many bytes */

static unsigned take_fds(struct msghdr *msg, int fds[SKV_WIRE_MAX_FDS])
{
	unsigned n = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		size_t count;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			if (n < SKV_WIRE_MAX_FDS)
				fds[n++] = fd;
			else
				skv_close_fd(fd);
		}
	}
	return n;
}

static void close_fds(const int *fds, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		skv_close_fd(fds[i]);
}

static void dump(struct skv_conn *conn, const char *way, const void *packet, size_t bytes, unsigned n_fds)
{
	char prefix[sizeof(conn->name) + 8], *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);

	if (!f)
		return;
	snprintf(prefix, sizeof(prefix), "%s %s", conn->name, way);
	skv_wire_dump(f, prefix, packet, bytes, n_fds);
	fclose(f);
	text[strcspn(text, "\n")] = 0;
	skv_log(LOG_DEBUG, "%s", text);
	free(text);
}

/* A duplicate of `fd` to be sent, or -1. */
static int borrow_slot(struct skv_ipc *ipc, int fd)
{
	if (!ipc->n_spare)
		return fcntl(fd, F_DUPFD_CLOEXEC, 3);
	return dup3(fd, ipc->spare[--ipc->n_spare], O_CLOEXEC);
}

static void return_slot(struct skv_ipc *ipc, int fd)
{
	if (ipc->n_spare < SKV_IPC_SLOTS && dup3(ipc->listen_fd, fd, O_CLOEXEC) >= 0)
		ipc->spare[ipc->n_spare++] = fd;
	else
		close(fd);
}

static void out_free(struct skv_ipc *ipc, struct skv_conn_out *out)
{
	for (unsigned i = 0; i < out->n_fds; i++)
		return_slot(ipc, out->fds[i]);
	free(out);
}

/* Free it if it is closed and nothing of it is left in the loop. */
static void conn_free_when_idle(struct skv_conn *conn)
{
	if (conn->open || skv_op_running(&conn->recv_op) || skv_op_running(&conn->send_op) ||
	    skv_op_running(&conn->death_op) || skv_op_running(&conn->hello_op) ||
	    skv_op_running(&conn->linger_op) || skv_op_running(&conn->end_op))
		return;
	skv_close_fd(conn->peer.pidfd);
	skv_close_fd(conn->fd);
	free(conn);
}

static void ended(struct skv_op *op, int res)
{
	(void)res;
	conn_free_when_idle(SKV_OP_OWNER(op, struct skv_conn, end_op));
}

void skv_conn_close(struct skv_conn *conn, int level, const char *why)
{
	struct skv_ipc *ipc = conn->ipc;
	struct skv_conn_out *out;

	if (!conn->open)
		return;
	conn->open = false;
	if (conn->prev)
		conn->prev->next = conn->next;
	else
		ipc->conns = conn->next;
	if (conn->next)
		conn->next->prev = conn->prev;
	ipc->n_conns--;
	if (why && level == LOG_DEBUG)
		skv_log(level, "%s, uid %u: %s", conn->name, (unsigned)conn->peer.uid, why);
	else if (why)
		skv_log_peer(level, "%s, uid %u: disconnected: %s", conn->name, (unsigned)conn->peer.uid,
		             why);
	ipc->ops->gone(ipc->ctx, conn);

	(void)shutdown(conn->fd, SHUT_RDWR);
	while ((out = conn->out)) {
		conn->out = out->next;
		out_free(ipc, out);
	}
	skv_op_cancel(ipc->loop, &conn->recv_op);
	skv_op_cancel(ipc->loop, &conn->send_op);
	skv_op_cancel(ipc->loop, &conn->death_op);
	skv_op_cancel(ipc->loop, &conn->hello_op);
	skv_op_cancel(ipc->loop, &conn->linger_op);
	skv_op_timer(ipc->loop, &conn->end_op, 0, ended);
}

static void lingered(struct skv_op *op, int res)
{
	struct skv_conn *conn = SKV_OP_OWNER(op, struct skv_conn, linger_op);

	if (res == 0)
		skv_conn_close(conn, LOG_WARNING, "hung up, and its process goes on");
	conn_free_when_idle(conn);
}

/* The peer's end of the socket is closed. */
static void hung_up(struct skv_conn *conn)
{
	struct skv_ipc *ipc = conn->ipc;

	if (!conn->open || conn->lingering)
		return;
	if (ipc->limits.linger_ns == 0 || !skv_op_running(&conn->death_op) ||
	    !ipc->ops->lingers(ipc->ctx, conn)) {
		skv_conn_close(conn, LOG_DEBUG, "hung up");
		return;
	}
	conn->lingering = true;
	skv_op_timer(ipc->loop, &conn->linger_op, ipc->limits.linger_ns, lingered);
}

/*
 * The peer's author wants to know; whether the peer reads it is its own affair, so this does not wait.
 * The connection ends in any case.
 */
static void malformed(struct skv_conn *conn, const char *what)
{
	struct {
		struct skv_msg_header header;
		struct skv_msg_error body;
	} last = {{.length = sizeof(last), .type = SKV_MSG_ERROR}, {.error = EPROTO}};
	char why[256];

	conn->ipc->counters.malformed++;
	skv_wire_string(last.body.text, sizeof(last.body.text), what);
	(void)send(conn->fd, &last, sizeof(last), MSG_DONTWAIT | MSG_NOSIGNAL);
	snprintf(why, sizeof(why), "malformed message: %s", what);
	skv_conn_close(conn, LOG_WARNING, why);
}

/* ---- in ---- */

static void received(struct skv_op *op, int res);

static void receive(struct skv_conn *conn)
{
	if (!conn->open || conn->finishing || conn->lingering || skv_op_running(&conn->recv_op) ||
	    conn->out_charge > LOW_MARK)
		return;
	conn->recv_iov = (struct iovec){conn->packet, sizeof(conn->packet)};
	conn->recv_msg = (struct msghdr){
		.msg_iov = &conn->recv_iov,
		.msg_iovlen = 1,
		.msg_control = &conn->recv_control,
		.msg_controllen = sizeof(conn->recv_control.space),
	};
	skv_op_recvmsg(conn->ipc->loop, &conn->recv_op, conn->fd, &conn->recv_msg, received);
}

/* A packet arrived whole: check its form, pass it on. Takes nothing of `fds` but what the owner took. */
static void dispatch(struct skv_conn *conn, size_t bytes, int *fds, unsigned n_fds)
{
	struct skv_ipc *ipc = conn->ipc;
	struct skv_msg_header header;
	const char *what = skv_wire_check(conn->packet, bytes, n_fds, true);

	if (what) {
		malformed(conn, what);
		return;
	}
	memcpy(&header, conn->packet, sizeof(header));
	if ((header.type == SKV_MSG_HELLO) == conn->hello) {
		malformed(conn, conn->hello ? "a second HELLO" : "a request before HELLO");
		return;
	}
	if (!conn->hello)
		skv_op_cancel(ipc->loop, &conn->hello_op);
	conn->hello = true;
	ipc->counters.messages++;
	ipc->ops->message(ipc->ctx, conn, &header, conn->packet + sizeof(header), fds);
}

static void received(struct skv_op *op, int res)
{
	struct skv_conn *conn = SKV_OP_OWNER(op, struct skv_conn, recv_op);
	int fds[SKV_WIRE_MAX_FDS];
	unsigned n_fds = res >= 0 ? take_fds(&conn->recv_msg, fds) : 0;
	int flags = conn->recv_msg.msg_flags;

	if (conn->open && res >= 0 && conn->ipc->dump)
		dump(conn, "->", conn->packet, (size_t)res, n_fds);
	if (!conn->open)
		; /* only the fds are left to be closed */
	else if (res == 0 || res == -ECONNRESET)
		hung_up(conn);
	else if (res < 0)
		skv_conn_close(conn, LOG_WARNING, strerror(-res));
	else if (flags & MSG_CTRUNC)
		malformed(conn,
		          "more file descriptors than a message may carry, or than the daemon may open");
	else if (flags & MSG_TRUNC)
		malformed(conn, "longer than the longest message");
	else
		dispatch(conn, (size_t)res, fds, n_fds);
	close_fds(fds, n_fds);
	receive(conn);
	conn_free_when_idle(conn);
}

static void died(struct skv_op *op, int res)
{
	struct skv_conn *conn = SKV_OP_OWNER(op, struct skv_conn, death_op);

	if (res != -ECANCELED)
		skv_conn_close(conn, LOG_DEBUG, "its process is gone");
	conn_free_when_idle(conn);
}

static void hello_late(struct skv_op *op, int res)
{
	struct skv_conn *conn = SKV_OP_OWNER(op, struct skv_conn, hello_op);

	if (res == 0 && !conn->hello)
		skv_conn_close(conn, LOG_INFO, "no HELLO in time");
	conn_free_when_idle(conn);
}

/* ---- out ---- */

static void sent(struct skv_op *op, int res);

static void send_next(struct skv_conn *conn)
{
	struct skv_conn_out *out = conn->out;

	if (!conn->open || conn->sending)
		return;
	if (!out) {
		if (conn->finishing)
			skv_conn_close(conn, LOG_DEBUG, NULL);
		return;
	}
	conn->sending = out;
	conn->out = out->next;
	if (!conn->out)
		conn->out_end = &conn->out;
	conn->send_iov = (struct iovec){out->packet, out->bytes};
	conn->send_msg = (struct msghdr){.msg_iov = &conn->send_iov, .msg_iovlen = 1};
	if (out->n_fds) {
		struct cmsghdr *c = (struct cmsghdr *)conn->send_control.space;

		memset(&conn->send_control, 0, sizeof(conn->send_control));
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(out->n_fds * sizeof(int));
		memcpy(CMSG_DATA(c), out->fds, out->n_fds * sizeof(int));
		conn->send_msg.msg_control = &conn->send_control;
		conn->send_msg.msg_controllen = CMSG_SPACE(out->n_fds * sizeof(int));
	}
	skv_op_sendmsg(conn->ipc->loop, &conn->send_op, conn->fd, &conn->send_msg, sent);
}

static void sent(struct skv_op *op, int res)
{
	struct skv_conn *conn = SKV_OP_OWNER(op, struct skv_conn, send_op);

	conn->out_charge -= conn->sending->charge;
	out_free(conn->ipc, conn->sending);
	conn->sending = NULL;
	if (res == -EPIPE || res == -ECONNRESET)
		hung_up(conn);
	else if (res < 0)
		skv_conn_close(conn, LOG_WARNING, strerror(-res));
	send_next(conn);
	receive(conn);
	conn_free_when_idle(conn);
}

/* The packet's memory, with header and fds filled in, not yet queued; NULL after closing the connection. */
static struct skv_conn_out *out_new(struct skv_conn *conn, uint16_t type, uint32_t serial, size_t bytes,
                                    const int *fds, unsigned n_fds)
{
	struct skv_conn_out *out = malloc(sizeof(*out) + bytes);
	struct skv_msg_header header = {
		.length = (uint32_t)bytes, .type = type, .n_fds = (uint16_t)n_fds, .serial = serial};

	if (!out) {
		skv_conn_close(conn, LOG_ERR, "no memory for its answer");
		return NULL;
	}
	memcpy(out->packet, &header, sizeof(header));
	out->next = NULL;
	out->bytes = bytes;
	out->charge = sizeof(*out) + bytes + n_fds * CHARGE_OF_FD;
	for (out->n_fds = 0; out->n_fds < n_fds; out->n_fds++) {
		int fd = borrow_slot(conn->ipc, fds[out->n_fds]);

		if (fd < 0) {
			skv_conn_close(conn, LOG_ERR, "no file descriptors left for its answer");
			out_free(conn->ipc, out);
			return NULL;
		}
		out->fds[out->n_fds] = fd;
	}
	return out;
}

static void enqueue(struct skv_conn *conn, struct skv_conn_out *out)
{
	if (conn->ipc->dump)
		dump(conn, "<-", out->packet, out->bytes, out->n_fds);
	conn->out_charge += out->charge;
	*conn->out_end = out;
	conn->out_end = &out->next;
	send_next(conn);
}

void skv_conn_send(struct skv_conn *conn, uint16_t type, uint32_t serial, const void *body, size_t body_bytes,
                   const void *tail, size_t tail_bytes, const int *fds, unsigned n_fds)
{
	struct skv_conn_out *out;

	if (!conn->open || conn->finishing)
		return;
	if (serial == 0 && conn->out_charge > conn->ipc->limits.queue_bytes) {
		skv_conn_close(conn, LOG_WARNING, "it does not read what it is sent");
		return;
	}
	out = out_new(conn, type, serial, sizeof(struct skv_msg_header) + body_bytes + tail_bytes, fds,
	              n_fds);
	if (!out)
		return;
	if (body_bytes)
		memcpy(out->packet + sizeof(struct skv_msg_header), body, body_bytes);
	if (tail_bytes)
		memcpy(out->packet + sizeof(struct skv_msg_header) + body_bytes, tail, tail_bytes);
	enqueue(conn, out);
}

void skv_conn_send_text(struct skv_conn *conn, uint16_t type, uint32_t serial, const char *text, size_t len)
{
	const size_t most = SKV_WIRE_MAX - sizeof(struct skv_msg_header) - sizeof(struct skv_msg_text);

	do {
		size_t part = len < most ? len : most;
		struct skv_msg_text body = {.length = (uint32_t)part, .more = len > part};

		skv_conn_send(conn, type, serial, &body, sizeof(body), text, part, NULL, 0);
		text += part;
		len -= part;
	} while (len);
}

void skv_conn_verror(struct skv_conn *conn, uint32_t serial, int error, const char *fmt, va_list ap)
{
	struct skv_msg_error body = {.error = error};
	char text[SKV_TEXT_MAX];

	vsnprintf(text, sizeof(text), fmt, ap);
	skv_wire_string(body.text, sizeof(body.text), text);
	skv_conn_send(conn, SKV_MSG_ERROR, serial, &body, sizeof(body), NULL, 0, NULL, 0);
}

void skv_conn_error(struct skv_conn *conn, uint32_t serial, int error, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	skv_conn_verror(conn, serial, error, fmt, ap);
	va_end(ap);
}

void skv_conn_finish(struct skv_conn *conn)
{
	conn->finishing = true;
	send_next(conn);
}

/* ---- beginning, looking ---- */

/* May the peer have one more connection? NULL, or why not. */
static const char *refuse(const struct skv_ipc *ipc, uid_t uid)
{
	uint32_t n = 0;

	if (ipc->n_conns >= ipc->limits.connections)
		return "the daemon has its most connections";
	for (const struct skv_conn *c = ipc->conns; c; c = c->next)
		n += c->peer.uid == uid;
	return n >= ipc->limits.account_connections ? "its user has the most connections it may have" : NULL;
}

void skv_conn_begin(struct skv_ipc *ipc, int fd)
{
	struct skv_conn *conn;
	struct skv_peer peer;
	const char *why;
	int r = skv_peer_get(fd, &peer);

	ipc->counters.accepted++;
	if (r < 0) {
		if (r != -ESRCH)
			skv_log_peer(LOG_ERR, "cannot read the peer's credentials: %s", strerror(-r));
		skv_close_fd(fd);
		return;
	}
	why = refuse(ipc, peer.uid);
	conn = why ? NULL : calloc(1, sizeof(*conn));
	if (!conn) {
		ipc->counters.refused++;
		skv_log_peer(LOG_WARNING, "pid %d, uid %u: refused: %s", (int)peer.pid, (unsigned)peer.uid,
		             why ? why : "out of memory");
		skv_close_fd(peer.pidfd);
		skv_close_fd(fd);
		return;
	}
	conn->ipc = ipc;
	conn->fd = fd;
	conn->peer = peer;
	conn->number = ++ipc->last_number;
	conn->open = true;
	conn->out_end = &conn->out;
	snprintf(conn->name, sizeof(conn->name), "pid %d", (int)peer.pid);
	conn->next = ipc->conns;
	if (conn->next)
		conn->next->prev = conn;
	ipc->conns = conn;
	ipc->n_conns++;
	if (peer.pidfd >= 0)
		skv_op_poll(ipc->loop, &conn->death_op, peer.pidfd, POLLIN, died);
	skv_op_timer(ipc->loop, &conn->hello_op, ipc->limits.hello_ns, hello_late);
	receive(conn);
}

struct skv_conn *skv_conn_next(struct skv_conn *conn)
{
	return conn->next;
}

const struct skv_peer *skv_conn_peer(const struct skv_conn *conn)
{
	return &conn->peer;
}

int skv_conn_fd(const struct skv_conn *conn)
{
	return conn->fd;
}

uint64_t skv_conn_number(const struct skv_conn *conn)
{
	return conn->number;
}

bool skv_conn_open(const struct skv_conn *conn)
{
	return conn->open;
}

uint32_t skv_conn_client(const struct skv_conn *conn)
{
	return conn->client;
}

void skv_conn_set_client(struct skv_conn *conn, uint32_t client, const char *program)
{
	conn->client = client;
	snprintf(conn->name, sizeof(conn->name), "%s[%d]", program, (int)conn->peer.pid);
}

const char *skv_conn_name(const struct skv_conn *conn)
{
	return conn->name;
}
