/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/reference-attention.h"

#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ref/attention.h"
#include "tests/support/device-helper.h"
#include "tests/support/policies.h"
#include "tests/support/random.h"

#define TOLERANCE (devmem_is_device() ? 6e-3 : 2e-5) /* tensor cores multiply weights of 8 or 11 bits */
/*
 * Scores that differ relatively by less may be ordered either way, by rounding of fp32 sums; on a device scores have 16
 * bits.
 */
#define TIE (devmem_is_device() ? 2e-3 : 1e-5)

/* ---- numbers --------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

uint64_t refmodel_content(uint64_t key, uint32_t i)
{
	return mix(key * 0x9e3779b97f4a7c15u + i + 1);
}

void refmodel_row(uint64_t content, uint32_t layer, enum what what, uint32_t head, uint32_t dim, float *to)
{
	uint64_t x = mix(content ^ mix((uint64_t)layer << 32 | head << 2 | what));

	for (uint32_t d = 0; d < dim; d++) {
		x += 0x9e3779b97f4a7c15u;
		to[d] = (float)(int32_t)(mix(x) >> 40) / (float)(1 << 23) - 1.0f;
	}
}

/* ---- shapes ---------------------------------------------------------------------------------- */

void refmodel_model(struct skv_model *m, const char *name, uint32_t dtype, uint32_t max_tokens)
{
	*m = (struct skv_model)SKV_MODEL_INIT;
	m->n_layers = 5 + rnd_below(3);
	m->n_kv_heads = 1 + rnd_below(2);
	m->n_heads = m->n_kv_heads * (1 + rnd_below(3));
	m->head_dim = 16 * (1 + rnd_below(3));
	m->kv_dtype = dtype;
	if (devmem_is_device()) { /* which supports fewer dtypes and head sizes */
		m->device = SKV_DEVICE_CUDA(0);
		m->head_dim = 32 * (2 + rnd_below(3));
		if (getenv("SKV_TEST_IPC")) /* CUDA IPC handles: pages of 2^n bytes */
			m->head_dim = 64;
		if (dtype != SKV_FP8 || getenv("SKV_TEST_IPC"))
			m->kv_dtype = 1 + dtype % 2;
	}
	m->max_tokens = max_tokens;
	strcpy(m->name, name);
}

/* Elements of a token's K and V in all layers. */
static size_t kv_width(const struct refmodel *w)
{
	return (size_t)w->model.n_layers * 2 * w->model.n_kv_heads * w->model.head_dim;
}

static float *kv_row(const struct refmodel *w, const struct refmodel_seq *q, uint32_t token, uint32_t layer,
                     enum what what, uint32_t kv)
{
	return q->kv + token * kv_width(w) +
	       (((size_t)layer * 2 + (what == ROW_V)) * w->model.n_kv_heads + kv) * w->model.head_dim;
}

void refmodel_put(struct refmodel *w, struct refmodel_seq *q, uint32_t at, uint64_t content)
{
	q->content[at] = content;
	for (uint32_t layer = 0; layer < w->model.n_layers; layer++)
		for (enum what what = ROW_K; what <= ROW_V; what++)
			for (uint32_t kv = 0; kv < w->model.n_kv_heads; kv++) {
				float *to = kv_row(w, q, at, layer, what, kv);

				refmodel_row(content, layer, what, kv, w->model.head_dim, to);
				ref_round_row(w->model.kv_dtype, to, w->model.head_dim);
			}
}

struct refmodel_policy refmodel_policy(const struct skv_model *m, char *spec)
{
	struct refmodel_policy p = {.kind = rnd_below(4), .dense = rnd_below(3)};
	bool share = rnd_below(2);
	char budget[32];
	uint32_t first = p.dense + rnd_below(2), second = m->n_layers - 2;

	if (p.kind == REFMODEL_FULL) {
		strcpy(spec, "full");
		return (struct refmodel_policy){.kind = REFMODEL_FULL};
	}
	if (p.kind == REFMODEL_STREAMING) {
		p.sinks = rnd_below(40);
		p.budget = share ? (struct skv_budget){.share = 0.25f}
		                 : (struct skv_budget){.count = 41 + rnd_below(80)};
		p.floor = share ? 128 : 0;
		snprintf(budget, sizeof(budget), share ? "0.25" : "%u", p.budget.count);
		sprintf(spec, POLICY_WINDOW "?budget=%s&sinks=%u&dense=%u", budget, p.sinks, p.dense);
		return p;
	}
	p.budget =
		share ? (struct skv_budget){.share = 0.25f} : (struct skv_budget){.count = 3 + rnd_below(8)};
	p.floor = share ? 8 : 1;
	snprintf(budget, sizeof(budget), share ? "0.25" : "%u", p.budget.count);
	if (p.kind == REFMODEL_QUEST) {
		p.mean = rnd_below(2);
		p.recent = p.mean ? 4 : 1;
		sprintf(spec, POLICY_BOUNDS "?variant=%s&budget=%s&dense=%u", p.mean ? "sglang" : "shared", budget,
		        p.dense);
		return p;
	}
	p.recent = rnd_below(2) ? 1 + rnd_below(3) : 0;
	p.recent_floor = share && !p.recent ? 2 : 1;
	p.pin = rnd_below(3);
	p.layers = 1u << first | 1u << second;
	sprintf(spec,
	        first == second ? POLICY_PAGES "?budget=%s&recent=%u&layers=%u&dense=%u&pin=%u&profile=none"
	                        : POLICY_PAGES "?budget=%s&recent=%u&layers=%u,%u&dense=%u&pin=%u&profile=none",
	        budget, p.recent, first, first == second ? p.dense : second,
	        first == second ? p.pin : p.dense, p.pin);
	return p;
}

void refmodel_seq_init(struct refmodel *w, struct refmodel_seq *q, struct skv_seq *seq, uint32_t max_tokens)
{
	*q = (struct refmodel_seq){.seq = seq, .cap = max_tokens};
	q->content = calloc(max_tokens, sizeof(*q->content));
	q->kv = calloc((size_t)max_tokens * kv_width(w), sizeof(*q->kv));
	q->hole = calloc((size_t)w->model.n_layers * skv_pages_of(max_tokens), sizeof(*q->hole));
}

void refmodel_seq_copy(struct refmodel *w, struct refmodel_seq *to, const struct refmodel_seq *from,
                       struct skv_seq *seq)
{
	refmodel_seq_init(w, to, seq, from->cap);
	to->len = from->len;
	memcpy(to->content, from->content, from->cap * sizeof(*to->content));
	memcpy(to->kv, from->kv, from->cap * kv_width(w) * sizeof(*to->kv));
	memcpy(to->hole, from->hole, (size_t)w->model.n_layers * skv_pages_of(from->cap) * sizeof(*to->hole));
}

void refmodel_seq_deinit(struct refmodel_seq *q)
{
	free(q->content);
	free(q->kv);
	free(q->hole);
	*q = (struct refmodel_seq){0};
}

const struct refmodel_policy *refmodel_policy_of(const struct refmodel *w, const struct refmodel_seq *q)
{
	return q->own ? q->own : &w->policy;
}

bool *refmodel_holes(const struct refmodel *w, const struct refmodel_seq *q, uint32_t layer)
{
	(void)w;
	return q->hole + (size_t)layer * skv_pages_of(q->cap);
}

/* ---- the reference --------------------------------------------------------------------------- */

void refmodel_weights(const struct refmodel *w, const struct refmodel_seq *q, uint32_t layer, uint32_t n,
                    uint32_t head, const bool *visible, double *weight)
{
	const struct skv_model *m = &w->model;
	uint32_t kv = head / (m->n_heads / m->n_kv_heads);
	float a[SKV_MAX_HEAD_DIM];
	double max = -INFINITY, sum = 0;

	refmodel_row(q->content[n - 1], layer, ROW_Q, head, m->head_dim, a);
	for (uint32_t d = 0; d < m->head_dim && devmem_is_device(); d++)
		a[d] = ref_round(m->kv_dtype == SKV_FP8 ? SKV_F16 : m->kv_dtype, a[d]); /* as tensor cores round it */
	for (uint32_t t = 0; t < n; t++) {
		const float *k;
		double s = 0;

		if (!visible[t])
			continue;
		k = kv_row(w, q, t, layer, ROW_K, kv);
		for (uint32_t d = 0; d < m->head_dim; d++)
			s += (double)a[d] * k[d];
		weight[t] = s / sqrt(m->head_dim);
		if (weight[t] > max)
			max = weight[t];
	}
	for (uint32_t t = 0; t < n; t++)
		if (visible[t])
			sum += weight[t] = exp(weight[t] - max);
	for (uint32_t t = 0; t < n; t++)
		weight[t] = visible[t] ? weight[t] / sum : 0;
}

void refmodel_compare(struct refmodel *w, const struct refmodel_seq *q, uint32_t layer, uint32_t n, uint32_t head,
                   const bool *visible, const float *out)
{
	const struct skv_model *m = &w->model;
	double *weight = calloc(n, sizeof(*weight)), expect[SKV_MAX_HEAD_DIM] = {0};
	const float *v;

	refmodel_weights(w, q, layer, n, head, visible, weight);
	for (uint32_t t = 0; t < n; t++) {
		if (weight[t] == 0)
			continue;
		v = kv_row(w, q, t, layer, ROW_V, head / (m->n_heads / m->n_kv_heads));
		for (uint32_t d = 0; d < m->head_dim; d++)
			expect[d] += weight[t] * v[d];
	}
	for (uint32_t d = 0; d < m->head_dim; d++) {
		double diff = fabs(out[d] - expect[d]);

		ck_assert_msg(diff < (w->tolerance > 0 ? w->tolerance : TOLERANCE), "layer %u, token %u, head %u, %u: %g, expected %g", layer, n - 1, head,
		              d, out[d], expect[d]);
		if (diff > w->worst)
			w->worst = diff;
		w->checked++;
	}
	free(weight);
}

/* By attention weights: a page's score is the sum over its tokens of the largest weight of any head. */
static void score_by_weights(const struct refmodel *w, const struct refmodel_seq *q, uint32_t layer, uint32_t n,
                             const bool *visible, double *score)
{
	double *weight = calloc(n, sizeof(*weight)), *most = calloc(n, sizeof(*most));

	for (uint32_t h = 0; h < w->model.n_heads; h++) {
		refmodel_weights(w, q, layer, n, h, visible, weight);
		for (uint32_t t = 0; t < n; t++)
			most[t] = fmax(most[t], weight[t]);
	}
	for (uint32_t t = 0; t < n; t++)
		score[t / SKV_PAGE_TOKENS] += most[t];
	free(weight);
	free(most);
}

/* By bounds: a page's score is the largest upper bound of q·k over all heads, or the sum over mean heads. */
static void score_by_bounds(const struct refmodel *w, const struct refmodel_seq *q, uint32_t layer, uint32_t n,
                            double *score)
{
	const struct skv_model *m = &w->model;
	uint32_t group = m->n_heads / m->n_kv_heads, step = refmodel_policy_of(w, q)->mean ? group : 1;

	for (uint32_t h = 0; h < m->n_heads; h += step) {
		double a[SKV_MAX_HEAD_DIM] = {0};
		float part[SKV_MAX_HEAD_DIM];

		for (uint32_t g = 0; g < step; g++) {
			refmodel_row(q->content[n - 1], layer, ROW_Q, h + g, m->head_dim, part);
			for (uint32_t d = 0; d < m->head_dim; d++)
				a[d] += (double)part[d] / step;
		}
		for (uint32_t u = 0; u < skv_pages_of(n); u++) {
			double most = 0;

			for (uint32_t d = 0; d < m->head_dim; d++) {
				double best = -INFINITY;

				for (uint32_t t = u * SKV_PAGE_TOKENS; t < n && t / SKV_PAGE_TOKENS == u; t++)
					best = fmax(best, a[d] * kv_row(w, q, t, layer, ROW_K, h / group)[d]);
				most += best;
			}
			score[u] = refmodel_policy_of(w, q)->mean ? score[u] + most : h > 0 ? fmax(score[u], most) : most;
		}
	}
}

/* Chooses the pages that a policy must select in this layer. Returns false if rounding may decide otherwise. */
static bool choose(const struct refmodel *w, const struct refmodel_seq *q, uint32_t layer, uint32_t n,
                   const bool *visible, bool *chosen)
{
	const struct refmodel_policy *p = refmodel_policy_of(w, q);
	uint32_t pages = skv_pages_of(n), k = skv_budget_of(p->budget, pages, p->floor);
	uint32_t recent = p->recent ? p->recent : k / 8;
	double *score = calloc(pages, sizeof(*score)), last = INFINITY;
	bool *open = calloc(pages, sizeof(*open)), sure = true;

	if (recent < p->recent_floor)
		recent = p->recent_floor;
	if (recent > k)
		recent = k;
	if (p->kind == REFMODEL_QUEST)
		score_by_bounds(w, q, layer, n, score);
	else
		score_by_weights(w, q, layer, n, visible, score);
	for (uint32_t u = 0; u < pages; u++) {
		chosen[u] = !refmodel_holes(w, q, layer)[u] && (u >= pages - recent || u < p->pin);
		open[u] = !refmodel_holes(w, q, layer)[u] && !chosen[u];
	}
	for (uint32_t i = 0; i < k - recent + 1; i++) {
		uint32_t best = pages;

		for (uint32_t u = 0; u < pages; u++)
			if (open[u] && (best == pages || score[u] > score[best]))
				best = u;
		if (best == pages)
			break;
		if (i == k - recent) { /* the best page that must not be chosen */
			sure = i == 0 || last - score[best] > TIE * fabs(last);
			break;
		}
		last = score[best];
		open[best] = false;
		chosen[best] = true;
	}
	free(score);
	free(open);
	return sure;
}

static uint32_t recent_from(const struct refmodel_policy *p, uint32_t n)
{
	uint32_t size = skv_budget_of(p->budget, n, p->floor);
	uint32_t recent = size > p->sinks ? size - p->sinks : 1;

	return n > recent ? n - recent : 0;
}

/*
 * The tokens that the row of token n - 1 attends to, of the chosen pages, or of all pages if `chosen` is NULL. Returns
 * their number.
 */
static uint32_t see_row(const struct refmodel *w, const struct refmodel_seq *q, uint32_t layer, uint32_t n, bool window,
                        const bool *chosen, bool *v)
{
	const struct refmodel_policy *p = refmodel_policy_of(w, q);
	uint32_t seen = 0;

	for (uint32_t t = 0; t < n; t++) {
		v[t] = !refmodel_holes(w, q, layer)[t / SKV_PAGE_TOKENS];
		if (window)
			v[t] = v[t] && (t < p->sinks || t >= recent_from(p, n));
		if (chosen)
			v[t] = v[t] && chosen[t / SKV_PAGE_TOKENS];
		seen += v[t];
	}
	return seen;
}

/* All layers of one row, token n - 1; `at` is the start of its bytes in each visible[layer]. */
static bool see_layers(const struct refmodel *w, const struct refmodel_seq *q, uint32_t n, size_t at, bool **visible,
                       uint64_t *attended)
{
	const struct refmodel_policy *p = refmodel_policy_of(w, q);
	bool *chosen = calloc(skv_pages_of(n), sizeof(*chosen)), any = false, sure = true;

	for (uint32_t layer = 0; layer < w->model.n_layers; layer++) {
		bool selects = p->kind == REFMODEL_DELTA && p->layers >> layer & 1;
		bool follows = p->kind == REFMODEL_DELTA && !selects && layer >= p->dense && any;
		bool asks = p->kind == REFMODEL_QUEST && layer >= p->dense;
		bool window = p->kind == REFMODEL_STREAMING && layer >= p->dense;

		if (asks)
			sure = choose(w, q, layer, n, NULL, chosen) && sure;
		*attended += see_row(w, q, layer, n, window, follows || asks ? chosen : NULL, visible[layer] + at);
		if (selects) {
			sure = choose(w, q, layer, n, visible[layer] + at, chosen) && sure;
			any = true;
		}
	}
	free(chosen);
	return sure;
}

bool refmodel_see(const struct refmodel *w, const struct refmodel_seq *q, uint32_t n, uint32_t rows, bool **visible,
                  uint64_t *attended)
{
	bool sure = true;

	*attended = 0;
	for (uint32_t row = 0; row < rows; row++)
		sure = see_layers(w, q, n - rows + 1 + row, (size_t)row * n, visible, attended) && sure;
	return sure;
}

void refmodel_seq_cut(struct refmodel *w, struct refmodel_seq *q, uint32_t n)
{
	for (uint32_t layer = 0; layer < w->model.n_layers; layer++)
		for (uint32_t page = skv_pages_of(n); page < skv_pages_of(q->len); page++)
			refmodel_holes(w, q, layer)[page] = false;
	q->len = n;
}

void refmodel_evict(struct refmodel *w, struct refmodel_seq *q, uint32_t n)
{
	const struct refmodel_policy *p = refmodel_policy_of(w, q);

	if (p->kind != REFMODEL_STREAMING)
		return;
	for (uint32_t layer = p->dense; layer < w->model.n_layers; layer++)
		for (uint32_t u = skv_pages_of(p->sinks); (u + 1) * SKV_PAGE_TOKENS <= recent_from(p, n + 1);
		     u++)
			refmodel_holes(w, q, layer)[u] = true;
}

void refmodel_seq_append(struct refmodel *w, struct refmodel_seq *q, const uint64_t *content, uint32_t n, bool prompt)
{
	for (uint32_t i = 0; i < n; i++)
		refmodel_put(w, q, q->len + i, content[i]);
	q->len += n;
	if (!prompt)
		refmodel_evict(w, q, q->len);
}
