/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/request.c - handles the requests of clients; its table says which function handles which message type.
 *
 * ipc/conn.c passes on well-formed messages only. A handler calls the core, which checks that every id in the request
 * belongs to the client that asks, and then replies. Requests that may have to wait are handled in requests/, such as
 * leases (lease.c) and attaches (fence.c).
 */
#include "daemon/request.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "daemon/core/memory/memory.h"
#include "daemon/core/operations/clients.h"
#include "daemon/core/operations/policies.h"
#include "daemon/core/operations/requests.h"
#include "daemon/parked/parking.h"
#include "daemon/prefix/prefix.h"
#include "daemon/requests/deferred.h"
#include "daemon/requests/fence.h"
#include "daemon/requests/lease.h"
#include "daemon/requests/policy.h"
#include "daemon/requests/query.h"
#include "daemon/requests/reply.h"
#include "daemon/requests/report.h"
#include "daemon/requests/tasks.h"
#include "daemon/server/device.h"
#include "daemon/server/server-priv.h"
#include "daemon/sys/log.h"

typedef void (*handler)(struct skv_server *, struct skv_conn *, const struct skv_msg_header *,
                        const void *body, int *fds);

/* ---- connections and sessions ---- */

static void on_hello(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                     const void *body, int *fds)
{
	const struct skv_msg_hello *m = body;
	const struct skv_peer *peer = skv_conn_peer(conn);
	const char *program = *m->program ? m->program : "?";
	struct skv_msg_hello_ok ok = {0};
	int r;

	(void)fds;
	if (!skv_reply_can_serve(conn, h->serial, m))
		return;
	r = skv_core_client_add(s->core, peer->uid, peer->pid, program, &ok.client);
	if (skv_reply_failed(s, conn, h->serial, "adding a client", r)) {
		skv_conn_finish(conn);
		return;
	}
	skv_core_client_store(s->core, ok.client, peer->pidfd);
	skv_conn_set_client(conn, ok.client, program);
	skv_reply_hello(s, conn, h, &ok);
	skv_log(LOG_DEBUG, "%s, uid %u: connected as client %u", skv_conn_name(conn), (unsigned)peer->uid, ok.client);
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
	if (skv_reply_failed(s, conn, h->serial, "getting the policy of a new session", r))
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
	skv_tasks_answer(s, conn, h, skv_core_session_close(s->core, skv_conn_client(conn), m->session),
	                 &(struct skv_core_seq_info){.fd = -1});
}

/* ---- sequences ---- */

/*
 * Refuses the name of a new sequence if a parked sequence has the name, or may have it because not all files have been
 * read. Returns true after refusing the request.
 */
static bool is_parked(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                      const struct skv_msg_seq_name *m)
{
	const uid_t uid = skv_conn_peer(conn)->uid;
	const struct skv_model *model;
	char why[SKV_TEXT_MAX];
	int r;

	if (!*m->name || skv_core_session_model(s->core, skv_conn_client(conn), m->session, &model))
		return false;
	if (skv_parking_has(s, uid, model, m->name)) {
		skv_conn_error(conn, h->serial, EEXIST, "the model already has a sequence '%s', which is parked",
		               m->name);
		return true;
	}
	r = skv_parking_unread(s, uid, m->name, why);
	if (r < 0)
		skv_conn_error(conn, h->serial, -r, "%s", why);
	return r < 0;
}

static void on_seq_open(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                        const void *body, int *fds)
{
	const struct skv_msg_seq_name *m = body;
	uint32_t client = skv_conn_client(conn);
	struct skv_core_seq_info info = {.fd = -1};
	int r;

	(void)fds;
	if (is_parked(s, conn, h, m))
		return;
	if (h->type == SKV_MSG_SEQ_NEW)
		r = skv_core_seq_new(s->core, client, m->session, m->name, m->max_tokens, &info);
	else
		r = skv_core_seq_fork(s->core, client, m->session, m->seq, m->name, m->n_tokens, &info);
	skv_tasks_answer(s, conn, h, r, &info);
}

static void on_prefix_new(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h, const void *body,
                          int *fds)
{
	if (!is_parked(s, conn, h, body))
		skv_prefix_request(s, conn, h, body, fds);
}

/*
 * Returns whether a request failed only because the previous daemon has already carried it out: a client that
 * reconnects may repeat requests.
 */
static bool was_done(struct skv_server *s, struct skv_conn *conn, int r)
{
	return r == SKV_CORE_E_NOENT && skv_core_is_reconnecting(s->core, skv_conn_client(conn));
}

static void on_seq_close(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                         const void *body, int *fds)
{
	const struct skv_msg_seq *m = body;
	uint32_t client = skv_conn_client(conn);
	int r;

	(void)fds;
	if (h->type == SKV_MSG_SEQ_DROP && skv_parking_puts_off(s, conn, h, m, on_seq_close))
		return;
	r = h->type == SKV_MSG_SEQ_DETACH ? skv_core_seq_detach(s->core, client, m->session, m->seq)
	                                  : skv_core_seq_drop(s->core, client, m->session, m->seq);
	if (was_done(s, conn, r))
		r = 0;
	skv_tasks_answer(s, conn, h, r, &(struct skv_core_seq_info){.fd = -1});
}

static void on_lease_put(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                         const void *body, int *fds)
{
	const struct skv_msg_runs *m = body;
	int r = skv_core_lease_put(s->core, skv_conn_client(conn), m->session, (const void *)(m + 1), m->n_runs);

	(void)fds;
	if (!skv_reply_failed(s, conn, h->serial, "taking back leased pages", r))
		skv_reply(s, conn, h, NULL, 0, NULL, 0);
}

static void on_seq_release(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                           const void *body, int *fds)
{
	const uint32_t client = skv_conn_client(conn);
	const struct skv_msg_runs *m = body;
	int r = (skv_core_is_reconnecting(s->core, client) ? skv_core_seq_release_again : skv_core_seq_release)(
		s->core, client, m->session, m->seq, (const void *)(m + 1), m->n_runs);

	(void)fds;
	if (was_done(s, conn, r) || !skv_reply_failed(s, conn, h->serial, "releasing shared pages", r))
		skv_reply(s, conn, h, NULL, 0, NULL, 0);
}

/* ---- what a reconnecting client has ---- */

static void on_named(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h, const void *body,
                     int *fds)
{
	const uint32_t client = skv_conn_client(conn);
	const struct skv_msg_session *session = body;
	const struct skv_msg_seq *seq = body;
	const struct skv_msg_runs *runs = body;
	int r;

	(void)fds;
	if (h->type == SKV_MSG_RECONNECT_SESSION)
		r = skv_core_reconnect_session(s->core, client, session->session);
	else if (h->type == SKV_MSG_RECONNECT_SEQ)
		r = skv_core_reconnect_seq(s->core, client, seq->session, seq->seq);
	else
		r = skv_core_reconnect_pages(s->core, client, runs->session, (const void *)(runs + 1), runs->n_runs);
	if (!skv_reply_failed(s, conn, h->serial, "recording what a reconnecting client has", r))
		skv_reply(s, conn, h, NULL, 0, NULL, 0);
}

static void on_all_named(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h, const void *body,
                         int *fds)
{
	(void)body, (void)fds;
	skv_tasks_answer(s, conn, h, skv_core_reconnect_done(s->core, skv_conn_client(conn)),
	                 &(struct skv_core_seq_info){.fd = -1});
}

/* ---- */

static void tell_dropped(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h, const void *body,
                         int *fds)
{
	const struct skv_msg_seq_of *m = body;

	(void)fds;
	if (skv_parking_puts_off(s, conn, h, m, tell_dropped))
		return;
	if (skv_parking_undo_drop(s, (uid_t)m->uid, m->model, m->name)) {
		skv_conn_error(conn, h->serial, EIO,
		               "a file of sequence '%s' cannot be removed, the daemon's log says why", m->name);
		return;
	}
	skv_report_send(conn, h->type | SKV_REPLY, h->serial,
	                json_pack("{s:s, s:s, s:I}", "dropped", m->name, "model", m->model, "uid",
	                          (json_int_t)m->uid));
}

static void on_drop_name(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                         const void *body, int *fds)
{
	const struct skv_msg_seq_of *m = body;
	uid_t asker = skv_conn_peer(conn)->uid;
	char why[SKV_TEXT_MAX];
	int r;

	(void)fds;
	if (m->uid != asker && !skv_conn_is_operator(conn)) {
		skv_conn_error(conn, h->serial, EPERM,
		               "only an operator may drop sequences of another user (uid %u), on the operators' socket",
		               m->uid);
		return;
	}
	if (skv_parking_is_busy(s, (uid_t)m->uid, m->model, m->name)) {
		skv_conn_error(conn, h->serial, EBUSY, "sequence '%s' is being read from its file", m->name);
		return;
	}
	/* while files remain unread, one of them may have this sequence, which would reappear after the drop */
	r = skv_parking_unread(s, (uid_t)m->uid, m->name, why);
	if (r < 0) {
		skv_conn_error(conn, h->serial, -r, "%s", why);
		return;
	}
	if (skv_parking_puts_off(s, conn, h, m, on_drop_name))
		return;
	r = skv_core_seq_drop_name(s->core, (uid_t)m->uid, m->model, m->name);
	if ((r == 0 || r == SKV_CORE_E_NOENT) && skv_parking_drop(s, (uid_t)m->uid, m->model, m->name) > 0)
		r = 0;
	if (skv_reply_failed(s, conn, h->serial, "dropping a sequence", r))
		return;
	skv_log(LOG_INFO, "%s, uid %u: dropped sequence %s of model %s, uid %u", skv_conn_name(conn),
	        (unsigned)asker, m->name, m->model, m->uid);
	tell_dropped(s, conn, h, m, fds);
}

static void on_segment_ack(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                           const void *body, int *fds)
{
	const struct skv_msg_segment *m = body;
	int r = skv_core_segment_ack(s->core, skv_conn_client(conn), m->pool, m->segment);

	(void)fds;
	if (!skv_reply_failed(s, conn, h->serial, "acknowledging a segment", r))
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
	if (skv_reply_failed(s, conn, h->serial, "getting the policy of a session", r))
		return;
	plugin = skv_registry_by_id(s->registry, ok.plugin);
	if (!plugin) {
		skv_conn_error(conn, h->serial, ENOENT,
		               "the policy of \"%.300s\" was loaded by an operator, and has not been loaded since the "
		               "daemon was started",
		               ok.spec);
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
	if (!skv_reply_failed(s, conn, h->serial, "computing the room of a session", r))
		skv_reply(s, conn, h, &ok, sizeof(ok), NULL, 0);
}

/*
 * Sends a client the plugin for a sequence that runs another policy than its session. The core does not record policies
 * of sequences.
 */
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
	if (skv_reply_failed(s, conn, h->serial, "acknowledging a policy", r))
		return;
	if (m->error)
		skv_log_peer(LOG_WARNING, "%s: session %u refused its new policy and keeps the old one: %s",
		             skv_conn_name(conn),
		             m->session, *m->text ? m->text : strerror(m->error));
	skv_reply(s, conn, h, NULL, 0, NULL, 0);
}

/* ---- */

static const struct {
	uint16_t type;
	handler run;
} handlers[] = {
	{SKV_MSG_HELLO, on_hello},
	{SKV_MSG_RECONNECT, skv_fence_reconnect},
	{SKV_MSG_RECONNECT_SESSION, on_named},
	{SKV_MSG_RECONNECT_SEQ, on_named},
	{SKV_MSG_RECONNECT_PAGES, on_named},
	{SKV_MSG_RECONNECT_DONE, on_all_named},
	{SKV_MSG_OPEN, on_open},
	{SKV_MSG_CLOSE, on_close},
	{SKV_MSG_SEQ_NEW, on_seq_open},
	{SKV_MSG_SEQ_ATTACH, skv_fence_attach},
	{SKV_MSG_SEQ_FORK, on_seq_open},
	{SKV_MSG_PREFIX_SEAL, skv_prefix_request},
	{SKV_MSG_PREFIX_NEW, on_prefix_new},
	{SKV_MSG_SEQ_DETACH, on_seq_close},
	{SKV_MSG_SEQ_DROP, on_seq_close},
	{SKV_MSG_SEQ_RELEASE, on_seq_release},
	{SKV_MSG_LEASE_GET, skv_lease_get},
	{SKV_MSG_LEASE_PUT, on_lease_put},
	{SKV_MSG_LEASE_ROOM, on_lease_room},
	{SKV_MSG_POLICY_GET, on_policy_get},
	{SKV_MSG_POLICY_ACK, on_policy_ack},
	{SKV_MSG_POLICY_FIND, on_policy_find},
	{SKV_MSG_CLIENT_END, skv_fence_client_end},
	{SKV_MSG_SEGMENT_ACK, on_segment_ack},
	{SKV_MSG_QUERY, skv_query_begin},
	{SKV_MSG_POLICY_LOAD, skv_policy_load_request},
	{SKV_MSG_POLICY_SWAP, skv_policy_swap_request},
	{SKV_MSG_SEQ_DROP_NAME, on_drop_name},
	{SKV_MSG_SEQ_PARK, skv_parking_request},
	{SKV_MSG_SEQ_RESUME, skv_parking_request},
	{SKV_MSG_SEQ_EXPORT, skv_parking_request},
	{SKV_MSG_SEQ_IMPORT, skv_parking_request},
};

void skv_request(void *server, struct skv_conn *conn, const struct skv_msg_header *h, const void *body,
                 int *fds)
{
	struct skv_server *s = server;

	s->requests.notices_due = true;
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

	skv_query_go_on(s, conn);
	skv_deferred_forget(conn);
	if (!skv_conn_client(conn) || s->restart.leaving)
		return;
	s->requests.notices_due = true;
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
	skv_query_go_on(server, conn);
}
