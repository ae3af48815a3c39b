/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/evaluate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "engine/progress.h"

/* estimated time of reading a prompt token, relative to that of a decode row; only for the progress line */
#define PROMPT_WORK 0.2

/* A case of the current group. */
struct lane {
	const struct eng_case *c;
	size_t index;    /* index of the case in cases->list */
	const int32_t *prompt, *want; /* prompt and true answer of the case */
	uint32_t n_prompt, n_want;
	int32_t *got; /* tokens that the model chose; has room for `limit` */
	uint32_t n_got, limit;
	float *reference; /* [n_want][vocab]: the first policy's logits; NULL: policies are not compared */
	struct skv_seq **seq; /* [policy]: the case's sequence under each policy; NULL: there is none */
};

struct run {
	const struct eng_eval *eval;
	struct skv_session **sessions; /* [policy]: a session for each policy */
	struct eng_forward forward;
	struct lane *lanes; /* [batch]: the cases of the current group */
	uint32_t n_lanes;
	/*
	 * the first policy whose session reads prompts for others, which fork its sequences; n_policies: there is no
	 * such policy
	 */
	uint32_t reader;
	struct eng_result *results; /* [policy][case]: results */
	struct eng_progress progress;
	double work_done;
};

static struct eng_result *result_of(struct run *run, uint32_t policy, const struct lane *lane)
{
	return &run->results[policy * run->eval->cases->n + lane->index];
}

static int library(int r, struct eng_error *err)
{
	return r < 0 ? eng_fail(err, r, "%s", skv_last_error()) : 0;
}

static bool stopped(const struct run *run)
{
	return run->eval->stop && *run->eval->stop;
}

/*
 * Returns whether the policy must read prompts itself, because its KV cache depends on how a prompt is read, or because
 * its pages have another dtype.
 */
static bool reads_alone(const struct run *run, uint32_t policy)
{
	const struct eng_eval *eval = run->eval;

	return skv_policy_depends_on_prefill(run->sessions[policy]) || (policy == 0 && eval->first_dtype != eval->kv_dtype);
}

/* ---- a batch of cases ------------------------------------------------------------------------ */

static void lane_deinit(struct lane *lane, uint32_t n_policies)
{
	for (uint32_t p = 0; lane->seq && p < n_policies; p++)
		skv_seq_drop(lane->seq[p]);
	free(lane->seq);
	free(lane->got);
	free(lane->reference);
	*lane = (struct lane){.c = NULL};
}

static int lane_init(struct lane *lane, const struct eng_eval *eval, size_t index, struct eng_error *err)
{
	const struct eng_case *c = &eval->cases->list[index];
	bool ends = eng_tokens_is_end(eval->tokens, c->answer[c->n_answer - 1]);

	*lane = (struct lane){.c = c, .index = index, .prompt = c->prompt, .n_prompt = c->n_prompt, .want = c->answer,
	                      .n_want = c->n_answer};
	lane->limit = lane->n_want + (eval->mode == ENG_FREE && ends ? ENG_FREE_SLACK : 0);
	lane->got = malloc(lane->limit * sizeof(*lane->got));
	lane->seq = calloc(eval->n_policies, sizeof(struct skv_seq *));
	if (eval->compare)
		lane->reference = malloc((size_t)lane->n_want * eval->model->config.vocab * sizeof(*lane->reference));
	if (!lane->got || !lane->seq || (eval->compare && !lane->reference)) {
		lane_deinit(lane, eval->n_policies);
		return eng_fail(err, -ENOMEM, "no memory for case %s", c->id);
	}
	return 0;
}

/* Reads a prompt, except for its last token, into a new sequence of the policy's session. */
static int prefill(struct run *run, struct lane *lane, uint32_t policy, struct eng_error *err)
{
	struct skv_session *session = run->sessions[policy];
	uint32_t n = lane->n_prompt - 1, chunk = run->eval->chunk;
	uint32_t room = lane->n_prompt + lane->limit;
	int r = library(skv_seq_new(session, NULL, room, &lane->seq[policy]), err);

	for (uint32_t at = 0; !r && at < n;) {
		struct skv_step_item item = SKV_STEP_ITEM(
			.seq = lane->seq[policy],
			.n_tokens = n - at < chunk ? n - at : chunk,
			.flags = SKV_STEP_PROMPT,
			.tokens = lane->prompt + at);

		item.n_prompt_remaining = n - at - item.n_tokens;
		if (stopped(run))
			return eng_fail(err, -EINTR, "interrupted");
		r = eng_forward(&run->forward, session, &item, 1, err);
		r = r ? r : library(skv_step_end(session, NULL, NULL), err);
		at += item.n_tokens;
		run->work_done += PROMPT_WORK * item.n_tokens;
		eng_progress_show(&run->progress, run->work_done, "reading prompts");
	}
	return r;
}

/* Forks the sequence of a prompt that run->reader has read, and moves the fork to another policy's session. */
static int hand_over(struct run *run, struct lane *lane, uint32_t policy, struct eng_error *err)
{
	char name[SKV_NAME_MAX];
	struct skv_seq *fork;
	int r;

	snprintf(name, sizeof(name), "sparsekv-eval-%d-%u-%zu", (int)eng_ranks_first(run->eval->ranks), policy, lane->index);
	r = library(skv_seq_fork(lane->seq[run->reader], name, SKV_ALL, &fork), err);
	r = r ? r : library(skv_seq_detach(fork), err);
	return r ? r : library(skv_seq_attach(run->sessions[policy], name, &lane->seq[policy]), err);
}

/* ---- decoding a batch ------------------------------------------------------------------------ */

/*
 * Returns the next input token: first the prompt's last token, then tokens of the true answer (forced mode) or the
 * tokens that the model chose.
 */
static int32_t token_in(const struct run *run, const struct lane *lane)
{
	if (!lane->n_got)
		return lane->prompt[lane->n_prompt - 1];
	return (run->eval->mode == ENG_FORCED ? lane->want : lane->got)[lane->n_got - 1];
}

static bool finished(const struct run *run, const struct lane *lane)
{
	return lane->n_got == lane->limit || (run->eval->mode == ENG_FREE && lane->n_got &&
	                                      eng_tokens_is_end(run->eval->tokens, lane->got[lane->n_got - 1]));
}

/* Stores the result of a case under a policy, and drops the sequence. */
static int finish(struct run *run, struct lane *lane, uint32_t policy, struct eng_error *err)
{
	struct eng_result *result = result_of(run, policy, lane);
	const struct eng_tokens *tokens = run->eval->tokens;
	struct skv_seq *seq = lane->seq[policy];

	result->decode_len = lane->n_got;
	result->score = run->eval->mode == ENG_FORCED
	                        ? eng_score_forced(lane->got, lane->want, lane->n_want, tokens)
	                        : eng_score_free(lane->got, lane->n_got, lane->want, lane->n_want, tokens);
	skv_seq_tokens(seq, NULL); /* waits for the device, so that the statistics include the last steps */
	skv_seq_attended(seq, &result->attended, &result->causal);
	skv_seq_recall(seq, &result->recall_layers, &result->recall);
	skv_seq_pages(seq, &result->resident, &result->pages);
	if (run->eval->mode == ENG_FREE && !(result->said = eng_tokens_text(tokens, lane->got, lane->n_got)))
		return eng_fail(err, -ENOMEM, "no memory for the answer to case %s", lane->c->id);
	lane->seq[policy] = NULL;
	return library(skv_seq_drop(seq), err);
}

/* Adds the logits of one row of a forced answer to the result. */
static void look_at_logits(struct run *run, uint32_t policy, struct lane *lane, const float *row)
{
	struct eng_result *result = result_of(run, policy, lane);
	uint32_t vocab = run->eval->model->config.vocab;
	int32_t want = lane->want[lane->n_got];

	eng_likelihood_add(&result->likelihood, row, vocab, want);
	if (lane->reference) {
		float *reference = lane->reference + (size_t)lane->n_got * vocab;

		if (policy == 0)
			memcpy(reference, row, vocab * sizeof(*row));
		eng_divergence_add(&result->divergence, reference, row, vocab, want);
	}
}

/* Appends the tokens that the open step chose to the lanes' answers; in forced mode also evaluates the logits. */
static int look(struct run *run, uint32_t policy, struct lane **active, uint32_t n, struct eng_error *err)
{
	uint32_t vocab = run->eval->model->config.vocab;
	const float *logits = NULL;
	const int32_t *ids;
	int r = eng_forward_fetch(&run->forward, err);

	r = r ? r : eng_forward_fetched(&run->forward, &ids, err);
	if (!r && run->eval->mode == ENG_FORCED)
		r = eng_forward_logits(&run->forward, &logits, err);
	for (uint32_t i = 0; !r && i < n; i++) {
		struct lane *lane = active[i];

		if (logits)
			look_at_logits(run, policy, lane, logits + (size_t)i * vocab);
		lane->got[lane->n_got++] = ids[i];
	}
	return r;
}

/* Runs one decode step over these cases: each has one input token and gets one chosen token. */
static int decode_step(struct run *run, uint32_t policy, struct lane **active, uint32_t n,
                       struct eng_error *err)
{
	struct skv_step_item items[n];
	double begun = eng_now();
	int32_t in[n];
	int r;

	for (uint32_t i = 0; i < n; i++) {
		in[i] = token_in(run, active[i]);
		items[i] = SKV_STEP_ITEM(.n_tokens = 1, .tokens = &in[i]);
		items[i].seq = active[i]->seq[policy];
	}
	r = eng_forward(&run->forward, run->sessions[policy], items, n, err);
	if (r)
		return r;
	r = look(run, policy, active, n, err);
	if (r) {
		skv_step_abort(run->sessions[policy]);
		return r;
	}
	r = library(skv_step_end(run->sessions[policy], NULL, NULL), err);
	for (uint32_t i = 0; i < n; i++)
		result_of(run, policy, active[i])->seconds += (eng_now() - begun) / n;
	run->work_done += n;
	return r;
}

static int decode_group(struct run *run, uint32_t policy, struct eng_error *err)
{
	struct lane *active[run->n_lanes];
	uint32_t n = 0;
	int r = 0;

	for (uint32_t i = 0; i < run->n_lanes; i++) {
		active[n++] = &run->lanes[i];
		run->lanes[i].n_got = 0;
	}
	while (!r && n) {
		uint32_t left = 0;

		if (stopped(run))
			return eng_fail(err, -EINTR, "interrupted");
		r = decode_step(run, policy, active, n, err);
		eng_progress_show(&run->progress, run->work_done, run->eval->policies[policy]);
		for (uint32_t i = 0; !r && i < n; i++) {
			if (finished(run, active[i]))
				r = finish(run, active[i], policy, err);
			else
				active[left++] = active[i];
		}
		n = left;
	}
	return r;
}

static int run_group(struct run *run, const size_t *order, uint32_t n, struct eng_error *err)
{
	const struct eng_eval *eval = run->eval;
	int r = 0;

	run->n_lanes = 0;
	for (uint32_t i = 0; !r && i < n; i++) {
		r = lane_init(&run->lanes[i], eval, order[i], err);
		run->n_lanes += !r;
	}
	for (uint32_t i = 0; !r && i < n; i++) {
		for (uint32_t p = 0; !r && p < eval->n_policies; p++)
			if (p == run->reader || reads_alone(run, p))
				r = prefill(run, &run->lanes[i], p, err);
			else
				r = hand_over(run, &run->lanes[i], p, err);
	}
	for (uint32_t p = 0; !r && p < eval->n_policies; p++)
		r = decode_group(run, p, err);
	for (uint32_t i = 0; i < run->n_lanes; i++)
		lane_deinit(&run->lanes[i], eval->n_policies);
	return r;
}

/* ---- the whole evaluation -------------------------------------------------------------------- */

static int by_length(const void *a, const void *b, void *cases)
{
	const struct eng_case *x = &((const struct eng_case *)cases)[*(const size_t *)a];
	const struct eng_case *y = &((const struct eng_case *)cases)[*(const size_t *)b];

	if (x->n_answer != y->n_answer)
		return x->n_answer < y->n_answer ? 1 : -1;
	return x < y ? -1 : x > y;
}

/*
 * Checks that every case fits in the model's context, chooses run->reader, and estimates the work for the progress
 * line.
 */
static int measure(struct run *run, double *ret_work, struct eng_error *err)
{
	const struct eng_eval *eval = run->eval;
	uint32_t readers = 0;
	uint32_t most = eval->model->config.max_positions;
	double work = 0;

	run->reader = eval->n_policies;
	for (uint32_t p = eval->n_policies; p-- > 0;)
		if (reads_alone(run, p))
			readers++;
		else
			run->reader = p;
	readers += run->reader < eval->n_policies;
	for (size_t i = 0; i < eval->cases->n; i++) {
		const struct eng_case *c = &eval->cases->list[i];

		if ((uint64_t)c->n_prompt + c->n_answer + ENG_FREE_SLACK > most)
			return eng_fail(err, -EINVAL, "case %.100s: %u tokens, the model takes %u in all", c->id,
			                c->n_prompt + c->n_answer, most - ENG_FREE_SLACK);
		work += readers * PROMPT_WORK * (double)c->n_prompt + eval->n_policies * (double)c->n_answer;
	}
	*ret_work = work;
	return 0;
}

static int open_sessions(struct run *run, struct eng_error *err)
{
	const struct eng_eval *eval = run->eval;
	struct skv_model shape = eng_model_describe(eval->model, eval->kv_dtype);
	int r = eng_ranks_split(eval->ranks, &shape, err);

	for (uint32_t p = 0; !r && p < eval->n_policies; p++) {
		shape.kv_dtype = p == 0 ? eval->first_dtype : eval->kv_dtype;
		r = skv_open(eval->client, &shape, eval->policies[p], &run->sessions[p]);
		if (r < 0)
			eng_fail(err, r, "--policy %.100s: %s", eval->policies[p], skv_last_error());
		else
			skv_set_recall(run->sessions[p], eval->recall);
	}
	return r;
}

static int run_all(struct run *run, size_t *order, struct eng_error *err)
{
	const struct eng_eval *eval = run->eval;
	size_t n = eval->cases->n;
	uint32_t rows = eval->batch > eval->chunk ? eval->batch : eval->chunk;
	double work = 0;
	int r = open_sessions(run, err);

	r = r ? r : measure(run, &work, err);
	r = r ? r : eng_forward_init(&run->forward, eval->model, rows, err);
	if (r)
		return r;
	run->forward.ranks = eval->ranks;
	run->forward.one_by_one = eval->no_graph;
	for (size_t i = 0; i < n; i++)
		order[i] = i;
	qsort_r(order, n, sizeof(*order), by_length, eval->cases->list);
	eng_progress_begin(&run->progress, stderr, work, eval->quiet);
	for (size_t at = 0; !r && at < n; at += eval->batch)
		r = run_group(run, order + at, (uint32_t)(n - at < eval->batch ? n - at : eval->batch), err);
	eng_progress_end(&run->progress);
	eng_forward_deinit(&run->forward);
	return r;
}

int eng_evaluate(const struct eng_eval *eval, struct eng_result **ret_results, struct eng_error *err)
{
	struct run run = {.eval = eval, .forward = ENG_FORWARD_NULL};
	size_t *order = calloc(eval->cases->n, sizeof(*order));
	int r;

	run.sessions = calloc(eval->n_policies, sizeof(struct skv_session *));
	run.lanes = calloc(eval->batch, sizeof(*run.lanes));
	run.results = calloc(eval->n_policies * eval->cases->n, sizeof(*run.results));
	if (order && run.sessions && run.lanes && run.results)
		r = run_all(&run, order, err);
	else
		r = eng_fail(err, -ENOMEM, "no memory for %zu cases", eval->cases->n);
	for (uint32_t p = 0; run.sessions && p < eval->n_policies; p++)
		skv_close(run.sessions[p]);
	free(run.sessions);
	free(run.lanes);
	free(order);
	if (r) {
		eng_results_free(eval, run.results);
		return r;
	}
	*ret_results = run.results;
	return 0;
}

void eng_results_free(const struct eng_eval *eval, struct eng_result *results)
{
	for (size_t i = 0; results && i < eval->n_policies * eval->cases->n; i++)
		free(results[i].said);
	free(results);
}
