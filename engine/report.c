/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/report.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- rows ------------------------------------------------------------------------------------ */

struct row {
	uint32_t n;
	uint32_t exact;
	double line, token, decode_len, attended, kept, seconds; /* sums over cases */
	uint32_t n_recall; /* number of cases whose recall was measured */
	double recall;
	struct eng_divergence divergence;
};

static double share(uint64_t part, uint64_t whole)
{
	return whole ? (double)part / (double)whole : 1;
}

/* Sums the results of one policy over the cases of a task (NULL: all tasks) and a size (0: all sizes). */
static struct row sum_up(const struct eng_eval *eval, const struct eng_result *results, uint32_t policy,
                         const char *task, uint32_t size)
{
	const struct eng_cases *cases = eval->cases;
	struct row row = {.n = 0};

	for (size_t i = 0; i < cases->n; i++) {
		const struct eng_result *r = &results[policy * cases->n + i];

		if ((task && strcmp(task, cases->list[i].task)) || (size && size != cases->list[i].size))
			continue;
		row.n++;
		row.exact += r->score.exact;
		row.line += r->score.line;
		row.token += r->score.token;
		row.decode_len += r->decode_len;
		row.attended += share(r->attended, r->causal);
		row.kept += share(r->resident, r->pages);
		row.seconds += r->seconds;
		row.divergence.rows += r->divergence.rows;
		row.divergence.agree += r->divergence.agree;
		row.divergence.kl += r->divergence.kl;
		row.divergence.nll_change += r->divergence.nll_change;
		if (r->recall_layers > 0) {
			row.n_recall++;
			row.recall += r->recall / (double)r->recall_layers;
		}
	}
	return row;
}

struct out {
	FILE *to;
	void (*write)(const struct out *, const char *policy, const char *task, const char *size,
	              const struct row *);
	int policy_width; /* length of the longest policy spec */
};

static void visit(const struct out *out, const struct eng_eval *eval, const struct eng_result *results,
                  uint32_t policy, const char *task, uint32_t size)
{
	struct row row = sum_up(eval, results, policy, task, size);
	char number[16] = "all";

	if (size)
		snprintf(number, sizeof(number), "%u", size);
	if (row.n)
		out->write(out, eval->policies[policy], task ? task : "all", number, &row);
}

/*
 * The tasks in the order of their first case, and the sizes in ascending order. Each list ends with an element that
 * means "all": NULL or 0.
 */
struct axes {
	const char **tasks;
	uint32_t *sizes;
	size_t n_tasks, n_sizes;
};

static int by_size(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static void find_axes(const struct eng_cases *cases, struct axes *axes)
{
	for (size_t i = 0; i < cases->n; i++) {
		const struct eng_case *c = &cases->list[i];
		size_t t = 0, s = 0;

		while (t < axes->n_tasks && strcmp(axes->tasks[t], c->task))
			t++;
		while (s < axes->n_sizes && axes->sizes[s] != c->size)
			s++;
		if (t == axes->n_tasks)
			axes->tasks[axes->n_tasks++] = c->task;
		if (s == axes->n_sizes)
			axes->sizes[axes->n_sizes++] = c->size;
	}
	qsort(axes->sizes, axes->n_sizes, sizeof(*axes->sizes), by_size);
	axes->tasks[axes->n_tasks++] = NULL;
	axes->sizes[axes->n_sizes++] = 0;
}

static void each_row(const struct out *out, const struct eng_eval *eval, const struct eng_result *results)
{
	struct axes axes = {
		.tasks = calloc(eval->cases->n + 1, sizeof(char *)),
		.sizes = calloc(eval->cases->n + 1, sizeof(uint32_t)),
	};

	if (axes.tasks && axes.sizes) {
		find_axes(eval->cases, &axes);
		for (uint32_t p = 0; p < eval->n_policies; p++)
			for (size_t t = 0; t < axes.n_tasks; t++)
				for (size_t s = 0; s < axes.n_sizes; s++) {
					/*
					 * If there is only one size, the rows over all sizes are redundant; only the
					 * row over all tasks and sizes is printed.
					 */
					if (axes.n_sizes == 2 && !axes.tasks[t] != !axes.sizes[s])
						continue;
					visit(out, eval, results, p, axes.tasks[t], axes.sizes[s]);
				}
	}
	free(axes.tasks);
	free(axes.sizes);
}

static double speed(const struct row *row)
{
	return row->seconds > 0 ? row->decode_len / row->seconds : 0;
}

/* Returns the row's mean recall as text; `without` if recall was not measured. */
static const char *recall(const struct row *row, const char *without, char text[16])
{
	snprintf(text, 16, "%.6f", row->recall / (row->n_recall ? row->n_recall : 1));
	return row->n_recall ? text : without;
}

/*
 * Prints three figures with `before` in front of each: KL divergence, agreement, change of NLL. Prints nothing if
 * policies are not compared.
 */
static void divergence(FILE *to, const struct row *row, const char *before, int width, int digits)
{
	const struct eng_divergence *d = &row->divergence;

	if (d->rows > 0)
		fprintf(to, "%s%*.*f%s%*.*f%s%*.*f", before, width, digits, d->kl / d->rows, before, width, digits,
		        (double)d->agree / d->rows, before, width, digits, d->nll_change / d->rows);
}

/* ---- human-readable output ------------------------------------------------------------------- */

static int policy_width(const struct eng_eval *eval)
{
	size_t w = strlen("policy");

	for (uint32_t p = 0; p < eval->n_policies; p++)
		w = strlen(eval->policies[p]) > w ? strlen(eval->policies[p]) : w;
	return (int)w;
}

static void table_row(const struct out *out, const char *policy, const char *task, const char *size,
                      const struct row *row)
{
	char text[16];

	fprintf(out->to, "%-*s  %-8s %6s %5u  %6.3f %6.3f %6.3f  %10.1f  %14.3f  %10.3f  %6.5s  %12.1f",
	        out->policy_width, policy, task, size, row->n, (double)row->exact / row->n,
	        row->line / row->n, row->token / row->n, row->decode_len / row->n, row->attended / row->n,
	        row->kept / row->n, recall(row, "-", text), speed(row));
	divergence(out->to, row, "  ", 7, 4);
	putc('\n', out->to);
}

void eng_report_table(FILE *to, const struct eng_eval *eval, const struct eng_result *results)
{
	struct out out = {.to = to, .write = table_row, .policy_width = policy_width(eval)};

	fprintf(to, "%-*s  %-8s %6s %5s  %6s %6s %6s  %10s  %14s  %10s  %6s  %12s", out.policy_width, "policy",
	        "task", "size", "n", "exact", "line", "token", "decode_len", "attended_share", "kept_share", "recall",
	        "tokens_per_s");
	fprintf(to, eval->compare ? "  %7s  %7s  %7s\n" : "\n", "kl", "agree", "dnll");
	each_row(&out, eval, results);
}

void eng_report_summary(FILE *to, const struct eng_eval *eval, const struct eng_result *results)
{
	int w = policy_width(eval);

	fprintf(to, "%-*s  %13s  %15s  %7s  %8s\n", w, "policy", "exact answers", "tokens attended",
	        "KV kept", "tokens/s");
	for (uint32_t p = 0; p < eval->n_policies; p++) {
		struct row row = sum_up(eval, results, p, NULL, 0);
		char exact[32];

		snprintf(exact, sizeof(exact), "%u of %u", row.exact, row.n);
		fprintf(to, "%-*s  %13s  %13.1f %%  %5.1f %%  %8.0f\n", w, eval->policies[p], exact,
		        100 * row.attended / row.n, 100 * row.kept / row.n, speed(&row));
	}
}

/* Prints `text` as a JSON string; prints nothing if there is no memory for it. */
static void quoted(FILE *to, const char *text)
{
	json_t *s = json_string(text);

	json_dumpf(s, to, JSON_ENCODE_ANY);
	json_decref(s);
}

void eng_report_answers(FILE *to, const struct eng_eval *eval, const struct eng_result *results)
{
	int w = policy_width(eval) > 8 ? policy_width(eval) : 8;

	for (size_t i = 0; i < eval->cases->n; i++) {
		const struct eng_case *c = &eval->cases->list[i];
		char *expected = eng_tokens_text(eval->tokens, c->answer, c->n_answer);

		fprintf(to, "%s, a prompt of %u tokens:\n  %-*s  ", c->id, c->n_prompt, w, "expected");
		quoted(to, expected ? expected : "");
		putc('\n', to);
		free(expected);
		for (uint32_t p = 0; p < eval->n_policies; p++) {
			const struct eng_result *r = &results[p * eval->cases->n + i];

			fprintf(to, "  %-*s  ", w, eval->policies[p]);
			quoted(to, r->said);
			fputs(r->score.exact ? "\n" : "  (not the one expected)\n", to);
		}
		putc('\n', to);
	}
}

/* ---- machine-readable output ----------------------------------------------------------------- */

/*
 * Prints a CSV field. A text with commas, quotes or newlines, as in policy specs, is put in quotes, and quotes inside
 * it are doubled.
 */
static void csv_text(FILE *to, const char *s)
{
	if (!s[strcspn(s, ",\"\r\n")]) {
		fputs(s, to);
		return;
	}
	putc('"', to);
	for (; *s; s++) {
		if (*s == '"')
			putc('"', to);
		putc(*s, to);
	}
	putc('"', to);
}

static void csv_row(const struct out *out, const char *policy, const char *task, const char *size,
                    const struct row *row)
{
	char text[16];

	csv_text(out->to, policy);
	putc(',', out->to);
	csv_text(out->to, task);
	fprintf(out->to, ",%s,%u,%.6f,%.6f,%.6f,%.3f,%.6f,%.6f,%s,%.3f", size, row->n,
	        (double)row->exact / row->n, row->line / row->n, row->token / row->n, row->decode_len / row->n,
	        row->attended / row->n, row->kept / row->n, recall(row, "", text), speed(row));
	divergence(out->to, row, ",", 0, 6);
	putc('\n', out->to);
}

void eng_report_csv(FILE *to, const struct eng_eval *eval, const struct eng_result *results)
{
	fputs("policy,task,size,n,exact,line,token,decode_len,attended_share,kept_share,recall,tokens_per_s", to);
	fputs(eval->compare ? ",kl,agree,dnll\n" : "\n", to);
	each_row(&(struct out){.to = to, .write = csv_row}, eval, results);
}

static json_t *likelihood_json(const struct eng_likelihood *l)
{
	json_t *top = json_array();

	for (uint32_t i = 0; i < ENG_TOP; i++)
		json_array_append_new(top, json_pack("[i, f]", (int)l->top[i], (double)l->top_logit[i]));
	return json_pack("{s:f, s:o, s:f}", "nll", l->nll / l->rows, "first_top8", top, "smallest_margin",
	                 l->smallest_margin);
}

static json_t *divergence_json(const struct eng_divergence *d)
{
	return json_pack("{s:f, s:f, s:f}", "kl", d->kl / d->rows, "agree", (double)d->agree / d->rows, "dnll",
	                 d->nll_change / d->rows);
}

static json_t *result_json(const char *policy, const struct eng_case *c, const struct eng_result *r)
{
	json_t *o = json_pack("{s:s, s:s, s:b, s:f, s:f}", "policy", policy, "id", c->id, "exact",
	                      r->score.exact, "line", r->score.line, "token_accuracy", r->score.token);
	json_t *cost = json_pack("{s:i, s:f, s:f, s:I, s:I}", "decode_len", (int)r->decode_len, "attended_share",
	                         share(r->attended, r->causal), "kept_share", share(r->resident, r->pages), "pages",
	                         (json_int_t)r->pages, "pages_kept", (json_int_t)r->resident);
	json_t *likelihood = r->likelihood.rows ? likelihood_json(&r->likelihood) : NULL;

	json_object_update(o, cost);
	if (r->said)
		json_object_set_new(o, "said", json_string(r->said));
	if (r->recall_layers > 0)
		json_object_set_new(o, "recall", json_real(r->recall / (double)r->recall_layers));
	json_object_update(o, likelihood);
	if (r->divergence.rows > 0)
		json_object_update_new(o, divergence_json(&r->divergence));
	json_decref(cost);
	json_decref(likelihood);
	return o;
}

void eng_report_dump(FILE *to, const struct eng_eval *eval, const struct eng_result *results)
{
	for (uint32_t p = 0; p < eval->n_policies; p++)
		for (size_t i = 0; i < eval->cases->n; i++) {
			const struct eng_case *c = &eval->cases->list[i];
			const struct eng_result *r = &results[p * eval->cases->n + i];
			json_t *o = result_json(eval->policies[p], c, r);

			json_dumpf(o, to, JSON_COMPACT | JSON_REAL_PRECISION(9));
			putc('\n', to);
			json_decref(o);
		}
}
