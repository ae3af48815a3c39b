/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/request.c - the handlers of clients' requests.
 *
 * Messages come here well-formed (ipc/conn.c). A handler calls the core, which checks every id against the
 * asking client, and replies. lease.c and fence.c have the requests that may have to wait.
 */
#include "daemon/request.h"

#include <config.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "daemon/device.h"
#include "daemon/fence.h"
#include "daemon/lease.h"
#include "daemon/policy.h"
#include "daemon/query.h"
#include "daemon/reply.h"
#include "daemon/report.h"
#include "daemon/server-priv.h"
#include "daemon/sys/clock.h"
#include "daemon/sys/log.h"
#include "daemon/turns.h"

typedef void (*handler)(struct skv_server *, struct skv_conn *, const struct skv_msg_header *,
                        const void *body, int *fds);

/* ---- connections and sessions ---- */

static void on_hello(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                     const void *body, int *fds)
{
	const struct skv_msg_hello *m = body;
	const struct skv_peer *peer = skv_conn_peer(conn);
	struct skv_msg_hello_ok ok = {.version = SKV_PROTO_VERSION, .features = 0};
	const char *program = *m->program ? m->program : "?";
	int control, r;

	(void)fds;
	if (m->version_min > SKV_PROTO_VERSION || m->version_max < SKV_PROTO_VERSION) {
		skv_conn_error(
			conn, h->serial, EPROTO,
			"the client speaks versions %u to %u of the protocol, this daemon (%s) speaks %u",
			m->version_min, m->version_max, PACKAGE_VERSION, SKV_PROTO_VERSION);
		skv_conn_finish(conn);
		return;
	}
	if (peer->pidfd < 0) {
		skv_conn_error(conn, h->serial, EOPNOTSUPP,
		               "the daemon cannot watch the process: it is in another PID namespace, and the kernel is "
		               "older than Linux 6.5");
		skv_conn_finish(conn);
		return;
	}
	r = skv_core_client_add(s->core, peer->uid, peer->pid, program, &ok.client);
	if (skv_reply_failed(s, conn, h->serial, "adding a client", r)) {
		skv_conn_finish(conn);
		return;
	}
	skv_core_client_store(s->core, ok.client, peer->pidfd);
	skv_conn_set_client(conn, ok.client, program);
	control = skv_core_control_fd(s->core, &ok.control_bytes);
	skv_wire_string(ok.daemon, sizeof(ok.daemon), PACKAGE_VERSION);
	skv_reply(s, conn, h, &ok, sizeof(ok), &control, 1);
	skv_log(LOG_DEBUG, "%s, uid %u: client %u", skv_conn_name(conn), (unsigned)peer->uid, ok.client);
}

static void on_open(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                    const void *body, int *fds)
{
	const struct skv_msg_open *m = body;
	const struct skv_plugin *plugin = skv_policy_find(s, conn, h->serial, m->spec);
	struct skv_core_session_info info;
	struct skv_msg_open_ok ok = {0};
	char why[SKV_TEXT_MAX];
	struct skv_model model;
	int r;

	(void)fds;
	if (!plugin)
		return;
	skv_wire_to_model(&model, &m->model);
	r = skv_device_resolve(s, m->device_uuid, &model.device, why);
	if (r == 0)
		r = skv_device_need(s, model.device, why);
	if (r) {
		skv_conn_error(conn, h->serial, r, "%s", why);
		return;
	}
	r = skv_core_session_open(s->core, skv_conn_client(conn), &model, m->spec, plugin->id, &info);
	if (skv_reply_failed(s, conn, h->serial, "opening a session", r))
		return;
	r = skv_core_session_policy(s->core, skv_conn_client(conn), info.session, &ok.policy);
	if (skv_reply_failed(s, conn, h->serial, "a new session's policy", r))
		return;
	ok.session = info.session;
	ok.pool = info.pool;
	ok.page_bytes = info.page_bytes;
	ok.segment_bytes = info.segment_bytes;
	ok.pages_per_segment = info.pages_per_segment;
	ok.max_segments = info.max_segments;
	ok.session_page_bytes = info.page_fd_bytes;
	skv_reply(s, conn, h, &ok, sizeof(ok), (int[]){info.page_fd, plugin->fd}, 2);
}

static void on_close(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                     const void *body, int *fds)
{
	const struct skv_msg_session *m = body;

	(void)fds;
	skv_turns_answer(s, conn, h, skv_core_session_close(s->core, skv_conn_client(conn), m->session),
	                 &(struct skv_core_seq_info){.fd = -1});
}

/* ---- sequences ---- */

static void on_seq_open(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                        const void *body, int *fds)
{
	const struct skv_msg_seq_name *m = body;
	uint32_t client = skv_conn_client(conn);
	struct skv_core_seq_info info = {.fd = -1};
	int r;

	(void)fds;
	if (h->type == SKV_MSG_SEQ_NEW)
		r = skv_core_seq_new(s->core, client, m->session, m->name, m->max_tokens, &info);
	else
		r = skv_core_seq_fork(s->core, client, m->session, m->seq, m->name, m->n_tokens, &info);
	skv_turns_answer(s, conn, h, r, &info);
}

static void on_seq_close(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                         const void *body, int *fds)
{
	const struct skv_msg_seq *m = body;
	uint32_t client = skv_conn_client(conn);
	int r = h->type == SKV_MSG_SEQ_DETACH ? skv_core_seq_detach(s->core, client, m->session, m->seq)
	                                      : skv_core_seq_drop(s->core, client, m->session, m->seq);

	(void)fds;
	skv_turns_answer(s, conn, h, r, &(struct skv_core_seq_info){.fd = -1});
}

static void on_runs(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                    const void *body, int *fds)
{
	const struct skv_msg_runs *m = body;
	const struct skv_wire_run *runs = (const void *)(m + 1);
	uint32_t client = skv_conn_client(conn);
	int r = h->type == SKV_MSG_LEASE_PUT
	                ? skv_core_lease_put(s->core, client, m->session, runs, m->n_runs)
	                : skv_core_seq_release(s->core, client, m->session, m->seq, runs, m->n_runs);

	(void)fds;
	if (!skv_reply_failed(s, conn, h->serial, "taking pages back", r))
		skv_reply(s, conn, h, NULL, 0, NULL, 0);
}

static void on_drop_name(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                         const void *body, int *fds)
{
	const struct skv_msg_seq_drop_name *m = body;
	uid_t asker = skv_conn_peer(conn)->uid;
	int r;

	(void)fds;
	if (m->uid != asker && !skv_conn_is_operator(conn)) {
		skv_conn_error(conn, h->serial, EPERM,
		               "only an operator may drop sequences of another user (uid %u), on the operators' socket",
		               m->uid);
		return;
	}
	r = skv_core_seq_drop_name(s->core, (uid_t)m->uid, m->model, m->name);
	if (skv_reply_failed(s, conn, h->serial, "dropping a sequence", r))
		return;
	skv_log(LOG_INFO, "%s, uid %u: dropped sequence %s of model %s, uid %u", skv_conn_name(conn),
	        (unsigned)asker, m->name, m->model, m->uid);
	skv_report_send(conn, h->type | SKV_REPLY, h->serial,
	                json_pack("{s:s, s:s, s:I}", "dropped", m->name, "model", m->model, "uid",
	                          (json_int_t)m->uid));
}

static void on_segment_ack(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                           const void *body, int *fds)
{
	const struct skv_msg_segment *m = body;
	int r = skv_core_segment_ack(s->core, skv_conn_client(conn), m->pool, m->segment);

	(void)fds;
	if (!skv_reply_failed(s, conn, h->serial, "a segment's acknowledgement", r))
		skv_reply(s, conn, h, NULL, 0, NULL, 0);
}

/* ---- policies of sessions and sequences ---- */

static void on_policy_get(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                          const void *body, int *fds)
{
	const struct skv_msg_session *m = body;
	const struct skv_plugin *plugin;
	struct skv_msg_policy ok;
	int r = skv_core_session_policy(s->core, skv_conn_client(conn), m->session, &ok);

	(void)fds;
	if (skv_reply_failed(s, conn, h->serial, "a session's policy", r))
		return;
	plugin = skv_registry_by_id(s->registry, ok.plugin);
	if (!plugin) {
		skv_server_fail(s, "a session's policy file is not there", -EUCLEAN);
		return;
	}
	skv_reply(s, conn, h, &ok, sizeof(ok), &plugin->fd, 1);
}

static void on_lease_room(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                          const void *body, int *fds)
{
	const struct skv_msg_session *m = body;
	struct skv_msg_room ok = {0};
	int r = skv_core_lease_room(s->core, skv_conn_client(conn), m->session, &ok.pages);

	(void)fds;
	if (!skv_reply_failed(s, conn, h->serial, "a session's room", r))
		skv_reply(s, conn, h, &ok, sizeof(ok), NULL, 0);
}

/* For a sequence whose policy is not its session's: the core knows nothing of it. */
static void on_policy_find(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                           const void *body, int *fds)
{
	const struct skv_msg_spec *m = body;
	const struct skv_plugin *plugin = skv_policy_find(s, conn, h->serial, m->spec);
	struct skv_msg_policy ok = {0};

	(void)fds;
	if (!plugin)
		return;
	ok.plugin = plugin->id;
	skv_wire_string(ok.spec, sizeof(ok.spec), m->spec);
	skv_reply(s, conn, h, &ok, sizeof(ok), &plugin->fd, 1);
}

static void on_policy_ack(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                          const void *body, int *fds)
{
	const struct skv_msg_policy_ack *m = body;
	int r = skv_core_policy_ack(s->core, skv_conn_client(conn), m->session, m->generation, m->error,
	                            m->text);

	(void)fds;
	if (skv_reply_failed(s, conn, h->serial, "a policy's acknowledgement", r))
		return;
	if (m->error)
		skv_log_peer(LOG_WARNING, "%s: session %u stays with its policy: %s", skv_conn_name(conn),
		             m->session, *m->text ? m->text : strerror(m->error));
	skv_reply(s, conn, h, NULL, 0, NULL, 0);
}

/* ---- */

static const struct {
	uint16_t type;
	handler run;
} handlers[] = {
	{SKV_MSG_HELLO, on_hello},
	{SKV_MSG_OPEN, on_open},
	{SKV_MSG_CLOSE, on_close},
	{SKV_MSG_SEQ_NEW, on_seq_open},
	{SKV_MSG_SEQ_ATTACH, skv_fence_attach},
	{SKV_MSG_SEQ_FORK, on_seq_open},
	{SKV_MSG_SEQ_DETACH, on_seq_close},
	{SKV_MSG_SEQ_DROP, on_seq_close},
	{SKV_MSG_SEQ_RELEASE, on_runs},
	{SKV_MSG_LEASE_GET, skv_lease_get},
	{SKV_MSG_LEASE_PUT, on_runs},
	{SKV_MSG_LEASE_ROOM, on_lease_room},
	{SKV_MSG_POLICY_GET, on_policy_get},
	{SKV_MSG_POLICY_ACK, on_policy_ack},
	{SKV_MSG_POLICY_FIND, on_policy_find},
	{SKV_MSG_CLIENT_END, skv_fence_client_end},
	{SKV_MSG_SEGMENT_ACK, on_segment_ack},
	{SKV_MSG_QUERY, skv_report_query},
	{SKV_MSG_POLICY_LOAD, skv_policy_load_request},
	{SKV_MSG_POLICY_SWAP, skv_policy_swap_request},
	{SKV_MSG_SEQ_DROP_NAME, on_drop_name},
};

void skv_request(void *server, struct skv_conn *conn, const struct skv_msg_header *h, const void *body,
                 int *fds)
{
	struct skv_server *s = server;

	s->notices_due = true;
	for (size_t i = 0; i < sizeof(handlers) / sizeof(handlers[0]); i++)
		if (handlers[i].type == h->type) {
			handlers[i].run(s, conn, h, body, fds);
			return;
		}
	skv_conn_error(conn, h->serial, EOPNOTSUPP, "%s is not a request that this daemon knows",
	               skv_wire_name(h->type));
}

void skv_request_gone(void *server, struct skv_conn *conn)
{
	struct skv_server *s = server;

	skv_query_forget(s, conn);
	if (!skv_conn_client(conn) || s->leaving)
		return;
	s->notices_due = true;
	skv_lease_gone(s, conn);
	skv_fence_forget(s, conn);
	skv_turns_forget(s, conn);
	skv_fence_begin(s, conn);
}

bool skv_request_used_up(void *server)
{
	const struct skv_server *s = server;

	return skv_core_room_is_used_up(s->core);
}

void skv_request_drained(void *server, struct skv_conn *conn)
{
	skv_reply_announce(server, conn);
	skv_query_drained(server, conn);
}
