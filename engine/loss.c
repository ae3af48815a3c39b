/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/loss.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/ops.h"
#include "engine/read-text.h"

#define LANES 64u /* most sequences that one step decodes; at most ENG_READ_ROWS */

/* One text decoded under one policy. */
struct lane {
	struct skv_seq *seq;
	uint32_t text;
	/*
	 * where the lane's losses are added for its policy; NULL: the dense run, whose predictions are stored instead
	 */
	double *sum;
};

static int library(int r, struct eng_error *err)
{
	return r < 0 ? eng_fail(err, r, "%s", skv_last_error()) : 0;
}

static int stopped(const struct eng_loss *l, struct eng_error *err)
{
	return l->setup.stop && *l->setup.stop ? eng_fail(err, -EINTR, "interrupted") : 0;
}

/* ---- decoding -------------------------------------------------------------------------------- */

static float *dense_row(const struct eng_loss *l, uint32_t text, uint32_t at)
{
	return l->dense + (l->first[text] + at) * l->setup.model->config.vocab;
}

/* Returns log Σ exp(logits). */
static double log_sum(const float *logits, uint32_t vocab)
{
	return logits[0] + eng_nll(logits, vocab, 0);
}

static void keep(float *to, const float *logits, uint32_t vocab)
{
	float all = (float)log_sum(logits, vocab);

	for (uint32_t i = 0; i < vocab; i++)
		to[i] = logits[i] - all;
}

static double divergence(const float *dense, const float *logits, uint32_t vocab)
{
	double all = log_sum(logits, vocab), sum = 0;

	for (uint32_t i = 0; i < vocab; i++)
		sum += exp(dense[i]) * (dense[i] - (logits[i] - all));
	return sum;
}

/*
 * Evaluates the logits of row `at` of each lane's text: adds the divergence to the lane's sum, or stores the dense
 * predictions.
 */
static void look(const struct eng_loss *l, struct lane *const *active, uint32_t n, uint32_t at, const float *logits)
{
	uint32_t vocab = l->setup.model->config.vocab;
	double lost[LANES];

#pragma omp parallel for schedule(dynamic)
	for (uint32_t i = 0; i < n; i++) {
		float *dense = dense_row(l, active[i]->text, at);
		const float *row = logits + (size_t)i * vocab;

		if (active[i]->sum)
			lost[i] = divergence(dense, row, vocab);
		else
			keep(dense, row, vocab);
	}
	for (uint32_t i = 0; i < n; i++)
		if (active[i]->sum)
			*active[i]->sum += lost[i];
}

/* Decodes row `at` of all lanes whose texts have so many rows. *ret_n is the number of these lanes. */
static int decode_row(struct eng_loss *l, struct lane *lanes, uint32_t n_lanes, uint32_t at, uint32_t *ret_n,
                      struct eng_error *err)
{
	struct skv_step_item items[LANES];
	struct lane *active[LANES];
	const float *logits;
	uint32_t n = 0;
	int r = stopped(l, err);

	for (uint32_t i = 0; i < n_lanes; i++) {
		const struct eng_text *t = &l->setup.texts[lanes[i].text];

		if (at >= eng_text_rows(t))
			continue;
		active[n] = &lanes[i];
		items[n++] = SKV_STEP_ITEM(
			.seq = lanes[i].seq, .n_tokens = 1, .tokens = t->ids + t->from + at);
	}
	*ret_n = n;
	if (r || !n)
		return r;
	r = eng_forward(&l->forward, l->session, items, n, err);
	if (r)
		return r;
	r = eng_forward_logits(&l->forward, &logits, err);
	if (r) {
		skv_step_abort(l->session);
		return r;
	}
	look(l, active, n, at, logits);
	eng_progress_add(l->setup.progress, n, l->label);
	return library(skv_step_end(l->session, NULL, NULL), err);
}

/*
 * Decodes lanes first … first + n - 1 of all pairs of a policy and a text; the lanes of a policy are adjacent. If
 * `specs` is NULL, this is the dense run.
 */
static int decode(struct eng_loss *l, const char *const *specs, uint32_t first, uint32_t n, double *sum,
                  struct eng_error *err)
{
	struct lane lanes[LANES];
	uint32_t n_lanes = 0, active = 1;
	int r = 0;

	while (!r && n_lanes < n) {
		uint32_t policy = (first + n_lanes) / l->setup.n, text = (first + n_lanes) % l->setup.n;
		struct lane *lane = &lanes[n_lanes++];

		*lane = (struct lane){.text = text, .sum = specs ? &sum[policy] : NULL};
		r = library(skv_seq_fork(l->read[text], NULL, SKV_ALL, &lane->seq), err);
		if (!r && specs) {
			r = skv_seq_policy(lane->seq, specs[policy]);
			r = r < 0 ? eng_fail(err, r, "%.100s: %s", specs[policy], skv_last_error()) : 0;
		}
	}
	for (uint32_t at = 0; !r && active; at++)
		r = decode_row(l, lanes, n_lanes, at, &active, err);
	for (uint32_t i = 0; i < n_lanes; i++)
		skv_seq_drop(lanes[i].seq);
	return r;
}

static int decode_all(struct eng_loss *l, const char *const *specs, uint32_t n, double *sum, struct eng_error *err)
{
	uint32_t lanes = n * l->setup.n;
	int r = 0;

	for (uint32_t at = 0; !r && at < lanes; at += LANES)
		r = decode(l, specs, at, lanes - at < LANES ? lanes - at : LANES, sum, err);
	return r;
}

/* ---- the dense run --------------------------------------------------------------------------- */

/* Reads a text up to the first row that counts, and keeps the sequence in l->read. */
static int read_text(struct eng_loss *l, uint32_t text, struct eng_error *err)
{
	const struct eng_text *t = &l->setup.texts[text];
	struct skv_step_item item = SKV_STEP_ITEM(.flags = SKV_STEP_PROMPT);
	int r = library(skv_seq_new(l->session, NULL, t->n + 1, &l->read[text]), err);

	item.seq = l->read[text];
	for (uint32_t at = 0; !r && at < t->from; at += item.n_tokens) {
		item.tokens = t->ids + at;
		item.n_tokens = t->from - at < ENG_READ_ROWS ? t->from - at : ENG_READ_ROWS;
		item.n_prompt_remaining = t->from - at - item.n_tokens;
		r = stopped(l, err);
		r = r ? r : eng_forward(&l->forward, l->session, &item, 1, err);
		r = r ? r : library(skv_step_end(l->session, NULL, NULL), err);
		eng_progress_add(l->setup.progress, item.n_tokens, l->label);
	}
	return r;
}

static int begin(struct eng_loss *l, struct eng_error *err)
{
	const struct eng_loss_setup *s = &l->setup;
	struct skv_model shape = eng_model_describe(s->model, s->kv_dtype);
	int r = library(skv_open(s->client, &shape, "full", &l->session), err);

	if (r)
		return r;
	skv_set_recall(l->session, 0);
	r = eng_forward_init(&l->forward, s->model, ENG_READ_ROWS, err);
	if (r)
		return r;
	l->forward.one_by_one = s->no_graph;
	for (uint32_t i = 0; !r && i < s->n; i++)
		r = read_text(l, i, err);
	return r ? r : decode_all(l, NULL, 1, NULL, err);
}

int eng_loss_init(struct eng_loss *l, const struct eng_loss_setup *setup, struct eng_error *err)
{
	uint32_t vocab = setup->model->config.vocab;
	int r;

	*l = (struct eng_loss){.setup = *setup, .forward = ENG_FORWARD_NULL, .label = "reading texts to search by"};
	l->read = calloc(setup->n, sizeof(struct skv_seq *));
	l->first = calloc(setup->n, sizeof(*l->first));
	for (uint32_t i = 0; l->first && i < setup->n; i++) {
		l->first[i] = l->rows;
		l->rows += eng_text_rows(&setup->texts[i]);
	}
	l->dense = calloc(l->rows, vocab * sizeof(*l->dense));
	if (!l->read || !l->first || !l->dense)
		r = eng_fail(err, -ENOMEM, "no memory for predictions of %zu tokens", l->rows);
	else
		r = begin(l, err);
	if (r)
		eng_loss_deinit(l);
	return r;
}

void eng_loss_deinit(struct eng_loss *l)
{
	for (uint32_t i = 0; l->read && i < l->setup.n; i++)
		skv_seq_drop(l->read[i]);
	if (l->forward.block)
		eng_forward_deinit(&l->forward);
	skv_close(l->session);
	free(l->read);
	free(l->first);
	free(l->dense);
	*l = ENG_LOSS_NULL;
}

/* ---- policies -------------------------------------------------------------------------------- */

int eng_loss_of(void *loss, const char *const *specs, uint32_t n, const char *label, double *ret, struct eng_error *err)
{
	struct eng_loss *l = loss;
	double *sum = calloc(n, sizeof(*sum));
	int r;

	l->label = label;
	r = sum ? decode_all(l, specs, n, sum, err) : eng_fail(err, -ENOMEM, "no memory for %u sums", n);
	for (uint32_t i = 0; !r && i < n; i++)
		ret[i] = sum[i] / (double)l->rows;
	free(sum);
	return r;
}
