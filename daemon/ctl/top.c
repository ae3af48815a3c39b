/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/ctl/top.c - the command top: sessions with their rates.
 *
 * A rate needs two samples of the session's counters. If the output is not a terminal, the command takes two samples
 * and prints one table. On a terminal the command continues until it is interrupted.
 */
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "daemon/ctl/ctl.h"
#include "daemon/ctl/text-table.h"

typedef unsigned long long ull;

static json_t *find_session(const json_t *answer, uint64_t session)
{
	json_t *row;
	size_t i;

	json_array_foreach(json_object_get(answer, "sessions"), i, row)
		if (skv_json_u64(row, "session") == session)
			return row;
	return NULL;
}

/*
 * Returns how much a session's counter has grown between two samples. For a session that is new, that is the counter
 * itself.
 */
static double went(const json_t *now, const json_t *then, const char *counter)
{
	double d = (double)skv_json_u64(now, counter) - (then ? (double)skv_json_u64(then, counter) : 0);

	return d > 0 ? d : 0;
}

void skv_ctl_sum_pages(const json_t *seqs, uint64_t session, double *ret_resident, double *ret_total)
{
	json_t *row;
	size_t i;

	*ret_resident = *ret_total = 0;
	json_array_foreach(json_object_get(seqs, "sequences"), i, row)
		if (skv_json_u64(row, "session") == session &&
		    json_is_integer(json_object_get(row, "pages_resident"))) {
			*ret_resident += (double)skv_json_u64(row, "pages_resident");
			*ret_total += (double)skv_json_u64(row, "pages_total");
		}
}

/*
 * Returns the mean recall of a session's layers that do not attend to all tokens; "-" if there is no such layer, or
 * recall was not measured.
 */
static const char *recall(const json_t *row, char text[16])
{
	json_t *all = json_object_get(row, "recall"), *one;
	double sum = 0;
	size_t i;

	json_array_foreach(all, i, one)
		sum += skv_json_num(one, "recall");
	if (json_array_size(all) > 0)
		snprintf(text, 16, "%.1f %%", 100 * sum / (double)json_array_size(all));
	else
		snprintf(text, 16, "-");
	return text;
}

static void add_session(struct skv_table *t, const json_t *row, const json_t *then, double seconds,
                        const json_t *seqs)
{
	double resident, total, causal = went(row, then, "causal_tokens");
	bool pending = skv_json_u64(row, "running_generation") < skv_json_u64(row, "generation");
	const char *error = skv_json_str(row, "error");
	char text[16];

	/* a session without decode steps between the samples shows its totals since it was opened */
	if (causal <= 0)
		then = NULL;
	skv_ctl_sum_pages(seqs, skv_json_u64(row, "session"), &resident, &total);
	skv_table_cell(t, "%llu", (ull)skv_json_u64(row, "session"));
	skv_table_cell(t, "%llu", (ull)skv_json_u64(row, "uid"));
	skv_table_cell(t, "%s", skv_json_str(json_object_get(row, "model"), "name"));
	skv_table_cell(t, "%llu", (ull)skv_json_u64(row, "sequences"));
	skv_table_cell(t, "%llu", (ull)skv_json_u64(row, "steps"));
	skv_table_cell(t, "%.1f", seconds > 0 && causal > 0 ? went(row, then, "decode_tokens") / seconds : 0);
	skv_table_cell(t, "%s",
	               skv_human_share(went(row, then, "attended_tokens"), went(row, then, "causal_tokens")));
	skv_table_cell(t, "%s", recall(row, text));
	skv_table_cell(t, "%s", skv_human_share(resident, total));
	skv_table_cell(t, "%llu", (ull)skv_json_u64(row, "evicted_pages"));
	skv_table_cell(t, "%s%s%s%s", skv_json_str(row, "policy"), pending ? " (swap pending)" : "",
	               *error ? " (swap refused: " : "", *error ? error : "");
}

static void print(const json_t *answer, const json_t *before, const json_t *seqs)
{
	static const char *const heads[] = {"SESSION", "UID",  "-MODEL",  "SEQS", "STEPS", "TOKENS/S", "ATTENDED",
	                                    "RECALL",  "KEPT", "EVICTED", "-POLICY"};
	double seconds = skv_json_num(answer, "time_s") - skv_json_num(before, "time_s");
	struct skv_table t = {.heads = heads, .n_cols = 11};
	json_t *row;
	size_t i;

	json_array_foreach(json_object_get(answer, "sessions"), i, row)
		add_session(&t, row, find_session(before, skv_json_u64(row, "session")), seconds, seqs);
	skv_table_print(&t, stdout);
	skv_table_deinit(&t);
	fflush(stdout);
}

static void wait_for(double seconds)
{
	struct timespec t = {.tv_sec = (time_t)seconds, .tv_nsec = (long)(fmod(seconds, 1) * 1e9)};

	nanosleep(&t, NULL);
}

/* Takes one sample: queries sessions and sequences. Returns an exit status, and both replies. */
static int look(struct skv_ctl *ctl, json_t **ret_sessions, json_t **ret_seqs)
{
	int r = skv_ctl_query(ctl, SKV_QUERY_SESSIONS, ret_sessions);

	if (r < 0)
		return skv_ctl_complain(ctl, r);
	r = skv_ctl_query(ctl, SKV_QUERY_SEQS, ret_seqs);
	if (r < 0) {
		json_decref(*ret_sessions);
		return skv_ctl_complain(ctl, r);
	}
	return SKV_EXIT_OK;
}

int skv_ctl_top(struct skv_ctl *ctl, const struct skv_ctl_options *o)
{
	bool terminal = isatty(STDOUT_FILENO) && !o->json;
	long left = o->count ? o->count : terminal ? -1 : 1;
	json_t *before = NULL, *now, *seqs;
	int status;

	status = look(ctl, &before, &seqs);
	while (status == SKV_EXIT_OK && left != 0) {
		json_decref(seqs);
		wait_for(o->delay);
		status = look(ctl, &now, &seqs);
		if (status != SKV_EXIT_OK) {
			json_decref(before);
			return status;
		}
		if (terminal)
			fputs("\033[H\033[2J", stdout);
		if (o->json)
			skv_ctl_print_json(json_pack("{s:O, s:O, s:O}", "before", before, "now", now,
			                             "sequences", json_object_get(seqs, "sequences")));
		else
			print(now, before, seqs);
		json_decref(before);
		before = now;
		left -= left > 0;
	}
	if (status == SKV_EXIT_OK) {
		json_decref(seqs);
		json_decref(before);
	}
	return status;
}
