/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/requests/policy.c - requests of operators to load a policy, and to swap the policy of sessions.
 *
 * Both requests wait while a child process probes the plugin. If the operator's connection ends before the probe does,
 * the request is carried out nevertheless, without a reply.
 */
#include "daemon/requests/policy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/spec.h"
#include "daemon/core/operations/policies.h"
#include "daemon/core/operations/views.h"
#include "daemon/requests/deferred.h"
#include "daemon/requests/reply.h"
#include "daemon/requests/report.h"
#include "daemon/server/server-priv.h"
#include "daemon/sys/log.h"

/* A request of an operator that waits for a probe. */
struct pending {
	struct skv_deferred request;
	struct skv_server *server;
	char client[SKV_NAME_MAX + 16];
	char file[SKV_NAME_MAX];
	struct skv_msg_policy_swap swap;
};

static struct pending *pending_new(struct skv_server *s, struct skv_conn *conn,
                                   const struct skv_msg_header *h)
{
	struct pending *p = NULL;

	if (!skv_conn_is_operator(conn))
		skv_conn_error(conn, h->serial, EPERM,
		               "only an operator may load and swap policies, on the operators' socket");
	else if (!(p = calloc(1, sizeof(*p))))
		skv_conn_error(conn, h->serial, ENOMEM, "the daemon is out of memory");
	if (!p)
		return NULL;
	p->server = s;
	skv_deferred_begin(&p->request, conn, h, false);
	snprintf(p->client, sizeof(p->client), "%s", skv_conn_name(conn));
	return p;
}

static void forget(struct pending *p)
{
	skv_deferred_end(&p->request);
	free(p);
}

static void answer(struct pending *p, int error, const char *text, json_t *value)
{
	const struct skv_msg_header *h = &p->request.header;

	if (error)
		skv_deferred_error(&p->request, error, "%s", text);
	else if (p->request.conn)
		skv_report_send(p->request.conn, h->type | SKV_REPLY, h->serial, json_incref(value));
	json_decref(value);
	forget(p);
}

/* ---- lookup and use ---- */

const struct skv_plugin *skv_policy_find(struct skv_server *s, struct skv_conn *conn, uint32_t serial,
                                         const char *spec)
{
	char name[SKV_NAME_MAX], err[SKV_TEXT_MAX], names[SKV_TEXT_MAX];
	const struct skv_plugin *plugin;

	if (skv_spec_name(spec, name, err, sizeof(err)) < 0) {
		skv_conn_error(conn, serial, EINVAL, "%s", err);
		return NULL;
	}
	plugin = skv_registry_find(s->registry, name);
	if (!plugin) {
		skv_registry_names(s->registry, names, sizeof(names));
		skv_conn_error(conn, serial, ENOENT, "no policy \"%s\" is loaded; loaded are: %.400s", name,
		               names);
	}
	return plugin;
}

struct usage {
	uint32_t plugin;
	uint32_t sessions;
};

static void count_usage(void *usage, const struct skv_core_session_view *v)
{
	struct usage *u = usage;

	/* The policy that a session still runs counts, too: the session stays with it if the new policy fails. */
	u->sessions += v->plugin == u->plugin || v->given_plugin == u->plugin ||
	               v->running_plugin == u->plugin;
}

static uint32_t sessions_of(struct skv_server *s, uint32_t plugin)
{
	struct usage u = {.plugin = plugin};

	skv_core_sessions(s->core, count_usage, &u);
	return u.sessions;
}

static bool in_use(void *server, uint32_t plugin)
{
	return sessions_of(server, plugin) > 0;
}

static uint32_t next_id(void *server)
{
	const struct skv_server *s = server;

	return skv_core_next_plugin(s->core);
}

const struct skv_registry_ops skv_policy_registry_ops = {.in_use = in_use, .next_id = next_id};

static uint32_t id_of(void *server, const char *spec)
{
	char name[SKV_NAME_MAX], err[SKV_TEXT_MAX];
	const struct skv_server *s = server;
	const struct skv_plugin *plugin =
		skv_spec_name(spec, name, err, sizeof(err)) < 0 ? NULL : skv_registry_find(s->registry, name);

	return plugin ? plugin->id : 0;
}

void skv_policy_replace_all(struct skv_server *s)
{
	skv_core_replace_plugins(s->core, id_of, s);
}

/* ---- loading ---- */

static void on_loaded(void *pending, int error, const char *text, const struct skv_plugin *plugin)
{
	struct pending *p = pending;
	uint32_t old = 0;

	if (error) {
		skv_log(LOG_WARNING, "%s: policy file %s is refused: %s", p->client, p->file, text);
		answer(p, error, text, NULL);
		return;
	}
	for (const struct skv_plugin *o = skv_registry_first(p->server->registry); o; o = o->next)
		if (o != plugin && !strcmp(o->name, plugin->name))
			old += sessions_of(p->server, o->id);
	skv_log(LOG_NOTICE, "%s: loaded policy %s from %s", p->client, plugin->name, p->file);
	answer(p, 0, NULL,
	       json_pack("{s:I, s:s, s:s, s:I, s:O}", "id", (json_int_t)plugin->id, "name", plugin->name,
	                 "file", plugin->file, "sessions_on_replaced", (json_int_t)old, "policy",
	                 plugin->info));
}

void skv_policy_load_request(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                             const void *body, int *fds)
{
	const struct skv_msg_name *m = body;
	struct pending *p = pending_new(s, conn, h);

	if (!p)
		return;
	snprintf(p->file, sizeof(p->file), "%s", *m->name ? m->name : "(unnamed)");
	skv_registry_load(s->registry, fds[0], p->file, on_loaded, p);
}

/* ---- swapping ---- */

static struct skv_core_scope scope_of(const struct skv_msg_policy_swap *m)
{
	return (struct skv_core_scope){.session = m->session, .client = m->client, .uid = m->uid, .model = m->model};
}

/*
 * Checks which sessions the request selects. Returns NULL or an error text. Either `all` or at least one criterion must
 * be given, so that a forgotten option never means every session.
 */
static const char *scope_wrong(const struct skv_msg_policy_swap *m)
{
	bool some = m->session || m->client || m->uid != UINT32_MAX || *m->model;

	if (m->all && some)
		return "got all and also a session's number, client, user or model, expected one or the other";
	if (!m->all && !some)
		return "expected which sessions to swap: a session's number, a client, a user, a model, or all";
	return NULL;
}

struct affected {
	const struct skv_msg_policy_swap *swap;
	struct skv_core_scope scope;
	struct skv_probe_case *cases;
	uint32_t n, cap, sessions;
	bool failed;
};

/* Adds the model of a session to the cases that are probed, unless a session with the same model has added it. */
static void collect_case(void *affected, const struct skv_core_session_view *v)
{
	struct affected *a = affected;
	struct skv_probe_case *c;

	if (!skv_core_in_scope(&a->scope, v))
		return;
	a->sessions++;
	for (uint32_t i = 0; i < a->n; i++)
		if (!memcmp(&a->cases[i].model, v->model, sizeof(*v->model)))
			return;
	if (a->n == a->cap) {
		c = realloc(a->cases, (2 * (size_t)a->cap + 8) * sizeof(*c));
		if (!c) {
			a->failed = true;
			return;
		}
		a->cases = c;
		a->cap = 2 * a->cap + 8;
	}
	c = &a->cases[a->n++];
	memset(c, 0, sizeof(*c));
	c->model = *v->model;
	strcpy(c->spec, a->swap->spec);
}

static void on_tried(void *pending, int error, const char *text, const struct skv_plugin *plugin)
{
	struct pending *p = pending;
	struct skv_core_scope scope = scope_of(&p->swap);
	uint32_t n;

	if (error) {
		skv_log(LOG_WARNING, "%s: the policy swap to %s is refused: %s", p->client, p->swap.spec, text);
		answer(p, error, text, NULL);
		return;
	}
	n = skv_core_swap(p->server->core, &scope, p->swap.spec, plugin->id);
	skv_log(LOG_NOTICE, "%s: policy swap to %s: %u sessions will switch, each at its next step",
	        p->client, p->swap.spec, n);
	answer(p, 0, NULL,
	       json_pack("{s:s, s:I, s:I, s:I}", "spec", p->swap.spec, "plugin", (json_int_t)plugin->id,
	                 "sessions", (json_int_t)n, "generation",
	                 (json_int_t)skv_core_policy_generation(p->server->core)));
}

void skv_policy_swap_request(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *h,
                             const void *body, int *fds)
{
	const struct skv_msg_policy_swap *m = body;
	struct affected a = {.swap = m, .scope = scope_of(m)};
	const char *wrong = scope_wrong(m);
	const struct skv_plugin *plugin;
	struct pending *p;

	(void)fds;
	p = pending_new(s, conn, h);
	if (!p)
		return;
	p->swap = *m;
	if (wrong) {
		answer(p, EINVAL, wrong, NULL);
		return;
	}
	plugin = skv_policy_find(s, conn, h->serial, m->spec);
	if (!plugin) {
		forget(p);
		return;
	}
	skv_core_sessions(s->core, collect_case, &a);
	if (a.failed) {
		answer(p, ENOMEM, "the daemon is out of memory", NULL);
	} else if ((m->session || m->client) && !a.sessions) {
		char text[64];

		snprintf(text, sizeof(text), m->session ? "there is no session %u" : "client %u has no session to swap",
		         m->session ? m->session : m->client);
		answer(p, ENOENT, text, NULL);
	} else {
		skv_registry_try(s->registry, plugin, a.cases, a.n, on_tried, p);
	}
	free(a.cases);
}
