/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/ipc/conn.c - one connection. See conn.h for what it promises.
 *
 * Life. A connection is open from accept until skv_conn_close(). Closing tells the owner at once,
 * shuts the socket down, cancels what runs in the ring and starts one last operation, a timer of
 * nothing. Each operation's end looks whether it was the last one; then the socket is closed and the struct
 * freed. So closing never frees, and a callback of the loop may use its connection until it returns.
 *
 * Descriptors of clients. Messages are peeked at before they are received (rights.h); the first that carries
 * descriptors ends the connection. A socket with such messages in it is closed by a worker thread of the ring, and
 * counts as a connection of its user until then: nobody can have more of them under way than connections.
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

#define MARK (256u << 10) /* queued bytes above which nothing is received, and no notice comes */
#define CHARGE_OF_FD 4096u    /* an fd in the queue weighs as much as so many bytes */

static void close_fds(struct skv_conn *conn, const int *fds, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (fds[i] >= 0)
			skv_loop_close_fd(conn->ipc->loop, fds[i]);
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
	if (ipc->n_spare < SKV_IPC_SLOTS && dup3(ipc->doors[SKV_DOOR_CLIENTS].fd, fd, O_CLOEXEC) >= 0)
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

/* Nothing that waits to be sent, or will, is of use any more. */
static void drop_output(struct skv_conn *conn)
{
	struct skv_conn_out *out;

	skv_conn_hold(conn, false);
	while ((out = conn->out)) {
		conn->out = out->next;
		conn->out_charge -= out->charge;
		out_free(conn->ipc, out);
	}
	conn->out_end = &conn->out;
	conn->unheard = true;
}

static void list_add(struct skv_conn **list, struct skv_conn *conn)
{
	conn->prev = NULL;
	conn->next = *list;
	if (conn->next)
		conn->next->prev = conn;
	*list = conn;
}

static void list_remove(struct skv_conn **list, struct skv_conn *conn)
{
	if (conn->prev)
		conn->prev->next = conn->next;
	else
		*list = conn->next;
	if (conn->next)
		conn->next->prev = conn->prev;
}

static void conn_free(struct skv_conn *conn)
{
	list_remove(&conn->ipc->ended, conn);
	conn->ipc->n_conns--;
	skv_close_fd(conn->peer.pidfd);
	free(conn);
}

static void closed(struct skv_op *op, int res)
{
	(void)res;
	conn_free(SKV_OP_OWNER(op, struct skv_conn, close_op));
}

/* If it has ended and nothing of it is left in the loop, close its socket, and free it. */
static void conn_free_when_idle(struct skv_conn *conn)
{
	if (conn->open || skv_op_running(&conn->recv_op) || skv_op_running(&conn->send_op) ||
	    skv_op_running(&conn->death_op) || skv_op_running(&conn->hello_op) ||
	    skv_op_running(&conn->end_op))
		return;
	if (skv_rights_left(conn->fd)) {
		skv_op_close(conn->ipc->loop, &conn->close_op, conn->fd, closed);
		return;
	}
	skv_close_fd(conn->fd);
	conn_free(conn);
}

static void ended(struct skv_op *op, int res)
{
	(void)res;
	conn_free_when_idle(SKV_OP_OWNER(op, struct skv_conn, end_op));
}

void skv_conn_close(struct skv_conn *conn, int level, const char *why)
{
	struct skv_ipc *ipc = conn->ipc;

	if (!conn->open)
		return;
	conn->open = false;
	list_remove(&ipc->conns, conn);
	list_add(&ipc->ended, conn);
	if (why && level == LOG_DEBUG)
		skv_log(level, "%s, uid %u: %s", conn->name, (unsigned)conn->peer.uid, why);
	else if (why)
		skv_log_peer(level, "%s, uid %u: disconnected: %s", conn->name, (unsigned)conn->peer.uid,
		             why);
	ipc->ops->gone(ipc->ctx, conn);

	(void)shutdown(conn->fd, SHUT_RDWR);
	drop_output(conn);
	skv_op_cancel(ipc->loop, &conn->recv_op);
	skv_op_cancel(ipc->loop, &conn->send_op);
	skv_op_cancel(ipc->loop, &conn->death_op);
	skv_op_cancel(ipc->loop, &conn->hello_op);
	skv_op_timer(ipc->loop, &conn->end_op, 0, ended);
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
	if (!conn->open || conn->finishing || conn->held || conn->paused || skv_op_running(&conn->recv_op) || conn->out_charge > MARK)
		return;
	conn->recv_iov = (struct iovec){conn->packet, sizeof(conn->packet)};
	conn->recv_msg = (struct msghdr){
		.msg_iov = &conn->recv_iov,
		.msg_iovlen = 1,
	};
	if (conn->operators) {
		conn->recv_msg.msg_control = &conn->recv_control;
		conn->recv_msg.msg_controllen = sizeof(conn->recv_control.space);
	}
	skv_op_recvmsg(conn->ipc->loop, &conn->recv_op, conn->fd, &conn->recv_msg, conn->operators ? 0 : MSG_PEEK,
	               received);
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
	if ((header.type == SKV_MSG_HELLO) == conn->hello && header.type != SKV_MSG_CLIENT_END) {
		malformed(conn, conn->hello ? "a second HELLO" : "a request before HELLO");
		return;
	}
	if (header.type == SKV_MSG_HELLO) {
		skv_op_cancel(ipc->loop, &conn->hello_op);
		conn->hello = true;
	}
	ipc->counters.messages++;
	ipc->ops->message(ipc->ctx, conn, &header, conn->packet + sizeof(header), fds);
}

static void received(struct skv_op *op, int res)
{
	struct skv_conn *conn = SKV_OP_OWNER(op, struct skv_conn, recv_op);
	int fds[SKV_WIRE_MAX_FDS];
	unsigned n_fds = conn->operators && res >= 0 ? skv_rights_take(conn->ipc->loop, &conn->recv_msg, fds) : 0;
	int flags = conn->recv_msg.msg_flags;
	bool forbidden = !conn->operators && res >= 0 && skv_rights_carried(&conn->recv_msg);

	if (!conn->operators && res >= 0 && !forbidden)
		(void)recv(conn->fd, NULL, 0, MSG_DONTWAIT); /* it is in our hands */
	if (conn->open && res >= 0 && conn->ipc->dump)
		dump(conn, "->", conn->packet, (size_t)res, n_fds);
	if (!conn->open)
		; /* only the fds are left to be closed */
	else if (forbidden)
		malformed(conn, "file descriptors, which the daemon takes from operators alone, on a socket of theirs");
	else if (res == -ECONNRESET)
		; /* it hung up without reading all, and what it sent before is still to come */
	else if (res == 0)
		skv_conn_close(conn, LOG_DEBUG, "hung up");
	else if (res < 0)
		skv_conn_close(conn, LOG_WARNING, strerror(-res));
	else if (flags & MSG_CTRUNC)
		malformed(conn,
		          "more file descriptors than a message may carry, or than the daemon may open");
	else if (flags & MSG_TRUNC)
		malformed(conn, "longer than the longest message");
	else
		dispatch(conn, (size_t)res, fds, n_fds);
	close_fds(conn, fds, n_fds);
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
		drop_output(conn); /* it hung up: receiving comes to that after what it sent before */
	else if (res < 0)
		skv_conn_close(conn, LOG_WARNING, strerror(-res));
	if (conn->open && conn->wants_room && conn->out_charge <= MARK / 2) {
		conn->wants_room = false;
		conn->ipc->ops->drained(conn->ipc->ctx, conn);
	}
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

static void enqueue(struct skv_conn *conn, struct skv_conn_out *out, bool reply)
{
	if (conn->ipc->dump)
		dump(conn, "<-", out->packet, out->bytes, out->n_fds);
	if (reply && conn->held) {
		*conn->kept_end = out;
		conn->kept_end = &out->next;
		return;
	}
	conn->out_charge += out->charge;
	*conn->out_end = out;
	conn->out_end = &out->next;
	send_next(conn);
}

void skv_conn_hold(struct skv_conn *conn, bool held)
{
	struct skv_conn_out *out;

	conn->held = held;
	if (held)
		return;
	while ((out = conn->kept)) {
		conn->kept = out->next;
		out->next = NULL;
		conn->out_charge += out->charge;
		*conn->out_end = out;
		conn->out_end = &out->next;
	}
	conn->kept_end = &conn->kept;
	send_next(conn);
	receive(conn);
}

void skv_conn_pause(struct skv_conn *conn, bool paused)
{
	conn->paused = paused;
	receive(conn);
}

uint64_t skv_conn_bytes(const struct skv_conn *conn)
{
	return sizeof(*conn) + conn->out_charge;
}

bool skv_conn_is_full(struct skv_conn *conn)
{
	conn->wants_room |= conn->out_charge > MARK;
	return conn->out_charge > MARK;
}

void skv_conn_send(struct skv_conn *conn, uint16_t type, uint32_t serial, const void *body, size_t body_bytes,
                   const void *tail, size_t tail_bytes, const int *fds, unsigned n_fds)
{
	struct skv_conn_out *out;

	if (!conn->open || conn->finishing || conn->unheard)
		return;
	out = out_new(conn, type, serial, sizeof(struct skv_msg_header) + body_bytes + tail_bytes, fds,
	              n_fds);
	if (!out)
		return;
	if (body_bytes)
		memcpy(out->packet + sizeof(struct skv_msg_header), body, body_bytes);
	if (tail_bytes)
		memcpy(out->packet + sizeof(struct skv_msg_header) + body_bytes, tail, tail_bytes);
	enqueue(conn, out, serial != 0);
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

static uint32_t count_of(const struct skv_conn *list, uid_t uid)
{
	uint32_t n = 0;

	for (const struct skv_conn *c = list; c; c = c->next)
		n += c->peer.uid == uid;
	return n;
}

/* May the peer have one more connection? NULL, or why not. */
static const char *refuse(const struct skv_door *door, const struct skv_peer *peer)
{
	const struct skv_ipc *ipc = door->ipc;

	if (!skv_peer_is_mapped(peer))
		return "its user has no number in the daemon's user namespace";
	if (door->operators && skv_peer_other_userns(peer))
		return "an operator is in the daemon's user namespace, and it is in another";
	if (ipc->n_conns > ipc->limits.connections) /* it is counted */
		return "the daemon has its most connections";
	return count_of(ipc->conns, peer->uid) + count_of(ipc->ended, peer->uid) >= ipc->limits.account_connections
	               ? "its user has the most connections it may have"
	               : NULL;
}

/* Never open: it may have sent descriptors already. */
static void turn_away(struct skv_conn *conn, int level, const char *why)
{
	conn->ipc->counters.refused++;
	skv_log_peer(level, "%s, uid %u: refused: %s", conn->name, (unsigned)conn->peer.uid, why);
	list_add(&conn->ipc->ended, conn);
	(void)shutdown(conn->fd, SHUT_RDWR);
	conn_free_when_idle(conn);
}

void skv_conn_begin(struct skv_door *door, int fd)
{
	struct skv_ipc *ipc = door->ipc;
	struct skv_conn *conn = calloc(1, sizeof(*conn));
	const char *why = NULL;
	int r;

	ipc->counters.accepted++;
	if (!conn) {
		ipc->counters.refused++;
		skv_log_peer(LOG_ERR, "no memory for a connection");
		skv_loop_close_fd(ipc->loop, fd);
		return;
	}
	conn->ipc = ipc;
	conn->fd = fd;
	conn->operators = door->operators;
	conn->peer.pidfd = -1;
	conn->number = ++ipc->last_number;
	conn->out_end = &conn->out;
	conn->kept_end = &conn->kept;
	ipc->n_conns++;
	r = skv_peer_get(fd, &conn->peer);
	snprintf(conn->name, sizeof(conn->name), "pid %d", (int)conn->peer.pid);
	why = r < 0 ? strerror(-r) : refuse(door, &conn->peer);
	if (why) {
		turn_away(conn, r == -ESRCH ? LOG_DEBUG : LOG_WARNING, why);
		return;
	}
	conn->open = true;
	list_add(&ipc->conns, conn);
	if (conn->peer.pidfd >= 0)
		skv_op_poll(ipc->loop, &conn->death_op, conn->peer.pidfd, POLLIN, died);
	skv_op_timer(ipc->loop, &conn->hello_op, ipc->limits.hello_ns, hello_late);
	receive(conn);
}

struct skv_conn *skv_conn_next(struct skv_conn *conn)
{
	return conn->next;
}

struct skv_peer skv_conn_take_peer(struct skv_conn *conn)
{
	struct skv_peer peer = conn->peer;

	conn->peer.pidfd = -1;
	return peer;
}

const struct skv_peer *skv_conn_peer(const struct skv_conn *conn)
{
	return &conn->peer;
}

bool skv_conn_is_operator(const struct skv_conn *conn)
{
	return conn->operators;
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
