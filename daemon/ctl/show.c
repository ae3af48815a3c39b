/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/ctl/show.c - the commands of sparsekvctl that print the daemon's state: status, pool, seq list, policy list.
 */
#include <string.h>
#include "daemon/ctl/ctl.h"
#include "daemon/ctl/text-table.h"

typedef unsigned long long ull;

/*
 * Queries the daemon, and prints an error, or the reply if --json is given. Returns 1 if the caller has to print *ret
 * as a table.
 */
static int ask(struct skv_ctl *ctl, const struct skv_ctl_options *o, enum skv_query what, json_t **ret,
               int *ret_status)
{
	int r = skv_ctl_query(ctl, what, ret);

	*ret_status = SKV_EXIT_OK;
	if (r < 0)
		*ret_status = skv_ctl_complain(ctl, r);
	else if (o->json)
		skv_ctl_print_json(*ret);
	return r == 0 && !o->json;
}

static void print_accounts(const json_t *rows, const json_t *limits)
{
	static const char *const heads[] = {"UID",   "CLIENTS", "SESSIONS", "SEQUENCES",
	                                    "PAGES", "OTHER",   "OF",       "SEGMENTS", "FDS"};
	struct skv_table t = {.heads = heads, .n_cols = 9};
	size_t i;
	json_t *row;

	json_array_foreach(rows, i, row) {
		skv_table_cell(&t, "%llu", (ull)skv_json_u64(row, "uid"));
		skv_table_cell(&t, "%llu", (ull)skv_json_u64(row, "clients"));
		skv_table_cell(&t, "%llu", (ull)skv_json_u64(row, "sessions"));
		skv_table_cell(&t, "%llu", (ull)skv_json_u64(row, "sequences"));
		skv_table_cell(&t, "%s", skv_human_bytes(skv_json_u64(row, "page_bytes")));
		skv_table_cell(&t, "%s", skv_human_bytes(skv_json_u64(row, "other_bytes")));
		skv_table_cell(&t, "%s", skv_human_bytes(skv_json_u64(limits, "account_bytes")));
		skv_table_cell(&t, "%s", skv_human_bytes(skv_json_u64(row, "segment_bytes")));
		skv_table_cell(&t, "%llu", (ull)skv_json_u64(row, "fds"));
	}
	skv_table_print(&t, stdout);
	skv_table_deinit(&t);
}

static void print_devices(const json_t *rows)
{
	size_t i;
	json_t *d;

	json_array_foreach(rows, i, d) {
		printf("%-9s %s of pages in use, in %s of segments, of %s; %s",
		       skv_json_str(d, "device"), skv_human_bytes(skv_json_u64(d, "page_bytes")),
		       skv_human_bytes(skv_json_u64(d, "segment_bytes")),
		       skv_human_bytes(skv_json_u64(d, "pool_limit_bytes")), skv_json_str(d, "name"));
		printf(", %s%s\n", skv_human_bytes(skv_json_u64(d, "memory_bytes")),
		       skv_json_u64(d, "worker_pid") ? ", worker at work" : "");
	}
}

static void print_parking(const json_t *rows)
{
	size_t i;
	json_t *p;

	json_array_foreach(rows, i, p)
		printf("parked    %llu sequences, %s, in %s; %llu attached from memory, %llu from disk (%.0f ms at most); %llu failed\n",
		       (ull)skv_json_u64(p, "sequences"), skv_human_bytes(skv_json_u64(p, "bytes")), skv_json_str(p, "path"),
		       (ull)skv_json_u64(p, "attached_in_memory"), (ull)skv_json_u64(p, "attached_after_reading"),
		       skv_json_num(p, "resume_max_ms"), (ull)skv_json_u64(p, "failed"));
}

static void print_prefixes(const json_t *rows)
{
	size_t i;
	json_t *p;

	json_array_foreach(rows, i, p) {
		const bool store = json_is_true(json_object_get(p, "store"));

		if (!store && !skv_json_u64(p, "parked") && !skv_json_u64(p, "asked") && !skv_json_u64(p, "sealed"))
			continue;
		printf("prefixes  %llu sealed; %llu of %llu prompts began with one, %llu of their %llu tokens\n", (ull)skv_json_u64(p, "sealed"),
		       (ull)skv_json_u64(p, "hits"), (ull)skv_json_u64(p, "asked"), (ull)skv_json_u64(p, "hit_tokens"),
		       (ull)skv_json_u64(p, "asked_tokens"));
		if (skv_json_u64(p, "parked") || skv_json_u64(p, "restored"))
			printf("on disk   %llu prefixes, %s; %llu were read back, %llu tokens (%.0f ms at most)\n", (ull)skv_json_u64(p, "parked"),
			       skv_human_bytes(skv_json_u64(p, "parked_bytes")), (ull)skv_json_u64(p, "restored"),
			       (ull)skv_json_u64(p, "restored_tokens"), skv_json_num(p, "restore_max_ms"));
		if (store)
			printf("store     %llu prefixes fetched, %llu tokens (%.0f ms at most); %llu sent, %s; %llu under way; %llu failed\n",
			       (ull)skv_json_u64(p, "fetched"), (ull)skv_json_u64(p, "fetched_tokens"), skv_json_num(p, "fetch_max_ms"),
			       (ull)skv_json_u64(p, "sent"), skv_human_bytes(skv_json_u64(p, "sent_bytes")),
			       (ull)(skv_json_u64(p, "fetching") + skv_json_u64(p, "sending")), (ull)skv_json_u64(p, "failed"));
		if (skv_json_u64(p, "nixl_values"))
			printf("nixl      %llu values read from other hosts' memory, %s\n", (ull)skv_json_u64(p, "nixl_values"),
			       skv_human_bytes(skv_json_u64(p, "nixl_bytes")));
	}
}

static uint64_t account_limit(const json_t *devices, const char *name)
{
	size_t i;
	json_t *d;

	json_array_foreach(devices, i, d)
		if (!strcmp(skv_json_str(d, "device"), name))
			return skv_json_u64(d, "account_limit_bytes");
	return 0;
}

static void print_device_accounts(const json_t *rows, const json_t *devices)
{
	static const char *const heads[] = {"UID", "-DEVICE", "PAGES", "OF", "SEGMENTS"};
	struct skv_table t = {.heads = heads, .n_cols = 5};
	size_t i;
	json_t *row;

	if (!json_array_size(rows))
		return;
	printf("\nDevice memory:\n");
	json_array_foreach(rows, i, row) {
		const char *device = skv_json_str(row, "device");

		skv_table_cell(&t, "%llu", (ull)skv_json_u64(row, "uid"));
		skv_table_cell(&t, "%s", device);
		skv_table_cell(&t, "%s", skv_human_bytes(skv_json_u64(row, "page_bytes")));
		skv_table_cell(&t, "%s", skv_human_bytes(account_limit(devices, device)));
		skv_table_cell(&t, "%s", skv_human_bytes(skv_json_u64(row, "segment_bytes")));
	}
	skv_table_print(&t, stdout);
	skv_table_deinit(&t);
}

static void print_clients(const json_t *rows)
{
	static const char *const heads[] = {"CLIENT", "UID", "PID", "SESSIONS", "LEASED PAGES", "-STATE",
	                                    "-PROGRAM"};
	struct skv_table t = {.heads = heads, .n_cols = 7};
	size_t i;
	json_t *row;

	json_array_foreach(rows, i, row) {
		skv_table_cell(&t, "%llu", (ull)skv_json_u64(row, "client"));
		skv_table_cell(&t, "%llu", (ull)skv_json_u64(row, "uid"));
		skv_table_cell(&t, "%llu", (ull)skv_json_u64(row, "pid"));
		skv_table_cell(&t, "%llu", (ull)skv_json_u64(row, "sessions"));
		skv_table_cell(&t, "%llu", (ull)skv_json_u64(row, "lease_pages"));
		skv_table_cell(&t, "%s", json_is_true(json_object_get(row, "fenced")) ? "fenced" : "connected");
		skv_table_cell(&t, "%s", skv_json_str(row, "program"));
	}
	skv_table_print(&t, stdout);
	skv_table_deinit(&t);
}

/* Returns whether the spec gives the parameter a value, other than the word in `none`, which stands for no value. */
static bool gives(const char *spec, const char *param, const char *none)
{
	size_t n = strlen(param);

	for (const char *at = strchr(spec, '?'); at; at = strchr(at + 1, '&'))
		if (!strncmp(at + 1, param, n) && at[1 + n] == '=')
			return strncmp(at + 2 + n, none, strlen(none)) != 0;
	return false;
}

/* Returns whether the layers of the spec's policy can come from a calibrated profile. */
static bool is_calibrated(const json_t *policies, const char *spec)
{
	size_t i, j, n = strcspn(spec, ":?");
	json_t *policy, *param;

	json_array_foreach(policies, i, policy) {
		const char *name = skv_json_str(policy, "name");
		bool layers = false, profile = false;

		if (strlen(name) != n || strncmp(name, spec, n))
			continue;
		json_array_foreach(json_object_get(policy, "params"), j, param) {
			layers |= !strcmp(skv_json_str(param, "name"), "layers");
			profile |= !strcmp(skv_json_str(param, "name"), "profile");
		}
		return layers && profile;
	}
	return false;
}

/*
 * Prints a note about each session whose policy has to guess layers, because its spec names no profile and no layers;
 * once for each model and policy.
 */
static void print_guesses(const json_t *sessions, const json_t *policies)
{
	json_t *said = json_object(), *row;
	char note[512];
	size_t i;

	json_array_foreach(sessions, i, row) {
		const char *spec = skv_json_str(row, "policy");

		if (!is_calibrated(policies, spec) || gives(spec, "layers", "auto") || gives(spec, "profile", "none"))
			continue;
		snprintf(note, sizeof(note), "%.*s, model %s: layers=auto without a profile, its layers are guessed; "
		         "sparsekv-calibrate finds better ones", (int)strcspn(spec, ":?"), spec,
		         skv_json_str(json_object_get(row, "model"), "name"));
		if (!json_object_get(said, note))
			printf("note      %s\n", note);
		json_object_set_new(said, note, json_true());
	}
	json_decref(said);
}

static void ask_guesses(struct skv_ctl *ctl)
{
	json_t *sessions = NULL, *policies = NULL;

	if (!skv_ctl_query(ctl, SKV_QUERY_SESSIONS, &sessions) && !skv_ctl_query(ctl, SKV_QUERY_POLICIES, &policies))
		print_guesses(json_object_get(sessions, "sessions"), json_object_get(policies, "policies"));
	json_decref(sessions);
	json_decref(policies);
}

int skv_ctl_status(struct skv_ctl *ctl, const struct skv_ctl_options *o)
{
	const json_t *totals, *held, *limits, *counters;
	int status;
	json_t *s, *cgroup;
	size_t i;

	if (!ask(ctl, o, SKV_QUERY_STATUS, &s, &status))
		return status;
	totals = json_object_get(s, "totals");
	held = json_object_get(s, "held");
	limits = json_object_get(s, "limits");
	counters = json_object_get(s, "counters");
	printf("sparsekvd %s, pid %llu, up %s, on %s\n", skv_json_str(s, "version"),
	       (ull)skv_json_u64(s, "pid"), skv_human_time(skv_json_num(s, "uptime_s")),
	       skv_json_str(s, "socket"));
	printf("memory    %s of pages in use, in %s of segments, of %s\n",
	       skv_human_bytes(skv_json_u64(totals, "page_bytes")),
	       skv_human_bytes(skv_json_u64(totals, "segment_bytes")),
	       skv_human_bytes(skv_json_u64(limits, "pool_bytes")));
	printf("held      %s of host memory: pools %s, sequences %s, the rest %s\n",
	       skv_human_bytes(skv_json_u64(held, "total")), skv_human_bytes(skv_json_u64(held, "pools")),
	       skv_human_bytes(skv_json_u64(held, "sequences")),
	       skv_human_bytes(skv_json_u64(held, "total") - skv_json_u64(held, "pools") - skv_json_u64(held, "sequences")));
	json_array_foreach(json_object_get(s, "cgroup"), i, cgroup)
		printf("cgroup    %s of %s left\n", skv_human_bytes(skv_json_u64(cgroup, "left_bytes")),
		       skv_human_bytes(skv_json_u64(cgroup, "limit_bytes")));
	print_devices(json_object_get(s, "devices"));
	print_parking(json_object_get(s, "parking"));
	print_prefixes(json_object_get(s, "prefixes"));
	printf("now       %llu clients, %llu sessions, %llu sequences, policy generation %llu\n",
	       (ull)skv_json_u64(totals, "clients"), (ull)skv_json_u64(totals, "sessions"),
	       (ull)skv_json_u64(totals, "sequences"), (ull)skv_json_u64(s, "policy_generation"));
	printf("so far    %llu connections, %llu refused, %llu malformed\n",
	       (ull)skv_json_u64(counters, "connections"), (ull)skv_json_u64(counters, "refused"),
	       (ull)skv_json_u64(counters, "malformed"));
	printf("reclaim   %llu clients gone, their pages back in %.2f ms at most\n",
	       (ull)skv_json_u64(counters, "clients_gone"), skv_json_num(counters, "reclaim_max_ms"));
	ask_guesses(ctl);
	printf("\n%s:\n", strcmp(skv_json_str(s, "scope"), "all") ? "Your account" : "Accounts");
	print_accounts(json_object_get(s, "accounts"), limits);
	print_device_accounts(json_object_get(s, "device_accounts"), json_object_get(s, "devices"));
	printf("\n%s:\n", strcmp(skv_json_str(s, "scope"), "all") ? "Your clients" : "Clients");
	print_clients(json_object_get(s, "clients"));
	json_decref(s);
	return SKV_EXIT_OK;
}

int skv_ctl_pool(struct skv_ctl *ctl, const struct skv_ctl_options *o)
{
	static const char *const heads[] = {"POOL",  "UID",  "-MEMORY", "PAGE",      "SEGMENTS", "SIZE",
	                                    "PAGES", "FREE", "LEASED",  "SEQUENCES", "SHARED"};
	static const char *const counts[] = {"pages", "free", "lease", "seq", "shared"};
	struct skv_table t = {.heads = heads, .n_cols = 11};
	json_t *answer, *row;
	int status;
	size_t i;

	if (!ask(ctl, o, SKV_QUERY_POOLS, &answer, &status))
		return status;
	json_array_foreach(json_object_get(answer, "pools"), i, row) {
		uint64_t segments = skv_json_u64(row, "segments");

		skv_table_cell(&t, "%llu", (ull)skv_json_u64(row, "pool"));
		skv_table_cell(&t, "%llu", (ull)skv_json_u64(row, "uid"));
		skv_table_cell(&t, "%s", skv_json_str(row, "memory"));
		skv_table_cell(&t, "%s", skv_human_bytes(skv_json_u64(row, "page_bytes")));
		skv_table_cell(&t, "%llu", (ull)segments);
		skv_table_cell(&t, "%s", skv_human_bytes(segments * skv_json_u64(row, "segment_bytes")));
		for (size_t c = 0; c < 5; c++)
			skv_table_cell(&t, "%llu", (ull)skv_json_u64(row, counts[c]));
	}
	skv_table_print(&t, stdout);
	skv_table_deinit(&t);
	json_decref(answer);
	return SKV_EXIT_OK;
}

int skv_ctl_seq_list(struct skv_ctl *ctl, const struct skv_ctl_options *o)
{
	static const char *const heads[] = {"SEQ",    "UID", "-MODEL", "TOKENS", "MOST",  "PAGES", "OF",      "KEPT",
	                                    "SHARED", "KV",  "BOUNDS", "NOTES",  "CODES", "REFS",  "PROMPT",
	                                    "HELD BY", "-NAME"};
	static const char *const kinds[] = {"kv", "bounds", "slot_meta", "codes", "refs", "prefill"};
	struct skv_table t = {.heads = heads, .n_cols = 17};
	json_t *answer, *row;
	int status;
	size_t i;

	if (!ask(ctl, o, SKV_QUERY_SEQS, &answer, &status))
		return status;
	json_array_foreach(json_object_get(answer, "sequences"), i, row) {
		bool counted = json_is_integer(json_object_get(row, "pages_resident"));
		uint64_t resident = skv_json_u64(row, "pages_resident"),
			 total = skv_json_u64(row, "pages_total");
		uint64_t client = skv_json_u64(row, "client");

		skv_table_cell(&t, "%llu", (ull)skv_json_u64(row, "seq"));
		skv_table_cell(&t, "%llu", (ull)skv_json_u64(row, "uid"));
		skv_table_cell(&t, "%s", skv_json_str(row, "model"));
		skv_table_cell(&t, "%llu", (ull)skv_json_u64(row, "tokens"));
		skv_table_cell(&t, "%llu", (ull)skv_json_u64(row, "max_tokens"));
		skv_table_cell(&t, counted ? "%llu" : "-", (ull)resident);
		skv_table_cell(&t, "%llu", (ull)total);
		skv_table_cell(&t, "%s", skv_human_share((double)resident, counted ? (double)total : 0));
		skv_table_cell(&t, counted ? "%llu" : "-", (ull)skv_json_u64(row, "pages_shared"));
		for (size_t k = 0; k < sizeof(kinds) / sizeof(*kinds); k++) {
			uint64_t pages = skv_json_u64(json_object_get(row, "pages"), kinds[k]);

			skv_table_cell(&t, "%s", counted ? skv_human_bytes(pages * skv_json_u64(row, "page_bytes")) : "-");
		}
		if (json_object_get(row, "parked_bytes"))
			skv_table_cell(&t, "%s", json_is_true(json_object_get(row, "damaged")) ? "disk, damaged" : "disk");
		else
			skv_table_cell(&t, client ? "%llu" : "none", (ull)client);
		skv_table_cell(&t, "%s",
		               *skv_json_str(row, "name") ? skv_json_str(row, "name") : "(anonymous)");
	}
	skv_table_print(&t, stdout);
	skv_table_deinit(&t);
	json_decref(answer);
	return SKV_EXIT_OK;
}

static void print_policy(const json_t *p)
{
	size_t i;
	json_t *q;

	printf("%s %s%s, %llu sessions, from %s\n  %s\n", skv_json_str(p, "name"), skv_json_str(p, "version"),
	       json_is_true(json_object_get(p, "current")) ? "" : " (replaced)",
	       (ull)skv_json_u64(p, "sessions"), skv_json_str(p, "file"), skv_json_str(p, "summary"));
	printf("  action %s, granularity %s, evidence %s, scope %s, sharing %s\n", skv_json_str(p, "action"),
	       skv_json_str(p, "granularity"), skv_json_str(p, "evidence"), skv_json_str(p, "scope"),
	       skv_json_str(p, "sharing"));
	json_array_foreach(json_object_get(p, "params"), i, q) {
		const char *def = json_string_value(json_object_get(q, "default"));
		char left[128];

		snprintf(left, sizeof(left), "%s=%s", skv_json_str(q, "name"), def ? def : "(must be given)");
		printf("    %-22s %s%s; %s\n", left, *skv_json_str(q, "choices") ? "one of " : "",
		       *skv_json_str(q, "choices") ? skv_json_str(q, "choices") : skv_json_str(q, "type"),
		       skv_json_str(q, "help"));
	}
}

int skv_ctl_policy_list(struct skv_ctl *ctl, const struct skv_ctl_options *o)
{
	json_t *answer, *row;
	int status;
	size_t i;

	if (!ask(ctl, o, SKV_QUERY_POLICIES, &answer, &status))
		return status;
	json_array_foreach(json_object_get(answer, "policies"), i, row) {
		if (i)
			putchar('\n');
		print_policy(row);
	}
	json_decref(answer);
	return SKV_EXIT_OK;
}
