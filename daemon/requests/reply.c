/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/requests/reply.c - sends replies to clients, for every handler of a request.
 *
 * A reply may name pages of a new segment, so a client is told of new segments before the reply.
 */
#include "daemon/requests/reply.h"

#include <config.h>
#include <errno.h>
#include <string.h>
#include "daemon/core/memory/memory.h"
#include "daemon/core/restart/life.h"
#include "daemon/server/server-priv.h"
#include "daemon/sys/log.h"

void skv_server_fail(struct skv_server *s, const char *what, int error)
{
	if (!s->failure) {
		skv_log(LOG_CRIT, "the daemon has to stop, since this failed: %s: %s", what, strerror(-error));
		s->failure = error;
		if (s->core)
			skv_core_give_up(s->core);
	}
	skv_loop_quit(s->loop);
}

bool skv_reply_failed(struct skv_server *s, struct skv_conn *conn, uint32_t serial, const char *what, int r)
{
	if (r < 0)
		skv_server_fail(s, what, r);
	else if (r > 0)
		skv_conn_error(conn, serial, skv_core_errno((enum skv_core_error)r), "%s",
		               skv_core_why(s->core));
	return r != 0;
}

void skv_reply_announce(struct skv_server *s, struct skv_conn *conn)
{
	uint32_t client = skv_conn_client(conn);
	struct skv_core_segment seg;

	while (skv_conn_open(conn) && !skv_conn_is_full(conn) && skv_core_next_segment(s->core, client, &seg)) {
		struct skv_msg_segment body = {
			.pool = seg.pool, .segment = seg.segment, .handle = seg.kind, .bytes = seg.bytes};

		if (seg.gone)
			skv_conn_send(conn, SKV_MSG_SEGMENT_GONE, 0, &body, sizeof(body), NULL, 0, NULL, 0);
		else if (seg.kind == SKV_HANDLE_CUDA_IPC)
			skv_conn_send(conn, SKV_MSG_SEGMENT_IPC, 0, &body, sizeof(body), seg.ipc,
			              SKV_IPC_HANDLE_BYTES, NULL, 0);
		else
			skv_conn_send(conn, SKV_MSG_SEGMENT, 0, &body, sizeof(body), NULL, 0, &seg.fd, 1);
	}
	if (skv_conn_open(conn))
		skv_conn_hold(conn, skv_core_is_untold(s->core, client));
}

void skv_reply_announce_all(struct skv_server *s)
{
	uint32_t cursor = 0, client;

	if (!s->requests.notices_due)
		return;
	s->requests.notices_due = false;
	while (skv_core_next_waiting(s->core, &cursor, &client)) {
		struct skv_conn *conn = skv_ipc_first(s->ipc);

		while (conn && skv_conn_client(conn) != client)
			conn = skv_conn_next(conn);
		if (conn)
			skv_reply_announce(s, conn);
	}
}

void skv_reply(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h, const void *body,
               size_t bytes, const int *fds, unsigned n_fds)
{
	skv_reply_announce(s, conn);
	skv_conn_send(conn, h->type | SKV_REPLY, h->serial, body, bytes, NULL, 0, fds, n_fds);
}

bool skv_reply_can_serve(struct skv_conn *conn, uint32_t serial, const struct skv_msg_hello *m)
{
	if (m->version_min > SKV_PROTO_VERSION || m->version_max < SKV_PROTO_VERSION)
		skv_conn_error(conn, serial, EPROTO,
		               "the client speaks versions %u to %u of the protocol, this daemon (" PACKAGE_VERSION
		               ") speaks %u",
		               m->version_min, m->version_max, SKV_PROTO_VERSION);
	else if (skv_conn_peer(conn)->pidfd < 0)
		skv_conn_error(conn, serial, EOPNOTSUPP,
		               "the daemon cannot watch the process: it is in another PID namespace, and the kernel is "
		               "older than Linux 6.5");
	else
		return true;
	skv_conn_finish(conn);
	return false;
}

void skv_reply_hello(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                     struct skv_msg_hello_ok *ok)
{
	const int control = skv_core_control_fd(s->core, &ok->control_bytes);

	ok->version = SKV_PROTO_VERSION;
	skv_wire_string(ok->daemon, sizeof(ok->daemon), PACKAGE_VERSION);
	skv_reply(s, conn, h, ok, sizeof(*ok), &control, 1);
}
