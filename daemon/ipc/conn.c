/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/ipc/conn.c - a connection of a peer. conn.h has its guarantees.
 *
 * Life. A connection is open from accept until skv_conn_close(). That function calls gone() at once, shuts the socket
 * down, cancels the operations in the ring and starts one last operation, a timer of 0 ns. When an operation ends and
 * no other is left, the socket is closed and the struct is freed. So skv_conn_close() never frees the struct, and a
 * callback of the loop may use its connection until the callback returns.
 *
 * Descriptors of clients. Messages are peeked at before they are received (rights.h); the first message that carries
 * descriptors ends the connection.
 *
 * If messages with descriptors may wait in a socket, a worker thread of the ring closes the socket. Any other socket is
 * closed in its user's turn. Until a socket is closed it counts as a connection of its user, which slows down a client
 * that opens and closes connections in a loop.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/fd.h"
#include "daemon/ipc/ipc-priv.h"
#include "daemon/sys/log.h"

#define TURN_NS 300000u
/*
 * The kernel charges sent data that a peer has not read to the daemon, as long as the peer's socket exists. So the send
 * buffer of a socket holds two of the largest messages (the kernel doubles this number), while a buffer of the default
 * size holds 26.
 */
#define SEND_BUFFER SKV_WIRE_MAX_SENT

static void close_fds(struct skv_conn *conn, const int *fds, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (fds[i] >= 0)
			skv_loop_close_fd(conn->ipc->loop, fds[i]);
}

void skv_conn_dump(struct skv_conn *conn, const char *way, const void *packet, size_t bytes, unsigned n_fds)
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
	if (conn->user)
		skv_ipc_user_put(conn->ipc, conn->user);
	skv_close_fd(conn->peer.pidfd);
	free(conn);
}

static void closed(struct skv_op *op, int res)
{
	(void)res;
	conn_free(SKV_OP_OWNER(op, struct skv_conn, close_op));
}

/* Returns whether the connection has ended, and its last operation in the loop, too. */
static bool is_idle(const struct skv_conn *conn)
{
	return !conn->open && !skv_op_running(&conn->recv_op) && !skv_op_running(&conn->send_op) &&
	       !skv_op_running(&conn->death_op) && !skv_op_running(&conn->hello_op) && !skv_op_running(&conn->end_op);
}

void skv_conn_free_when_idle(struct skv_conn *conn)
{
	if (!is_idle(conn) || conn->queued)
		return;
	if (conn->no_rights && conn->user && !conn->ipc->closing)
		/*
		 * closing waits for the user's turn, since the kernel then frees up to a few hundred unreceived
		 * messages
		 */
		skv_ipc_queue(conn);
	else
		skv_op_close(conn->ipc->loop, &conn->close_op, conn->fd, closed);
}

static void ended(struct skv_op *op, int res)
{
	(void)res;
	skv_conn_free_when_idle(SKV_OP_OWNER(op, struct skv_conn, end_op));
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
		skv_log_peer(level, "%s, uid %u: the daemon closed the connection: %s",
		             conn->name, (unsigned)conn->peer.uid, why);
	ipc->ops->gone(ipc->ctx, conn);

	(void)shutdown(conn->fd, SHUT_RDWR);
	skv_conn_drop_output(conn);
	skv_op_cancel(ipc->loop, &conn->recv_op);
	skv_op_cancel(ipc->loop, &conn->send_op);
	skv_op_cancel(ipc->loop, &conn->death_op);
	skv_op_cancel(ipc->loop, &conn->hello_op);
	skv_op_timer(ipc->loop, &conn->end_op, 0, ended);
}

/*
 * Ends the connection of a peer that has sent a malformed message. An ERROR with the reason is sent for debugging, and
 * is lost if the socket's buffer is full.
 */
static void malformed(struct skv_conn *conn, const char *what)
{
	struct {
		struct skv_msg_header header;
		struct skv_msg_error body;
	} last = {{.length = sizeof(last), .type = SKV_MSG_ERROR}, {.error = EPROTO}};
	char why[256];

	skv_count(conn->ipc->counts, conn->peer.uid, SKV_COUNT_MALFORMED, 1);
	skv_wire_string(last.body.text, sizeof(last.body.text), what);
	(void)send(conn->fd, &last, sizeof(last), MSG_DONTWAIT | MSG_NOSIGNAL);
	snprintf(why, sizeof(why), "malformed message: %s", what);
	skv_conn_close(conn, LOG_WARNING, why);
}

/* ---- in ---- */

static void looked(struct skv_op *op, int res);

/*
 * Peeks at the next message to learn its length, and whether it carries descriptors. The message stays in the socket.
 */
void skv_conn_receive(struct skv_conn *conn)
{
	if (!conn->open || conn->finishing || conn->held || conn->paused || conn->queued ||
	    skv_op_running(&conn->recv_op) || conn->out_charge > SKV_CONN_MARK)
		return;
	conn->recv_msg = (struct msghdr){0};
	skv_op_recvmsg(conn->ipc->loop, &conn->recv_op, conn->fd, &conn->recv_msg, MSG_PEEK | MSG_TRUNC, looked);
}

/* Checks a packet that was received, and passes it to message(), which sets the `fds` that it takes to -1. */
static void dispatch(struct skv_conn *conn, size_t bytes, int *fds, unsigned n_fds)
{
	struct skv_ipc *ipc = conn->ipc;
	struct skv_msg_header header;
	const char *what = skv_wire_check(ipc->packet, bytes, n_fds, true);

	if (what) {
		malformed(conn, what);
		return;
	}
	memcpy(&header, ipc->packet, sizeof(header));
	const bool hello = header.type == SKV_MSG_HELLO || header.type == SKV_MSG_RECONNECT;

	if (hello == conn->hello && header.type != SKV_MSG_CLIENT_END) { /* CLIENT_END may come before HELLO, too */
		malformed(conn, conn->hello ? "a second HELLO" : "a request before HELLO");
		return;
	}
	if (hello) {
		skv_op_cancel(ipc->loop, &conn->hello_op);
		conn->hello = true;
	}
	skv_count(ipc->counts, conn->peer.uid, SKV_COUNT_MESSAGES, 1);
	ipc->ops->message(ipc->ctx, conn, &header, ipc->packet + sizeof(header), fds);
}

/* Receives the message that was peeked at, which fits into the buffer. Descriptors are received from operators only. */
static void take(struct skv_conn *conn)
{
	struct skv_ipc *ipc = conn->ipc;
	struct iovec iov = {ipc->packet, sizeof(ipc->packet)};
	struct skv_rights_room control;
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	int fds[SKV_WIRE_MAX_FDS];
	unsigned n_fds;
	ssize_t n;

	if (conn->operators) {
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control.space);
	}
	n = recvmsg(conn->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0 && errno == ECONNRESET)
		return; /* the peer has hung up since the peek, and the message is still there: see serve() */
	if (n < 0) {
		skv_conn_close(conn, LOG_WARNING, strerror(errno));
		return;
	}
	n_fds = conn->operators ? skv_rights_take(ipc->loop, &msg, fds) : 0;
	if (ipc->dump)
		skv_conn_dump(conn, "->", ipc->packet, (size_t)n, n_fds);
	if (msg.msg_flags & MSG_CTRUNC)
		malformed(conn,
		          "more file descriptors than a message may carry, or than the daemon may open");
	else
		dispatch(conn, (size_t)n, fds, n_fds);
	close_fds(conn, fds, n_fds);
}

static void looked(struct skv_op *op, int res)
{
	struct skv_conn *conn = SKV_OP_OWNER(op, struct skv_conn, recv_op);

	conn->seen = res;
	if (conn->open)
		skv_ipc_queue(conn);
	else
		skv_conn_free_when_idle(conn);
}

/* Handles the next message, of which a peek has told the length or an error. */
static void serve(struct skv_conn *conn)
{
	int seen = conn->seen;

	if (seen >= 0 && !conn->operators && skv_rights_carried(&conn->recv_msg))
		malformed(conn, "it has file descriptors, which only operators may send, on the operators' socket");
	else if (seen == -ECONNRESET)
		/*
		 * the peer hung up without reading all its replies; the messages that it sent before are still received
		 */
		;
	else if (seen == 0)
		skv_conn_close(conn, LOG_DEBUG, "the client closed its connection");
	else if (seen < 0)
		skv_conn_close(conn, LOG_WARNING, strerror(-seen));
	else if ((size_t)seen > sizeof(conn->ipc->packet))
		malformed(conn, "longer than the protocol's largest message");
	else
		take(conn);
	skv_conn_receive(conn);
}

bool skv_ipc_work(struct skv_ipc *ipc)
{
	uint64_t now = skv_now_ns(), end = now + TURN_NS;
	struct skv_conn *conn;

	for (; now < end && (conn = skv_ipc_next(ipc)); now = skv_now_ns()) {
		const uid_t uid = conn->peer.uid;

		if (conn->open) {
			serve(conn);
			skv_count_time(ipc->counts, uid, SKV_COUNT_MESSAGE_NS, skv_now_ns() - now);
		} else if (is_idle(conn) && conn->no_rights) {
			skv_close_fd(conn->fd);
			conn_free(conn);
		} else {
			skv_conn_free_when_idle(conn);
		}
	}
	return ipc->turns;
}

static void died(struct skv_op *op, int res)
{
	struct skv_conn *conn = SKV_OP_OWNER(op, struct skv_conn, death_op);

	if (res != -ECANCELED)
		skv_conn_close(conn, LOG_DEBUG, "the client's process has ended");
	skv_conn_free_when_idle(conn);
}

static void hello_late(struct skv_op *op, int res)
{
	struct skv_conn *conn = SKV_OP_OWNER(op, struct skv_conn, hello_op);

	if (res == 0 && !conn->hello)
		skv_conn_close(conn, LOG_INFO, "it sent no HELLO within hello-timeout");
	skv_conn_free_when_idle(conn);
}

/* ---- beginning, accessors ---- */

/* Returns NULL if the peer may have one more connection, otherwise the reason why it may not. */
static const char *refuse(const struct skv_door *door, const struct skv_conn *conn)
{
	const struct skv_ipc *ipc = door->ipc;
	const struct skv_peer *peer = &conn->peer;

	if (!skv_peer_is_mapped(peer))
		return "its UID is not mapped in the daemon's user namespace";
	if (door->operators && skv_peer_other_userns(peer))
		return "it is in another user namespace, but operators must be in the daemon's";
	/* operators can still connect, so that they can free memory */
	if (!door->operators && ipc->ops->used_up(ipc->ctx))
		return "the memory of the daemon's cgroup is nearly used up";
	if (ipc->n_conns > ipc->limits.connections) /* n_conns includes the new connection */
		return "the limit of connections to the daemon is reached (max-clients)";
	return conn->user->n_conns > ipc->limits.account_connections
	               ? "the limit of connections of its user is reached (account-clients)"
	               : NULL;
}

/*
 * Refuses a new connection. The connection is never open, but its socket is closed as any other, since its peer may
 * have sent descriptors already.
 */
static void turn_away(struct skv_conn *conn, int level, const char *why)
{
	skv_count(conn->ipc->counts, conn->peer.uid, SKV_COUNT_REFUSED, 1);
	skv_log_peer(level, "%s, uid %u: connection refused: %s", conn->name, (unsigned)conn->peer.uid, why);
	list_add(&conn->ipc->ended, conn);
	(void)shutdown(conn->fd, SHUT_RDWR);
	skv_conn_free_when_idle(conn);
}

void skv_conn_begin(struct skv_door *door, int fd)
{
	struct skv_ipc *ipc = door->ipc;
	struct skv_conn *conn = calloc(1, sizeof(*conn));
	const char *why = NULL;
	int r;

	if (!conn) {
		skv_count(ipc->counts, SKV_NO_UID, SKV_COUNT_CONNECTIONS, 1);
		skv_count(ipc->counts, SKV_NO_UID, SKV_COUNT_REFUSED, 1);
		skv_log_peer(LOG_ERR, "out of memory: a new connection was refused");
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
	conn->no_rights = skv_rights_refused(fd);
	(void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &(int){SEND_BUFFER}, sizeof(int));
	conn->peer.uid = SKV_NO_UID;
	r = skv_peer_get(fd, &conn->peer);
	skv_count(ipc->counts, conn->peer.uid, SKV_COUNT_CONNECTIONS, 1);
	snprintf(conn->name, sizeof(conn->name), "pid %d", (int)conn->peer.pid);
	conn->user = r < 0 ? NULL : skv_ipc_user_get(ipc, conn->peer.uid);
	if (r == 0 && !conn->user)
		r = -ENOMEM;
	why = r < 0 ? strerror(-r) : refuse(door, conn);
	if (why) {
		turn_away(conn, r == -ESRCH ? LOG_DEBUG : LOG_WARNING, why);
		return;
	}
	conn->open = true;
	list_add(&ipc->conns, conn);
	if (conn->peer.pidfd >= 0)
		skv_op_poll(ipc->loop, &conn->death_op, conn->peer.pidfd, POLLIN, died);
	skv_op_timer(ipc->loop, &conn->hello_op, ipc->limits.hello_ns, hello_late);
	skv_conn_receive(conn);
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

struct skv_deferred **skv_conn_deferred(struct skv_conn *conn)
{
	return &conn->deferred;
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
