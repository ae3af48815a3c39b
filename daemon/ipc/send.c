/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/ipc/send.c - the output of a connection: queues packets and their descriptors, and sends them. See conn.h. */
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "daemon/ipc/ipc-priv.h"
#include "daemon/sys/log.h"

/* unread bytes, in the kernel and in the daemon, above which a peer is disconnected when memory is used up */
#define UNREAD 16384u
#define CHARGE_OF_FD 4096u /* bytes of memory that a queued fd counts as */

/* Returns a duplicate of `fd` that can be sent, made in the place of a spare descriptor; or -1. */
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

void skv_conn_drop_output(struct skv_conn *conn)
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
		skv_conn_drop_output(conn); /* the peer hung up; messages that it sent before are still received */
	else if (res < 0)
		skv_conn_close(conn, LOG_WARNING, strerror(-res));
	if (conn->open && conn->wants_room && conn->out_charge <= SKV_CONN_MARK / 2) {
		conn->wants_room = false;
		conn->ipc->ops->drained(conn->ipc->ctx, conn);
	}
	send_next(conn);
	skv_conn_receive(conn);
	skv_conn_free_when_idle(conn);
}

/* Allocates a packet, with its header and fds filled in. Returns NULL, after closing the connection, if that fails. */
static struct skv_conn_out *out_new(struct skv_conn *conn, uint16_t type, uint32_t serial, size_t bytes,
                                    const int *fds, unsigned n_fds)
{
	struct skv_conn_out *out = malloc(sizeof(*out) + bytes);
	struct skv_msg_header header = {
		.length = (uint32_t)bytes, .type = type, .n_fds = (uint16_t)n_fds, .serial = serial};

	if (!out) {
		skv_conn_close(conn, LOG_ERR, "out of memory for a reply to it");
		return NULL;
	}
	memcpy(out->packet, &header, sizeof(header));
	out->next = NULL;
	out->bytes = bytes;
	out->charge = sizeof(*out) + bytes + n_fds * CHARGE_OF_FD;
	for (out->n_fds = 0; out->n_fds < n_fds; out->n_fds++) {
		int fd = borrow_slot(conn->ipc, fds[out->n_fds]);

		if (fd < 0) {
			skv_conn_close(conn, LOG_ERR, "the daemon has no file descriptors left for a reply to it");
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
		skv_conn_dump(conn, "<-", out->packet, out->bytes, out->n_fds);
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
	skv_conn_receive(conn);
}

void skv_conn_pause(struct skv_conn *conn, bool paused)
{
	if (paused)
		conn->paused++;
	else
		conn->paused--;
	skv_conn_receive(conn);
}

uint64_t skv_conn_bytes(const struct skv_conn *conn)
{
	return sizeof(*conn) + conn->out_charge;
}

bool skv_conn_is_full(struct skv_conn *conn)
{
	conn->wants_room |= conn->out_charge > SKV_CONN_MARK;
	return conn->out_charge > SKV_CONN_MARK;
}

/* Returns the bytes that the peer has not read, in the connection's queue and in the kernel. */
static uint64_t unread(const struct skv_conn *conn)
{
	int sent = 0;

	(void)ioctl(conn->fd, SIOCOUTQ, &sent);
	return conn->out_charge + (sent > 0 ? (uint64_t)sent : 0);
}

static void relieve_of(struct skv_conn *conn)
{
	skv_conn_close(conn, LOG_WARNING, "it does not read its replies, and the memory of the daemon's cgroup is used "
	                                  "up");
}

void skv_ipc_relieve(struct skv_ipc *ipc)
{
	for (struct skv_conn *conn = ipc->conns, *next; conn; conn = next) {
		next = conn->next;
		if (unread(conn) > UNREAD)
			relieve_of(conn);
	}
}

void skv_conn_send(struct skv_conn *conn, uint16_t type, uint32_t serial, const void *body, size_t body_bytes,
                   const void *tail, size_t tail_bytes, const int *fds, unsigned n_fds)
{
	struct skv_conn_out *out;

	if (!conn->open || conn->finishing || conn->unheard)
		return;
	if (unread(conn) > UNREAD && conn->ipc->ops->used_up(conn->ipc->ctx)) {
		relieve_of(conn);
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
	enqueue(conn, out, serial != 0);
}

void skv_conn_send_text(struct skv_conn *conn, uint16_t type, uint32_t serial, const char *text, size_t len)
{
	const size_t most = SKV_WIRE_MAX_SENT - sizeof(struct skv_msg_header) - sizeof(struct skv_msg_text);

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
