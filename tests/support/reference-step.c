/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/reference-step.c - steps of the reference model: compares the library's outputs and reports with the
 * reference.
 */
#include "tests/support/reference-attention.h"

#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/device-helper.h"
#include "tests/support/random.h"

#define ROWS_CHECKED 6u /* of a prompt's chunk */

static void compare_row(struct refmodel *w, const struct refmodel_seq *q, uint32_t layer, uint32_t n,
                        const bool *visible, const float *out)
{
	for (uint32_t h = 0; h < w->model.n_heads; h++)
		refmodel_compare(w, q, layer, n, h, visible, out + h * w->model.head_dim);
}

/* ---- recall ---------------------------------------------------------------------------------- */

/* Returns whether the layer attends to fewer than all tokens. */
static bool sparse(const struct refmodel_policy *p, uint32_t layer)
{
	uint32_t earlier = p->layers & ((1u << layer) - 1);
	bool follows = p->kind == REFMODEL_DELTA && !(p->layers >> layer & 1) && earlier;

	return layer >= p->dense && (follows || p->kind == REFMODEL_STREAMING || p->kind == REFMODEL_QUEST);
}

/*
 * Sum over sparse layers of the share of the last row's weights that visible tokens have; adds the number of layers to
 * *ret_layers.
 */
static double recall(const struct refmodel *w, const struct refmodel_seq *q, uint32_t n, uint32_t rows,
                     bool *const *visible, uint64_t *ret_layers)
{
	double *weight = calloc(n, sizeof(*weight)), sum = 0;
	bool *there = calloc(n, sizeof(*there));

	for (uint32_t layer = 0; layer < w->model.n_layers; layer++) {
		if (!sparse(refmodel_policy_of(w, q), layer))
			continue;
		for (uint32_t t = 0; t < n; t++)
			there[t] = !refmodel_holes(w, q, layer)[t / SKV_PAGE_TOKENS];
		for (uint32_t h = 0; h < w->model.n_heads; h++) {
			refmodel_weights(w, q, layer, n, h, there, weight);
			for (uint32_t t = 0; t < n; t++)
				sum += visible[layer][(size_t)(rows - 1) * n + t] ? weight[t] / w->model.n_heads : 0;
		}
		*ret_layers += 1;
	}
	free(weight);
	free(there);
	return sum;
}

/* Compares the recall measured in a step, since `before`, with the reference. */
static void check_recall(struct refmodel *w, const struct skv_stats *before, const struct refmodel_item *items, uint32_t n,
                         bool ***visible, const bool *sure)
{
	struct skv_stats now = {.size = sizeof(now)};
	uint64_t layers = 0;
	double sum = 0;

	skv_seq_tokens(items[0].seq->seq, NULL); /* waits for a device, whose steps count when they have run */
	skv_session_stats(w->session, &now);
	for (uint32_t i = 0; i < n; i++) {
		if (!sure[i])
			return;
		if (!items[i].prompt)
			sum += recall(w, items[i].seq, items[i].seq->len, items[i].n_tokens, visible[i], &layers);
	}
	ck_assert_uint_eq(now.recall_layers - before->recall_layers, layers);
	ck_assert_msg(fabs(now.recall_sum - before->recall_sum - sum) <= 0.01 * (double)layers + 1e-9,
	              "recall of %llu layers: %g, expected %g", (unsigned long long)layers,
	              now.recall_sum - before->recall_sum, sum);
}

/* ---- steps ----------------------------------------------------------------------------------- */

void refmodel_fill(const struct skv_model *m, struct devmem_rows *r, uint32_t at, uint64_t content, uint32_t layer)
{
	for (uint32_t h = 0; h < m->n_heads; h++)
		refmodel_row(content, layer, ROW_Q, h, m->head_dim,
		    r->q + ((size_t)at * m->n_heads + h) * m->head_dim);
	for (uint32_t h = 0; h < m->n_kv_heads; h++) {
		refmodel_row(content, layer, ROW_K, h, m->head_dim,
		    r->k + ((size_t)at * m->n_kv_heads + h) * m->head_dim);
		refmodel_row(content, layer, ROW_V, h, m->head_dim,
		    r->v + ((size_t)at * m->n_kv_heads + h) * m->head_dim);
	}
}

/* Compares one item's rows of a layer. */
static void check_item(struct refmodel *w, const struct refmodel_item *it, uint32_t layer, bool *const *visible,
                       const float *out)
{
	size_t width = (size_t)w->model.n_heads * w->model.head_dim;
	uint32_t n = it->seq->len + it->n_tokens;
	bool *dense;

	for (uint32_t i = 0; !it->prompt && i < it->n_tokens; i++)
		compare_row(w, it->seq, layer, it->seq->len + i + 1, visible[layer] + (size_t)i * n, out + i * width);
	if (!it->prompt)
		return;
	dense = calloc(n, sizeof(*dense));
	for (uint32_t t = 0; t < n; t++)
		dense[t] = !refmodel_holes(w, it->seq, layer)[t / SKV_PAGE_TOKENS];
	for (uint32_t i = 0; i < it->n_tokens; i++)
		if (it->n_tokens <= ROWS_CHECKED || i == it->n_tokens - 1 ||
		    rnd_below(it->n_tokens) < ROWS_CHECKED)
			compare_row(w, it->seq, layer, it->seq->len + i + 1, dense, out + i * width);
	free(dense);
}

/* The library reports the same selection of pages or tokens for the layer; returns their number. */
static uint32_t check_looked(struct refmodel *w, const struct refmodel_item *it, uint32_t i, uint32_t layer, uint32_t row,
                             bool *const *visible)
{
	struct skv_selection_info looked = {.size = sizeof(looked)};
	uint32_t n = it->seq->len + it->n_tokens, *ids = calloc(n, sizeof(*ids));
	int e = skv_selection(w->session, layer, i, row, &looked, ids, n);
	const bool *last = visible[layer] + (size_t)(it->prompt ? 0 : it->n_tokens - 1) * n; /* row */
	bool *seen = calloc(n, sizeof(*seen));
	uint32_t unit; /* tokens of an id */

	ck_assert_msg(e == 0, "selection: %d %s", e, skv_last_error());
	ck_assert_uint_eq(looked.len, n);
	unit = looked.attend == SKV_ATTEND_DENSE || looked.attend == SKV_ATTEND_PAGES ? SKV_PAGE_TOKENS : 1;
	for (uint32_t j = 0; j < looked.n; j++)
		for (uint32_t t = ids[j] * unit; t < (ids[j] + 1) * unit && t < n; t++)
			seen[t] = true;
	for (uint32_t t = 0; t < n; t++)
		ck_assert_msg(seen[t] == (it->prompt ? !refmodel_holes(w, it->seq, layer)[t / SKV_PAGE_TOKENS] : last[t]),
		              "layer %u, token %u of %u: looked at is %d", layer, t, n, seen[t]);
	free(seen);
	free(ids);
	return looked.rows;
}

static void attend_all(struct refmodel *w, const struct refmodel_item *items, uint32_t n, struct devmem_rows *r,
                       int abort_at, bool ***visible, const bool *sure)
{
	size_t width = (size_t)w->model.n_heads * w->model.head_dim;

	for (uint32_t layer = 0; layer < w->model.n_layers && (int)layer != abort_at; layer++) {
		bool in_place = rnd_below(4) == 0;
		uint32_t at = 0;
		int e;

		for (uint32_t i = 0; i < n; i++)
			for (uint32_t j = 0; j < items[i].n_tokens; j++)
				refmodel_fill(&w->model, r, at++, items[i].content[j], layer);
		e = devmem_attend(w->session, layer, r, in_place);
		ck_assert_msg(e == 0, "attend: %d %s", e, skv_last_error());
		at = 0;
		for (uint32_t i = 0; i < n; at += items[i++].n_tokens)
			if (sure[i]) {
				check_item(w, &items[i], layer, visible[i], r->out + at * width);
				for (uint32_t row = 0, rows = 1; row < rows; row++)
					rows = check_looked(w, &items[i], i, layer, row, visible[i]);
			}
	}
}

/* Fills in the step's items for the library and each item's next token; returns the total number of tokens. */
static uint32_t fill_step(const struct refmodel_item *items, uint32_t n, struct skv_step_item *step, int32_t *next,
                          uint32_t *accepted)
{
	uint32_t total = 0;

	for (uint32_t i = 0; i < n; i++) {
		const struct refmodel_item *it = &items[i];
		int32_t *ids = calloc(it->n_tokens, sizeof(*ids));

		for (uint32_t j = 0; j < it->n_tokens; j++)
			ids[j] = refmodel_token(it->content[j]);
		step[i] = SKV_STEP_ITEM(.seq = it->seq->seq, .n_tokens = it->n_tokens, .tokens = ids,
		                                 .flags = it->prompt ? SKV_STEP_PROMPT : 0);
		accepted[i] = it->n_tokens - it->rejected;
		next[i] = accepted[i] ? refmodel_token(it->content[accepted[i] - 1] + 1) : 0;
		total += it->n_tokens;
	}
	return total;
}

/*
 * Adds the item's rows to the reference, and computes what each row of a decode step attends to. Returns false if
 * rounding decides.
 */
static bool put_item(struct refmodel *w, const struct refmodel_item *it, bool **visible, uint64_t *attended)
{
	struct refmodel_seq *q = it->seq;
	uint32_t len = q->len + it->n_tokens;
	bool sure;

	ck_assert_uint_le(len, q->cap);
	for (uint32_t j = 0; j < it->n_tokens; j++)
		refmodel_put(w, q, q->len + j, it->content[j]);
	for (uint32_t layer = 0; layer < w->model.n_layers; layer++)
		visible[layer] = calloc((size_t)len * (it->prompt ? 1 : it->n_tokens), sizeof(bool));
	sure = it->prompt || refmodel_see(w, q, len, it->n_tokens, visible, attended);
	w->skipped += !sure;
	return sure;
}

/* After the commit: evicts pages in the reference, and compares the library's counters. */
static void end_item(struct refmodel *w, const struct refmodel_item *it, uint64_t attended, bool sure)
{
	struct refmodel_seq *q = it->seq;
	uint64_t a, c;

	if (it->rejected == it->n_tokens)
		return;
	if (!it->prompt) {
		refmodel_evict(w, q, q->len);
		q->attended += attended;
		for (uint32_t i = 1; i <= it->n_tokens; i++)
			q->causal += (uint64_t)(q->len - (it->n_tokens - it->rejected) + i) * w->model.n_layers;
	}
	skv_seq_attended(q->seq, &a, &c);
	ck_assert_uint_eq(c, q->causal);
	ck_assert_msg(a == q->attended || !sure, "attended %llu, expected %llu", (unsigned long long)a,
	              (unsigned long long)q->attended);
	q->attended = a;
}

void refmodel_speculate(struct refmodel_item *it, uint64_t key, uint64_t *content)
{
	it->content = content;
	it->rejected = rnd_below(3) == 0 ? 0 : it->prompt ? rnd_below(8) == 0 ? it->n_tokens : 0 : rnd_below(it->n_tokens + 1);
	for (uint32_t i = 0; i < it->n_tokens; i++)
		content[i] = refmodel_content(i < it->n_tokens - it->rejected ? key : rnd64(), it->seq->len + i);
}

int refmodel_step(struct refmodel *w, const struct refmodel_item *items, uint32_t n, int abort_at)
{
	struct skv_step_item *step = calloc(n, sizeof(*step));
	int32_t *next = calloc(n, sizeof(*next)), *placed = devmem_get(n * sizeof(*next));
	bool ***visible = calloc(n, sizeof(*visible)), *sure = calloc(n, sizeof(*sure));
	uint64_t *attended = calloc(n, sizeof(*attended));
	struct skv_stats before = {.size = sizeof(before)};
	uint32_t *accepted = calloc(n, sizeof(*accepted)), rejected = 0;
	uint32_t total = fill_step(items, n, step, next, accepted);
	struct devmem_rows r;
	int e;

	if (w->measures)
		skv_session_stats(w->session, &before);
	e = skv_step_begin(w->session, step, n, devmem_stream());
	for (uint32_t i = 0; i < n; i++) {
		free((void *)step[i].tokens); /* the library must not keep a pointer to it */
		visible[i] = calloc(w->model.n_layers, sizeof(**visible));
	}
	if (e < 0)
		goto out;
	if (w->next_spec[0] && refmodel_runs(skv_policy_spec(w->session), w->next_spec)) {
		w->policy = w->next;
		w->next_spec[0] = '\0';
	}
	for (uint32_t i = 0; i < n; i++)
		sure[i] = put_item(w, &items[i], visible[i], &attended[i]);
	r = devmem_rows_new(&w->model, total);
	attend_all(w, items, n, &r, abort_at, visible, sure);
	devmem_rows_free(&r);
	if (abort_at >= 0) {
		skv_step_abort(w->session);
		e = -ECANCELED;
		goto out;
	}
	for (uint32_t i = 0; i < n; i++)
		rejected += items[i].rejected;
	e = skv_step_end(w->session, devmem_ids(placed, next, n), rejected > 0 || rnd_below(2) ? accepted : NULL);
	ck_assert_msg(e == 0, "step_end: %d %s", e, skv_last_error());
	for (uint32_t i = 0; i < n; i++)
		items[i].seq->len += accepted[i];
	if (w->measures && rejected == 0)
		check_recall(w, &before, items, n, visible, sure);
	for (uint32_t i = 0; i < n; i++)
		end_item(w, &items[i], attended[i], sure[i]);
out:
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t layer = 0; layer < w->model.n_layers; layer++)
			free(visible[i][layer]);
		free(visible[i]);
	}
	free(visible);
	free(sure);
	free(attended);
	free(step);
	free(next);
	free(accepted);
	devmem_put(placed); /* after all work that reads it */
	return e;
}

void refmodel_feed(struct refmodel *w, struct refmodel_seq *q, uint64_t key, uint32_t n, bool prompt)
{
	uint64_t *content = calloc(n, sizeof(*content));
	int e;

	for (uint32_t i = 0; i < n; i++)
		content[i] = refmodel_content(key, q->len + i);
	e = refmodel_step(w, &(struct refmodel_item){q, n, prompt, content, 0}, 1, -1);
	ck_assert_msg(e == 0, "step: %d %s", e, skv_last_error());
	free(content);
}

/*
 * Runs rows of these content numbers, divided among the items in order; with attention if `attends`, otherwise K and V
 * only.
 */
static int run(struct refmodel *w, const struct skv_step_item *items, uint32_t n_items, const uint64_t *content,
               uint32_t n, bool attends, const uint32_t *accepted, float *out, void (*before_end)(void),
               void (*ending)(bool))
{
	struct devmem_rows r = devmem_rows_new(&w->model, n);
	size_t size = (size_t)n * w->model.n_heads * w->model.head_dim;
	int32_t *next = calloc(n_items, sizeof(*next)), *placed = devmem_get(n_items * sizeof(*next));
	int e = skv_step_begin(w->session, items, n_items, devmem_stream());

	for (uint32_t layer = 0; layer < w->model.n_layers && e == 0; layer++) {
		for (uint32_t i = 0; i < n; i++)
			refmodel_fill(&w->model, &r, i, content[i], layer);
		e = attends ? devmem_attend(w->session, layer, &r, w->in_place) : devmem_append(w->session, layer, &r);
		if (e == 0 && out)
			memcpy(out + layer * size, r.out, size * sizeof(float));
	}
	for (uint32_t i = 0, at = 0; i < n_items; i++) {
		uint32_t rows = accepted ? accepted[i] : items[i].n_tokens;

		next[i] = rows ? refmodel_token(content[at + rows - 1] + 1) : 0;
		at += items[i].n_tokens;
	}
	if (e == 0 && before_end)
		before_end();
	if (ending)
		ending(true);
	if (e == 0)
		e = skv_step_end(w->session, devmem_ids(placed, next, n_items), accepted);
	if (ending)
		ending(false);
	free(next);
	devmem_put(placed);
	devmem_rows_free(&r);
	return e;
}

int refmodel_decode(struct refmodel *w, struct skv_seq *const *seqs, const uint64_t *content, uint32_t n, float *out)
{
	struct skv_step_item *items = calloc(n, sizeof(*items));
	int32_t *ids = calloc(n, sizeof(*ids));
	int e;

	for (uint32_t i = 0; i < n; i++) {
		ids[i] = refmodel_token(content[i]);
		items[i] = SKV_STEP_ITEM(.seq = seqs[i], .n_tokens = 1, .tokens = &ids[i]);
	}
	e = run(w, items, n, content, n, true, NULL, out, NULL, NULL);
	free(items);
	free(ids);
	return e;
}

int refmodel_items(struct refmodel *w, struct skv_step_item *items, uint32_t n_items, const uint64_t *content,
                   uint32_t n, const uint32_t *accepted, float *out)
{
	int32_t *ids = calloc(n, sizeof(*ids));
	int e;

	for (uint32_t i = 0; i < n; i++)
		ids[i] = refmodel_token(content[i]);
	for (uint32_t i = 0, at = 0; i < n_items; at += items[i++].n_tokens)
		items[i].tokens = ids + at;
	e = run(w, items, n_items, content, n, true, accepted, out, NULL, NULL);
	free(ids);
	return e;
}

int refmodel_items_ended(struct refmodel *w, struct skv_step_item *items, uint32_t n_items, const uint64_t *content,
                         uint32_t n, const uint32_t *accepted, void (*ending)(bool))
{
	int32_t *ids = calloc(n, sizeof(*ids));
	int e;

	for (uint32_t i = 0; i < n; i++)
		ids[i] = refmodel_token(content[i]);
	for (uint32_t i = 0, at = 0; i < n_items; at += items[i++].n_tokens)
		items[i].tokens = ids + at;
	e = run(w, items, n_items, content, n, true, accepted, NULL, NULL, ending);
	free(ids);
	return e;
}

static int run_one(struct refmodel *w, struct skv_step_item item, const uint64_t *content, bool attends, float *out,
                   void (*before_end)(void))
{
	int32_t *ids = calloc(item.n_tokens, sizeof(*ids));
	int e;

	for (uint32_t i = 0; i < item.n_tokens; i++)
		ids[i] = refmodel_token(content[i]);
	item.tokens = ids;
	e = run(w, &item, 1, content, item.n_tokens, attends, NULL, out, before_end, NULL);
	free(ids);
	return e;
}

int refmodel_run(struct refmodel *w, struct skv_seq *seq, const uint64_t *content, uint32_t n, bool prompt,
              float *out, void (*before_end)(void))
{
	const struct skv_step_item item = SKV_STEP_ITEM(.seq = seq, .n_tokens = n, .flags = prompt ? SKV_STEP_PROMPT : 0);

	return run_one(w, item, content, true, out, before_end);
}

int refmodel_read(struct refmodel *w, struct skv_seq *seq, const uint64_t *content, uint32_t n, uint32_t later, float *out,
               void (*before_end)(void))
{
	const struct skv_step_item item = SKV_STEP_ITEM(.seq = seq, .n_tokens = n, .flags = SKV_STEP_PROMPT,
	                                   .n_prompt_remaining = later);

	return run_one(w, item, content, true, out, before_end);
}

int refmodel_append(struct refmodel *w, struct skv_seq *seq, const uint64_t *content, uint32_t n, bool prompt)
{
	const struct skv_step_item item = SKV_STEP_ITEM(.seq = seq, .n_tokens = n, .flags = prompt ? SKV_STEP_PROMPT : 0);

	return run_one(w, item, content, false, NULL, NULL);
}
