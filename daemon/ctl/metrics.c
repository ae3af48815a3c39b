/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/ctl/metrics.c - the command metrics: prints the daemon's numbers in Prometheus' text format.
 *
 * The output is for a textfile collector, or for a small exporter that runs `sparsekvctl metrics`. The tables below say
 * which field of the daemon's JSON becomes which metric, and which fields become labels.
 */
#include <string.h>
#include "daemon/ctl/ctl.h"

struct metric {
	const char *name, *type, *help;
	const char *field; /* the field, in a row of the JSON table, that has the value */
	double scale;      /* factor by which the field's value is multiplied; 0 means 1 */
	const char *extra; /* a constant label, `key="value"`, or NULL */
};

/*
 * A table of the daemon's JSON reply: the fields that become labels of its rows, and its metrics. If a label's field is
 * an object, the label is the object's name.
 */
struct table {
	const char *rows; /* name of the array in the reply; NULL: the reply itself is the only row */
	const char *labels[6];
	const struct metric *metrics;
	size_t n;
};

#define METRICS(a) .metrics = a, .n = sizeof(a) / sizeof((a)[0])

static const struct metric account_metrics[] = {
	{"sparsekv_account_clients", "gauge", "Connections of a user", "clients", 0, NULL},
	{"sparsekv_account_sessions", "gauge", "Opened models of a user", "sessions", 0, NULL},
	{"sparsekv_account_sequences", "gauge", "Sequences of a user", "sequences", 0, NULL},
	{"sparsekv_account_page_bytes", "gauge", "Bytes of a user's pages in use", "page_bytes", 0, NULL},
	{"sparsekv_account_segment_bytes", "gauge", "Bytes of the segments that hold them", "segment_bytes",
	 0, NULL},
	{"sparsekv_account_other_bytes", "gauge", "Bytes of a user's host memory besides pages", "other_bytes", 0,
	 NULL},
	{"sparsekv_account_fds", "gauge", "Open files that the daemon has for a user", "fds", 0, NULL},
};
static const struct metric device_account_metrics[] = {
	{"sparsekv_account_device_page_bytes", "gauge", "Bytes of a user's pages in use on a device",
	 "page_bytes", 0, NULL},
	{"sparsekv_account_device_segment_bytes", "gauge", "Bytes of the segments that hold them",
	 "segment_bytes", 0, NULL},
};
static const struct metric device_metrics[] = {
	{"sparsekv_device_memory_bytes", "gauge", "Memory of a device", "memory_bytes", 0, NULL},
	{"sparsekv_device_pool_limit_bytes", "gauge", "Limit of all segments there (cuda-pool-bytes)",
	 "pool_limit_bytes", 0, NULL},
	{"sparsekv_device_page_bytes", "gauge", "Bytes of pages in use on a device", "page_bytes", 0, NULL},
	{"sparsekv_device_segment_bytes", "gauge", "Bytes of all segments of a device", "segment_bytes", 0,
	 NULL},
	{"sparsekv_device_workers_started_total", "counter", "Worker processes started", "workers_started", 0,
	 NULL},
	{"sparsekv_device_workers_died_total", "counter", "Worker processes that died or were killed",
	 "workers_died", 0, NULL},
	{"sparsekv_device_jobs_total", "counter", "Segments zeroed, allocated or freed by workers",
	 "worker_jobs", 0, NULL},
	{"sparsekv_device_jobs_failed_total", "counter", "Jobs of workers that failed", "worker_jobs_failed", 0,
	 NULL},
};
static const struct metric pool_metrics[] = {
	{"sparsekv_pool_segments", "gauge", "Segments of a pool", "segments", 0, NULL},
	{"sparsekv_pool_page_bytes", "gauge", "Bytes of one page", "page_bytes", 0, NULL},
	{"sparsekv_pool_pages", "gauge", "Pages of a pool by state", "free", 0, "state=\"free\""},
	{"sparsekv_pool_pages", NULL, NULL, "lease", 0, "state=\"lease\""},
	{"sparsekv_pool_pages", NULL, NULL, "seq", 0, "state=\"sequence\""},
	{"sparsekv_pool_pages", NULL, NULL, "shared", 0, "state=\"shared\""},
};
static const struct metric session_metrics[] = {
	{"sparsekv_session_sequences", "gauge", "Sequences that a session holds", "sequences", 0, NULL},
	{"sparsekv_session_steps_total", "counter", "Committed steps", "steps", 0, NULL},
	{"sparsekv_session_tokens_total", "counter", "Tokens by kind of row", "prompt_tokens", 0,
	 "kind=\"prefill\""},
	{"sparsekv_session_tokens_total", NULL, NULL, "decode_tokens", 0, "kind=\"decode\""},
	{"sparsekv_session_attended_tokens_total", "counter", "Tokens attended by decode rows, over layers",
	 "attended_tokens", 0, NULL},
	{"sparsekv_session_causal_tokens_total", "counter", "Tokens that dense attention would have attended",
	 "causal_tokens", 0, NULL},
	{"sparsekv_session_evicted_pages_total", "counter", "Pages evicted", "evicted_pages", 0, NULL},
	{"sparsekv_session_recall_steps_total", "counter", "Steps in which recall was measured", "recall_steps", 0,
	 NULL},
	{"sparsekv_session_pages", "gauge", "Pages of a session's sequences", "pages_resident", 0,
	 "state=\"resident\""},
	{"sparsekv_session_pages", NULL, NULL, "pages_total", 0, "state=\"total\""},
	{"sparsekv_session_page_bytes", "gauge", "Bytes of a session's sequences by what their pages hold", "kv_bytes", 0,
	 "kind=\"kv\""},
	{"sparsekv_session_page_bytes", NULL, NULL, "bounds_bytes", 0, "kind=\"bounds\""},
	{"sparsekv_session_page_bytes", NULL, NULL, "slot_meta_bytes", 0, "kind=\"slot_meta\""},
	{"sparsekv_session_page_bytes", NULL, NULL, "codes_bytes", 0, "kind=\"codes\""},
	{"sparsekv_session_page_bytes", NULL, NULL, "refs_bytes", 0, "kind=\"refs\""},
	{"sparsekv_session_page_bytes", NULL, NULL, "prefill_bytes", 0, "kind=\"prefill\""},
	{"sparsekv_session_stock_pages", "gauge", "Free pages on lease", "stock_pages", 0, NULL},
};
static const struct metric recall_metrics[] = {
	{"sparsekv_session_recall", "gauge",
	 "Share of dense attention's weight on the tokens that a layer attends to, as last measured", "recall", 0,
	 NULL},
};
static const struct metric policy_metrics[] = {
	{"sparsekv_policy_sessions", "gauge", "Sessions that run a policy file", "sessions", 0, NULL},
};
static const struct metric status_metrics[] = {
	{"sparsekv_up_seconds", "gauge", "Time since the daemon started", "uptime_s", 0, NULL},
	{"sparsekv_policy_generation", "gauge", "Generation of policies, raised by every swap", "policy_generation", 0,
	 NULL},
};
static const struct metric total_metrics[] = {
	{"sparsekv_page_bytes", "gauge", "Bytes of pages in use", "page_bytes", 0, NULL},
	{"sparsekv_segment_bytes", "gauge", "Bytes of all segments", "segment_bytes", 0, NULL},
};
static const struct metric held_metrics[] = {
	{"sparsekv_held_bytes", "gauge", "Host memory of the daemon's files by what it is for", "pools", 0, "what=\"pools\""},
	{"sparsekv_held_bytes", NULL, NULL, "sequences", 0, "what=\"sequences\""},
	{"sparsekv_held_bytes", NULL, NULL, "sessions", 0, "what=\"sessions\""},
	{"sparsekv_held_bytes", NULL, NULL, "state", 0, "what=\"state\""},
	{"sparsekv_held_bytes", NULL, NULL, "plugins", 0, "what=\"plugins\""},
};
static const struct metric cgroup_metrics[] = {
	{"sparsekv_cgroup_limit_bytes", "gauge", "Limit of the daemon's memory cgroup", "limit_bytes", 0, NULL},
	{"sparsekv_cgroup_left_bytes", "gauge",
	 "Bytes left until this limit; in its last quarter nothing new is created", "left_bytes", 0, NULL},
};
static const struct metric parking_metrics[] = {
	{"sparsekv_parked_sequences", "gauge", "Sequences that are parked on disk", "sequences", 0, NULL},
	{"sparsekv_parked_bytes", "gauge", "Bytes of the files of parked sequences", "bytes", 0, NULL},
	{"sparsekv_parking_jobs", "gauge", "Sequences that are being written or read", "jobs", 0, NULL},
	{"sparsekv_parked_total", "counter", "Sequences that were parked", "parked", 0, NULL},
	{"sparsekv_resumed_total", "counter", "Sequences that were read back", "resumed", 0, NULL},
	{"sparsekv_parking_failed_total", "counter", "Sequences that could not be written or read", "failed", 0, NULL},
	{"sparsekv_parked_damaged_total", "counter", "Files that were found damaged", "damaged", 0, NULL},
	{"sparsekv_parked_expired_total", "counter", "Parked sequences dropped after sequence-ttl", "expired", 0, NULL},
	{"sparsekv_attached_total", "counter", "Sequences attached, by where they were", "attached_in_memory", 0, "from=\"memory\""},
	{"sparsekv_attached_total", NULL, NULL, "attached_after_reading", 0, "from=\"disk\""},
	{"sparsekv_parking_written_bytes_total", "counter", "Bytes written to files", "bytes_written", 0, NULL},
	{"sparsekv_parking_read_bytes_total", "counter", "Bytes read from files", "bytes_read", 0, NULL},
	{"sparsekv_resume_seconds_max", "gauge", "Longest time until a parked sequence was in memory", "resume_max_ms", 1e-3, NULL},
};
static const struct metric prefix_metrics[] = {
	{"sparsekv_prefix_sealed_total", "counter", "Prefixes that were sealed", "sealed", 0, NULL},
	{"sparsekv_prefix_asked_total", "counter", "Prompts for which a sealed prefix was asked for", "asked", 0, NULL},
	{"sparsekv_prefix_hits_total", "counter", "Prompts that began with a sealed prefix", "hits", 0, NULL},
	{"sparsekv_prefix_asked_tokens_total", "counter", "Tokens of prompts for which a sealed prefix was asked for",
	 "asked_tokens", 0, NULL},
	{"sparsekv_prefix_hit_tokens_total", "counter", "Tokens of these prompts that came from a sealed prefix",
	 "hit_tokens", 0, NULL},
	{"sparsekv_prefix_parked", "gauge", "Prefixes that are parked on disk", "parked", 0, NULL},
	{"sparsekv_prefix_parked_bytes", "gauge", "Bytes of the files of prefixes on disk", "parked_bytes", 0, NULL},
	{"sparsekv_prefix_written_total", "counter", "Prefixes that were written to disk", "written", 0, NULL},
	{"sparsekv_prefix_restored_total", "counter", "Prefixes that came back from disk", "restored", 0, NULL},
	{"sparsekv_prefix_restored_tokens_total", "counter", "Tokens of prefixes that came back from disk",
	 "restored_tokens", 0, NULL},
	{"sparsekv_prefix_evicted_total", "counter", "Prefixes on disk that were evicted to make room", "evicted", 0,
	 NULL},
	{"sparsekv_prefix_restore_seconds_last", "gauge", "Time until the last prefix from disk was in memory",
	 "restore_last_ms", 1e-3, NULL},
	{"sparsekv_prefix_restore_seconds_max", "gauge", "Longest time until a prefix from disk was in memory",
	 "restore_max_ms", 1e-3, NULL},
	{"sparsekv_prefix_fetched_total", "counter", "Prefixes that came from the store", "fetched", 0, NULL},
	{"sparsekv_prefix_fetched_tokens_total", "counter", "Tokens of prefixes that came from the store",
	 "fetched_tokens", 0, NULL},
	{"sparsekv_prefix_sent_total", "counter", "Prefixes that were sent to the store", "sent", 0, NULL},
	{"sparsekv_prefix_sent_bytes_total", "counter", "Bytes of these prefixes that the store lacked", "sent_bytes",
	 0, NULL},
	{"sparsekv_prefix_failed_total", "counter", "Prefixes that could not be fetched or sent", "failed", 0, NULL},
	{"sparsekv_prefix_nixl_values_total", "counter", "Values that were read from other hosts' memory by NIXL", "nixl_values", 0, NULL},
	{"sparsekv_prefix_nixl_bytes_total", "counter", "Bytes of values that were read by NIXL", "nixl_bytes", 0,
	 NULL},
	{"sparsekv_prefix_fetching", "gauge", "Prompts for which the store is being asked", "fetching", 0, NULL},
	{"sparsekv_prefix_sending", "gauge", "Prefixes that are being sent to the store", "sending", 0, NULL},
	{"sparsekv_prefix_store", "gauge", "1 if a store is configured (prefix-store), else 0", "store", 0, NULL},
	{"sparsekv_prefix_fetch_seconds_last", "gauge",
	 "Time from the last prompt's keys until its prefix was in memory", "fetch_last_ms",
	 1e-3, NULL},
	{"sparsekv_prefix_fetch_seconds_max", "gauge",
	 "Longest time from a prompt's keys until its prefix was in memory", "fetch_max_ms", 1e-3, NULL},
};
static const struct metric limit_metrics[] = {
	{"sparsekv_pool_limit_bytes", "gauge", "Limit of all segments (pool-bytes)", "pool_bytes", 0, NULL},
};
static const struct metric counter_metrics[] = {
	{"sparsekv_connections_total", "counter", "Connections accepted", "connections", 0, NULL},
	{"sparsekv_connections_refused_total", "counter", "Connections over a limit", "refused", 0, NULL},
	{"sparsekv_malformed_total", "counter", "Connections ended for a malformed message", "malformed", 0,
	 NULL},
	{"sparsekv_messages_total", "counter", "Well-formed requests", "messages", 0, NULL},
	{"sparsekv_clients_gone_total", "counter", "Clients whose pages were taken back", "clients_gone", 0,
	 NULL},
	{"sparsekv_sequences_expired_total", "counter", "Sequences dropped after sequence-ttl", "sequences_expired", 0, NULL},
	{"sparsekv_sequences_displaced_total", "counter", "Sequences dropped to make room for other users", "sequences_displaced",
	 0, NULL},
	{"sparsekv_reclaim_seconds_max", "gauge", "Longest time until a gone client's pages were taken back",
	 "reclaim_max_ms", 1e-3, NULL},
	{"sparsekv_turn_seconds_max", "gauge",
	 "Longest turn of the daemon's loop; for a user, the longest time that one of its messages took", "turn_max_ms",
	 1e-3, NULL},
	{"sparsekv_turn_cpu_seconds_max", "gauge", "Longest turn of the daemon's loop in CPU time", "turn_cpu_max_ms",
	 1e-3, NULL},
};
static const struct metric turn_metrics[] = {
	{"sparsekv_turn_work_seconds_max", "gauge",
	 "Longest time that a piece of this work took, of those above 0.1 ms", "max_ms", 1e-3, NULL},
	{"sparsekv_turn_work_cpu_seconds_max", "gauge", "Longest time that a piece of this work took in CPU time",
	 "cpu_max_ms", 1e-3, NULL},
	{"sparsekv_turn_work_long_total", "counter", "Pieces of this work that took 2 ms of CPU time or more", "long",
	 0, NULL},
};

static const struct table account_table = {"accounts", {"uid"}, METRICS(account_metrics)};
static const struct table device_account_table = {
	"device_accounts", {"uid", "device"}, METRICS(device_account_metrics)};
static const struct table device_table = {"devices", {"device", "uuid"}, METRICS(device_metrics)};
static const struct table pool_table = {"pools", {"pool", "uid", "memory"}, METRICS(pool_metrics)};
static const struct table session_table = {
	"sessions", {"session", "client", "uid", "model", "policy"}, METRICS(session_metrics)};
static const struct table recall_table = {
	"recall", {"session", "client", "uid", "model", "policy", "layer"}, METRICS(recall_metrics)};
static const struct table policy_table = {
	"policies", {"id", "name", "version", "file"}, METRICS(policy_metrics)};
static const struct table status_table = {NULL, {NULL}, METRICS(status_metrics)};
static const struct table total_table = {NULL, {NULL}, METRICS(total_metrics)};
static const struct table held_table = {NULL, {NULL}, METRICS(held_metrics)};
static const struct table cgroup_table = {"cgroup", {NULL}, METRICS(cgroup_metrics)};
static const struct table parking_table = {"parking", {NULL}, METRICS(parking_metrics)};
static const struct table prefix_table = {"prefixes", {NULL}, METRICS(prefix_metrics)};
static const struct table limit_table = {NULL, {NULL}, METRICS(limit_metrics)};
static const struct table counter_table = {NULL, {NULL}, METRICS(counter_metrics)};
static const struct table turn_table = {"turns", {"work"}, METRICS(turn_metrics)};

static void put_label(FILE *to, const char *key, const json_t *value, const char *comma)
{
	const char *text = json_string_value(json_is_object(value) ? json_object_get(value, "name") : value);

	fprintf(to, "%s%s=\"", comma, key);
	if (json_is_integer(value))
		fprintf(to, "%lld", (long long)json_integer_value(value));
	for (; text && *text; text++) {
		if (*text == '"' || *text == '\\')
			fputc('\\', to);
		fputc(*text, to);
	}
	fputc('"', to);
}

static void put_sample(FILE *to, const struct table *t, const struct metric *m, const json_t *row)
{
	const char *comma = "{";

	fputs(m->name, to);
	for (size_t i = 0; i < 6 && t->labels[i]; i++) {
		put_label(to, t->labels[i], json_object_get(row, t->labels[i]), comma);
		comma = ",";
	}
	if (m->extra) {
		fprintf(to, "%s%s", comma, m->extra);
		comma = ",";
	}
	fprintf(to, "%s %.15g\n", *comma == ',' ? "}" : "",
	        skv_json_num(row, m->field) * (m->scale != 0 ? m->scale : 1));
}

/* Prints the metrics of a table. Samples of one metric name are adjacent, as Prometheus' text format requires. */
static void put_table(FILE *to, const struct table *t, const json_t *answer)
{
	const json_t *rows = t->rows ? json_object_get(answer, t->rows) : NULL;
	json_t *row;
	size_t r;

	for (size_t i = 0; i < t->n; i++) {
		const struct metric *m = &t->metrics[i];

		if (!m->type)
			continue; /* a row without a type was printed with the first row of the same name */
		fprintf(to, "# HELP %s %s\n# TYPE %s %s\n", m->name, m->help, m->name, m->type);
		for (const struct metric *same = m; same < t->metrics + t->n && (same == m || !same->type);
		     same++) {
			if (!t->rows)
				put_sample(to, t, same, answer);
			json_array_foreach(rows, r, row)
				put_sample(to, t, same, row);
		}
	}
}

/* Adds the bytes of a sequence's pages of each kind to the row of its session, as fields kv_bytes and so on. */
static void add_bytes(json_t *session, const json_t *seq)
{
	double page_bytes = skv_json_num(seq, "page_bytes");
	const char *kind;
	json_t *pages;

	json_object_foreach(json_object_get(seq, "pages"), kind, pages) {
		char field[32];

		snprintf(field, sizeof(field), "%s_bytes", kind);
		json_object_set_new(session, field,
		                    json_real(skv_json_num(session, field) + json_number_value(pages) * page_bytes));
	}
}

#define SHOWN_SESSIONS 16 /* maximum of sessions of a user that have metrics of their own */

static void add_figures(json_t *to, const json_t *row)
{
	for (size_t i = 0; i < sizeof(session_metrics) / sizeof(session_metrics[0]); i++) {
		const char *field = session_metrics[i].field;

		json_object_set_new(to, field, json_real(skv_json_num(to, field) + skv_json_num(row, field)));
	}
}

/* Returns the row with the sums of all sessions of a user that have no metrics of their own. */
static json_t *others_of(json_t *rows, const json_t *uid)
{
	json_t *row;
	size_t i;

	json_array_foreach(rows, i, row)
		if (json_equal(json_object_get(row, "uid"), uid) && json_is_string(json_object_get(row, "session")))
			return row;
	row = json_pack("{s:s, s:s, s:O, s:s, s:s}", "session", "others", "client", "others", "uid", uid, "model", "others", "policy", "others");
	json_array_append_new(rows, row);
	return row;
}

/*
 * Limits the output: the first SHOWN_SESSIONS sessions of each user keep their metrics, and the others are summed up.
 */
static void bound_sessions(json_t *sessions)
{
	json_t *rows = json_array(), *shown = json_object(), *row;
	char key[32];
	size_t i;

	json_array_foreach(json_object_get(sessions, "sessions"), i, row) {
		snprintf(key, sizeof(key), "%.0f", skv_json_num(row, "uid"));
		json_object_set_new(shown, key, json_real(skv_json_num(shown, key) + 1));
		if (skv_json_num(shown, key) <= SHOWN_SESSIONS)
			json_array_append(rows, row);
		else
			add_figures(others_of(rows, json_object_get(row, "uid")), row);
	}
	json_object_set_new(sessions, "sessions", rows);
	json_decref(shown);
}

static void add_recall(json_t *rows, const json_t *session)
{
	static const char *const labels[] = {"session", "client", "uid", "model", "policy"};
	json_t *layer;
	size_t i;

	json_array_foreach(json_object_get(session, "recall"), i, layer) {
		json_t *one = json_copy(layer);

		for (size_t l = 0; l < sizeof(labels) / sizeof(*labels); l++)
			json_object_set(one, labels[l], json_object_get(session, labels[l]));
		json_array_append_new(rows, one);
	}
}

/* Adds to the table of sessions numbers from other replies: pages of sequences, and a row for each layer's recall. */
static void complete_sessions(json_t *sessions, const json_t *seqs)
{
	json_t *rows = json_array(), *row, *seq;
	double resident, total;
	size_t i, j;

	json_array_foreach(json_object_get(sessions, "sessions"), i, row) {
		skv_ctl_sum_pages(seqs, skv_json_u64(row, "session"), &resident, &total);
		json_object_set_new(row, "pages_resident", json_real(resident));
		json_object_set_new(row, "pages_total", json_real(total));
		json_array_foreach(json_object_get(seqs, "sequences"), j, seq)
			if (skv_json_u64(seq, "session") == skv_json_u64(row, "session"))
				add_bytes(row, seq);
	}
	bound_sessions(sessions);
	json_array_foreach(json_object_get(sessions, "sessions"), i, row)
		add_recall(rows, row);
	json_object_set_new(sessions, "recall", rows);
}

int skv_ctl_metrics(struct skv_ctl *ctl, const struct skv_ctl_options *o)
{
	static const enum skv_query queries[] = {SKV_QUERY_STATUS, SKV_QUERY_POOLS, SKV_QUERY_SESSIONS,
	                                         SKV_QUERY_POLICIES, SKV_QUERY_SEQS};
	static const char *const names[] = {"status", "pools", "sessions", "policies", "seqs"};
	json_t *all = json_object(), *answer, *status;

	for (size_t i = 0; i < sizeof(queries) / sizeof(*queries); i++) {
		int r = skv_ctl_query(ctl, queries[i], &answer);

		if (r < 0) {
			json_decref(all);
			return skv_ctl_complain(ctl, r);
		}
		json_object_set_new(all, names[i], answer);
	}
	complete_sessions(json_object_get(all, "sessions"), json_object_get(all, "seqs"));
	if (o->json) {
		skv_ctl_print_json(all);
		return SKV_EXIT_OK;
	}
	status = json_object_get(all, "status");
	put_table(stdout, &status_table, status);
	put_table(stdout, &total_table, json_object_get(status, "totals"));
	put_table(stdout, &held_table, json_object_get(status, "held"));
	put_table(stdout, &cgroup_table, status);
	put_table(stdout, &parking_table, status);
	put_table(stdout, &prefix_table, status);
	put_table(stdout, &limit_table, json_object_get(status, "limits"));
	put_table(stdout, &counter_table, json_object_get(status, "counters"));
	put_table(stdout, &turn_table, status);
	put_table(stdout, &account_table, status);
	put_table(stdout, &device_table, status);
	put_table(stdout, &device_account_table, status);
	put_table(stdout, &pool_table, json_object_get(all, "pools"));
	put_table(stdout, &session_table, json_object_get(all, "sessions"));
	put_table(stdout, &recall_table, json_object_get(all, "sessions"));
	put_table(stdout, &policy_table, json_object_get(all, "policies"));
	json_decref(all);
	return SKV_EXIT_OK;
}
