/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/requests/report.c - the state of the daemon as JSON, for sparsekvctl.
 *
 * Operators see everything. Other users see the rows of their own UID, and sums and counters over these rows only, so
 * that no number tells what other users do. Settings and devices are visible to all. Numbers that a client writes
 * itself, in its session page, are shown as they are and used for nothing else.
 */
#include "daemon/requests/report.h"

#include <config.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/clock.h"
#include "daemon/core/operations/policies.h"
#include "daemon/core/operations/turns.h"
#include "daemon/core/operations/views.h"
#include "daemon/parked/parking.h"
#include "daemon/prefix/prefix.h"
#include "daemon/server/device.h"
#include "daemon/server/server-priv.h"
#include "daemon/sys/json.h"

static json_int_t number(uint64_t x)
{
	return x > INT64_MAX ? INT64_MAX : (json_int_t)x;
}

/*
 * Returns the number of files that the daemon has open for a user: a socket and a pidfd for each client, one memfd for
 * each session, sequence and pool.
 */
static uint64_t fds_of(const struct skv_core_account_view *v)
{
	return (uint64_t)2 * v->clients + v->sessions + v->sequences + v->pools;
}

json_t *skv_report_account(const struct skv_core_account_view *v)
{
	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "uid", number(v->uid), "clients",
	                 number(v->clients), "sessions", number(v->sessions), "sequences", number(v->sequences),
	                 "page_bytes", number(v->page_bytes[SKV_DEVICE_HOST]), "segment_bytes",
	                 number(v->segment_bytes[SKV_DEVICE_HOST]), "other_bytes", number(v->other_bytes), "fds",
	                 number(fds_of(v)));
}

/* Returns the name of a memory: "host", "cuda:0" … */
static const char *memory_name(uint32_t device, char to[16])
{
	if (device == SKV_DEVICE_HOST)
		return "host";
	snprintf(to, 16, "cuda:%u", device - SKV_DEVICE_CUDA(0));
	return to;
}

json_t *skv_report_device_account(const struct skv_core_account_view *v, uint32_t device)
{
	char name[16];

	return json_pack("{s:I, s:s, s:I, s:I}", "uid", number(v->uid), "device", memory_name(device, name),
	                 "page_bytes", number(v->page_bytes[device]), "segment_bytes",
	                 number(v->segment_bytes[device]));
}

json_t *skv_report_client(const struct skv_core_client_view *v)
{
	return json_pack("{s:I, s:I, s:I, s:s, s:I, s:I, s:b}", "client", number(v->client), "uid", number(v->uid),
	                 "pid", number((uint64_t)v->pid), "program", v->program, "sessions", number(v->sessions),
	                 "lease_pages", number(v->lease_pages), "fenced", v->fenced);
}

static const char *dtype_name(uint32_t dtype)
{
	return dtype == SKV_F32 ? "fp32" : dtype == SKV_F16 ? "fp16" : dtype == SKV_FP8 ? "fp8" : "bf16";
}

static json_t *model_json(const struct skv_model *m)
{
	char device[16];

	return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:I}", "name", m->name, "device",
	                 memory_name(m->device, device), "layers",
	                 number(m->n_layers), "heads", number(m->n_heads), "kv_heads", number(m->n_kv_heads),
	                 "head_dim", number(m->head_dim), "kv_dtype", dtype_name(m->kv_dtype), "max_tokens",
	                 number(m->max_tokens), "rank", number(m->rank), "n_ranks", number(m->n_ranks));
}

/*
 * Returns [{"layer": 5, "recall": 0.93}, …]: the recall, as last measured, of each layer that does not attend to all
 * tokens.
 */
static json_t *recall_json(const struct skv_session_page *p, uint32_t n_layers)
{
	json_t *all = json_array();

	for (uint32_t layer = 0; layer < n_layers; layer++) {
		uint32_t share = atomic_load_explicit(&p->recall[layer], memory_order_relaxed);

		if (share > 0)
			json_array_append_new(all, json_pack("{s:I, s:f}", "layer", number(layer), "recall",
			                                     (double)(share - 1) / 1e6));
	}
	return all;
}

json_t *skv_report_session(const struct skv_core_session_view *v)
{
	static const struct skv_session_page none;
	const struct skv_session_page *p = v->page ? v->page : &none;
	json_t *row = json_pack("{s:I, s:I, s:I, s:I, s:o, s:s, s:s, s:I, s:I, s:I, s:I}", "session",
	                number(v->session), "client", number(v->client), "pool", number(v->pool), "uid",
	                number(v->uid), "model", model_json(v->model), "policy", v->spec, "error", v->error,
	                "plugin", number(v->running_plugin), "generation", number(v->generation),
	                "running_generation", number(v->running_generation), "sequences",
	                number(v->sequences));
#define FIGURE(f) \
	json_object_set_new(row, #f, json_integer(number(atomic_load_explicit(&p->f, memory_order_relaxed))))
	FIGURE(steps);
	FIGURE(prompt_tokens);
	FIGURE(decode_tokens);
	FIGURE(attended_tokens);
	FIGURE(causal_tokens);
	FIGURE(evicted_pages);
	FIGURE(stock_pages);
	FIGURE(recall_steps);
#undef FIGURE
	json_object_set_new(row, "recall", recall_json(p, v->model->n_layers));
	return row;
}

/* Returns {"kv": 128, "bounds": 8, …}: the number of a sequence's pages with each kind of contents. */
static json_t *pages_json(const uint64_t pages[SKV_PAGE_KINDS])
{
	static const char *const kinds[SKV_PAGE_KINDS] = {"kv", "bounds", "slot_meta", "codes", "refs", "prefill"};
	json_t *all = json_object();

	for (uint32_t i = 0; i < SKV_PAGE_KINDS; i++)
		json_object_set_new(all, kinds[i], json_integer(number(pages[i])));
	return all;
}

/* Returns the number of pages that hold tokens of a sequence, compressed or not. */
static uint64_t resident(const uint64_t pages[SKV_PAGE_KINDS])
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < SKV_PAGE_KINDS; i++)
		n += skv_page_kind_holds_tokens(i) ? pages[i] : 0;
	return n;
}

json_t *skv_report_seq(const struct skv_core_seq_view *v)
{
	json_t *row = json_pack("{s:I, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "seq", number(v->seq), "uid",
	                number(v->uid), "name", v->name, "model", v->model, "client", number(v->client),
	                "session", number(v->session), "tokens", number(v->tokens), "max_tokens",
	                number(v->max_tokens), "pages_total", number(v->pages_total), "page_bytes",
	                number(v->page_bytes));
	json_object_set_new(row, "pages", v->counted ? pages_json(v->pages) : json_null());
	json_object_set_new(row, "pages_resident",
	                    v->counted ? json_integer(number(resident(v->pages))) : json_null());
	json_object_set_new(row, "pages_shared",
	                    v->counted ? json_integer(number(v->pages_shared)) : json_null());
	return row;
}

json_t *skv_report_pool(const struct skv_core_pool_view *v)
{
	char name[16];

	return json_pack("{s:I, s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "pool", number(v->pool), "uid",
	                 number(v->uid), "memory", memory_name(v->device, name), "page_bytes", number(v->page_bytes),
	                 "segment_bytes", number(v->segment_bytes), "segments", number(v->segments), "pending",
	                 number(v->pending), "pages", number(v->pages), "free", number(v->free), "lease",
	                 number(v->lease), "seq", number(v->seq), "shared", number(v->shared));
}

json_t *skv_report_policy(const struct skv_plugin *p, uint32_t sessions)
{
	json_t *row = json_copy(p->info);

	json_object_set_new(row, "id", json_integer(p->id));
	json_object_set_new(row, "file", json_string(p->file));
	json_object_set_new(row, "current", json_boolean(p->current));
	json_object_set_new(row, "sessions", json_integer(sessions));
	return row;
}

/* ---- status ---- */

void skv_report_status_line(struct skv_server *s, char *to, size_t len)
{
	struct skv_core_totals t;
	int n;

	skv_core_totals(s->core, true, 0, &t);
	n = snprintf(to, len,
	                 "%llu clients, %llu sequences, %.1f MiB of pages in use, %.1f MiB in segments",
	                 (unsigned long long)t.clients, (unsigned long long)t.sequences,
	                 (double)t.page_bytes[SKV_DEVICE_HOST] / 1048576.0,
	                 (double)t.segment_bytes[SKV_DEVICE_HOST] / 1048576.0);

	for (uint32_t i = SKV_DEVICE_CUDA(0); i < SKV_MEMORY_KINDS; i++)
		if (t.segment_bytes[i] && n > 0 && (size_t)n < len)
			n += snprintf(to + n, len - (size_t)n, "; %s: %.1f of %.1f MiB", s->devices[i]->name,
			              (double)t.page_bytes[i] / 1048576.0,
			              (double)t.segment_bytes[i] / 1048576.0);
}

/* Describes a device. A device's worker works for all users, so the worker's counters are shown to operators only. */
static json_t *device_json(const struct skv_device *d, const struct skv_core_totals *t, bool all)
{
	static const struct skv_worker_counters none;
	const struct skv_worker_counters *n = all ? skv_worker_counters(d->worker) : &none;
	char uuid[SKV_DEVICE_UUID_TEXT];

	return json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "device",
	                 d->name, "name", d->info.name, "uuid",
	                 skv_device_uuid_text(d->info.uuid, uuid), "ipc", d->legacy ? "legacy" : "vmm",
	                 "memory_bytes", number(d->info.bytes), "pool_limit_bytes",
	                 number(d->limits.pool_bytes), "account_limit_bytes",
	                 number(d->limits.account_bytes), "page_bytes", number(t->page_bytes[d->number]),
	                 "segment_bytes", number(t->segment_bytes[d->number]), "worker_pid",
	                 number(all ? (uint64_t)skv_worker_pid(d->worker) : 0), "workers_started", number(n->started),
	                 "workers_died", number(n->died), "worker_jobs", number(n->jobs),
	                 "worker_jobs_failed", number(n->failed));
}

/* Returns a row for each device that has been opened. */
static json_t *devices_json(struct skv_server *s, const struct skv_core_totals *t, bool all)
{
	json_t *rows = json_array();

	for (uint32_t i = 0; i < SKV_MEMORY_KINDS; i++)
		if (s->devices[i])
			json_array_append_new(rows, device_json(s->devices[i], t, all));
	return rows;
}

static json_t *limits_json(const struct skv_config *c)
{
	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "pool_bytes", number(c->pool_bytes),
	                 "segment_bytes", number(c->segment_bytes), "account_bytes", number(c->account_bytes),
	                 "account_clients", number(c->account_clients), "account_sequences",
	                 number(c->account_sequences), "max_clients", number(c->max_clients), "max_sessions",
	                 number(c->max_sessions), "max_sequences", number(c->max_sequences));
}

/*
 * Returns the bytes of host memory that the daemon's memfds take, including what clients have written to them: of all
 * users, or of one.
 */
static json_t *held_json(struct skv_server *s, bool all, const struct skv_core_held *h)
{
	uint64_t plugins = all ? skv_registry_bytes(s->registry) : 0;

	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "pools", number(h->pools), "sequences",
	                 number(h->sequences), "sessions", number(h->sessions), "state", number(h->state), "plugins",
	                 number(plugins), "total",
	                 number(h->pools + h->sequences + h->sessions + h->state + plugins));
}

/*
 * Returns one row with the limit of the daemon's memory cgroup; no row if the asker is not an operator, or if no limit
 * is known.
 */
static json_t *cgroup_json(struct skv_server *s, bool all)
{
	uint64_t limit, left = skv_cgroup_left(&s->hostmem.cgroup, &limit);

	return !all || left == UINT64_MAX
	               ? json_array()
	               : json_pack("[{s:I, s:I}]", "limit_bytes", number(limit), "left_bytes", number(left));
}

/*
 * Returns counters. For an operator they include all sequences dropped since the state was created and the longest turn
 * of the loop; for another user, only numbers of that user.
 */
static json_t *counters_json(const struct skv_server *s, bool all, const uint64_t *n)
{
	uint64_t aged = n[SKV_COUNT_EXPIRED], for_room = n[SKV_COUNT_DISPLACED];
	const struct skv_meter *meter = skv_loop_meter(s->loop);
	const uint64_t turn = all ? meter->turn_max_ns : n[SKV_COUNT_MESSAGE_MAX_NS];
	json_t *counters;

	if (all)
		skv_core_dropped(s->core, &aged, &for_room);
	counters = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "connections",
	                     number(n[SKV_COUNT_CONNECTIONS]), "refused", number(n[SKV_COUNT_REFUSED]), "malformed",
	                     number(n[SKV_COUNT_MALFORMED]), "messages", number(n[SKV_COUNT_MESSAGES]), "clients_gone",
	                     number(n[SKV_COUNT_GONE]), "sequences_expired", number(aged), "sequences_displaced",
	                     number(for_room), "reclaim_last_ms", (double)n[SKV_COUNT_RECLAIM_NS] / 1e6,
	                     "reclaim_max_ms", (double)n[SKV_COUNT_RECLAIM_MAX_NS] / 1e6, "turn_max_ms",
	                     (double)turn / 1e6);
	if (all)
		json_object_set_new(counters, "turn_cpu_max_ms", json_real((double)meter->turn_cpu_max_ns / 1e6));
	return counters;
}

/* Returns a row for each kind of work that made turns of the loop long; for operators only. */
static json_t *turns_json(const struct skv_meter *m, bool all)
{
	json_t *rows = json_array();

	for (unsigned i = 0; all && i < SKV_METER_WORKS && m->works[i].name; i++)
		json_array_append_new(rows, json_pack("{s:s, s:I, s:f, s:f}", "work", m->works[i].name, "long",
		                                      number(m->works[i].n_long), "cpu_max_ms",
		                                      (double)m->works[i].cpu_max_ns / 1e6, "max_ms",
		                                      (double)m->works[i].max_ns / 1e6));
	return rows;
}

json_t *skv_report_status(struct skv_server *s, bool all, uid_t uid, const struct skv_core_held *held)
{
	const uint64_t *n = all ? skv_counts_total(s->counts) : skv_counts_of(s->counts, uid);
	const struct skv_meter *meter = skv_loop_meter(s->loop);
	uint64_t uptime = skv_now_ns() - s->life.started_ns;
	struct skv_core_totals t;

	skv_core_totals(s->core, all, uid, &t);
	return json_pack(
		"{s:s, s:I, s:f, s:s, s:s, s:I, s:{s:I, s:I, s:I, s:I, s:I, s:I}, s:o, s:o, s:o, s:o, s:o, s:[o], s:o, s:o}",
		"version", PACKAGE_VERSION, "pid", number((uint64_t)getpid()), "uptime_s", (double)uptime / 1e9,
		"socket", s->life.sockets.clients.path ? s->life.sockets.clients.path : "(service manager)", "scope",
		all ? "all" : "own", "policy_generation", number(skv_core_policy_generation(s->core)), "totals",
		"clients", number(t.clients), "sessions", number(t.sessions), "sequences", number(t.sequences),
		"page_bytes", number(t.page_bytes[SKV_DEVICE_HOST]), "segment_bytes",
		number(t.segment_bytes[SKV_DEVICE_HOST]), "other_bytes", number(t.other_bytes), "held",
		held_json(s, all, held), "limits", limits_json(&s->config), "counters", counters_json(s, all, n),
		"turns", turns_json(meter, all), "parking", skv_parking_status(s, all, uid, n), "prefixes",
		skv_prefix_status(s, all, uid, n), "devices", devices_json(s, &t, all), "cgroup", cgroup_json(s, all));
}

/* ---- */

void skv_report_send(struct skv_conn *conn, uint16_t type, uint32_t serial, json_t *value)
{
	char *text = skv_json_text(value, JSON_COMPACT | JSON_ENSURE_ASCII);

	json_decref(value);
	if (text)
		skv_conn_send_text(conn, type, serial, text, strlen(text));
	else
		skv_conn_error(conn, serial, ENOMEM, "the daemon is out of memory for this answer");
	free(text);
}
