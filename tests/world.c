/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/world.h"

#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/place.h"
#include "tests/random.h"

#define TOLERANCE (place_is_device() ? 6e-3 : 2e-5) /* tensor cores multiply weights of 8 or 11 bits */
/* scores closer than this, relatively, may be ordered either way by fp32 sums, on a device by scores of 16 bits */
#define TIE (place_is_device() ? 2e-3 : 1e-5)
#define ROWS_CHECKED 6u /* of a prompt's chunk */

/* ---- numbers --------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

uint64_t world_content(uint64_t key, uint32_t i)
{
	return mix(key * 0x9e3779b97f4a7c15u + i + 1);
}

enum what { ROW_Q, ROW_K, ROW_V };

/* One head's row of a token in a layer, in [-1, 1). */
static void row(uint64_t content, uint32_t layer, enum what what, uint32_t head, uint32_t dim, float *to)
{
	uint64_t x = mix(content ^ mix((uint64_t)layer << 32 | head << 2 | what));

	for (uint32_t d = 0; d < dim; d++) {
		x += 0x9e3779b97f4a7c15u;
		to[d] = (float)(int32_t)(mix(x) >> 40) / (float)(1 << 23) - 1.0f;
	}
}

/* x as the pages keep it. */
static float stored(float x, uint32_t dtype)
{
	uint32_t bits;
	int exponent;

	if (dtype == SKV_F32)
		return x;
	memcpy(&bits, &x, sizeof(bits));
	if (dtype == SKV_BF16) {
		bits += 0x7fff + (bits >> 16 & 1);
		bits &= 0xffff0000u;
		memcpy(&x, &bits, sizeof(x));
		return x;
	}
	/* fp16: 11 significant bits, but no finer than 2^-24; _Float16 is not in every compiler that we build with */
	frexpf(x, &exponent);
	exponent = (exponent > -13 ? exponent : -13) - 11;
	return ldexpf(rintf(ldexpf(x, -exponent)), exponent);
}

/* ---- shapes ---------------------------------------------------------------------------------- */

void world_model(struct skv_model *m, const char *name, uint32_t dtype, uint32_t max_tokens)
{
	*m = (struct skv_model)SKV_MODEL_INIT;
	m->n_layers = 5 + rnd_below(3);
	m->n_kv_heads = 1 + rnd_below(2);
	m->n_heads = m->n_kv_heads * (1 + rnd_below(3));
	m->head_dim = 16 * (1 + rnd_below(3));
	m->kv_dtype = dtype;
	if (place_is_device()) { /* where there are fewer kinds */
		m->device = SKV_DEVICE_CUDA(0);
		m->head_dim = 32 * (2 + rnd_below(3));
		if (getenv("SKV_TEST_IPC")) /* the older handles: pages of 2^n bytes */
			m->head_dim = 64;
		m->kv_dtype = 1 + dtype % 2;
	}
	m->max_tokens = max_tokens;
	strcpy(m->name, name);
}

/* Elements of a token's K and V, all layers. */
static size_t kv_width(const struct world *w)
{
	return (size_t)w->model.n_layers * 2 * w->model.n_kv_heads * w->model.head_dim;
}

static float *kv_row(const struct world *w, const struct world_seq *q, uint32_t token, uint32_t layer,
                     enum what what, uint32_t kv)
{
	return q->kv + token * kv_width(w) +
	       (((size_t)layer * 2 + (what == ROW_V)) * w->model.n_kv_heads + kv) * w->model.head_dim;
}

/* Token `at` of the sequence is this one. */
static void put_content(struct world *w, struct world_seq *q, uint32_t at, uint64_t content)
{
	q->content[at] = content;
	for (uint32_t layer = 0; layer < w->model.n_layers; layer++)
		for (enum what what = ROW_K; what <= ROW_V; what++)
			for (uint32_t kv = 0; kv < w->model.n_kv_heads; kv++) {
				float *to = kv_row(w, q, at, layer, what, kv);

				row(content, layer, what, kv, w->model.head_dim, to);
				for (uint32_t d = 0; d < w->model.head_dim; d++)
					to[d] = stored(to[d], w->model.kv_dtype);
			}
}

struct world_policy world_policy(const struct skv_model *m, char *spec)
{
	struct world_policy p = {.kind = rnd_below(4), .dense = rnd_below(3)};
	bool share = rnd_below(2);
	char budget[32];
	uint32_t first = p.dense + rnd_below(2), second = m->n_layers - 2;

	if (p.kind == WORLD_FULL) {
		strcpy(spec, "full");
		return (struct world_policy){.kind = WORLD_FULL};
	}
	if (p.kind == WORLD_STREAMING) {
		p.sinks = rnd_below(40);
		p.budget = share ? (struct skv_budget){.share = 0.25f}
		                 : (struct skv_budget){.count = 41 + rnd_below(80)};
		p.floor = share ? 128 : 0;
		snprintf(budget, sizeof(budget), share ? "0.25" : "%u", p.budget.count);
		sprintf(spec, "streaming?budget=%s&sinks=%u&dense=%u", budget, p.sinks, p.dense);
		return p;
	}
	p.budget =
		share ? (struct skv_budget){.share = 0.25f} : (struct skv_budget){.count = 3 + rnd_below(8)};
	p.floor = share ? 8 : 1;
	snprintf(budget, sizeof(budget), share ? "0.25" : "%u", p.budget.count);
	if (p.kind == WORLD_QUEST) {
		p.mean = rnd_below(2);
		p.recent = p.mean ? 4 : 1;
		sprintf(spec, "quest?variant=%s&budget=%s&dense=%u", p.mean ? "sglang" : "shared", budget, p.dense);
		return p;
	}
	p.recent = rnd_below(2) ? 1 + rnd_below(3) : 0;
	p.recent_floor = share && !p.recent ? 2 : 1;
	p.pin = rnd_below(3);
	p.layers = 1u << first | 1u << second;
	sprintf(spec,
	        first == second ? "delta?budget=%s&recent=%u&layers=%u&dense=%u&pin=%u&profile=none"
	                        : "delta?budget=%s&recent=%u&layers=%u,%u&dense=%u&pin=%u&profile=none",
	        budget, p.recent, first, first == second ? p.dense : second,
	        first == second ? p.pin : p.dense, p.pin);
	return p;
}

void world_seq_init(struct world *w, struct world_seq *q, struct skv_seq *seq, uint32_t max_tokens)
{
	*q = (struct world_seq){.seq = seq, .cap = max_tokens};
	q->content = calloc(max_tokens, sizeof(*q->content));
	q->kv = calloc((size_t)max_tokens * kv_width(w), sizeof(*q->kv));
	q->hole = calloc((size_t)w->model.n_layers * skv_pages_of(max_tokens), sizeof(*q->hole));
}

void world_seq_copy(struct world *w, struct world_seq *to, const struct world_seq *from, struct skv_seq *seq)
{
	world_seq_init(w, to, seq, from->cap);
	to->len = from->len;
	memcpy(to->content, from->content, from->cap * sizeof(*to->content));
	memcpy(to->kv, from->kv, from->cap * kv_width(w) * sizeof(*to->kv));
	memcpy(to->hole, from->hole, (size_t)w->model.n_layers * skv_pages_of(from->cap) * sizeof(*to->hole));
}

void world_seq_deinit(struct world_seq *q)
{
	free(q->content);
	free(q->kv);
	free(q->hole);
	*q = (struct world_seq){0};
}

static const struct world_policy *policy_of(const struct world *w, const struct world_seq *q)
{
	return q->own ? q->own : &w->policy;
}

static bool *holes(const struct world *w, const struct world_seq *q, uint32_t layer)
{
	(void)w;
	return q->hole + (size_t)layer * skv_pages_of(q->cap);
}

/* ---- the reference --------------------------------------------------------------------------- */

/* Softmax weights of one q head over the visible of n tokens; weight[n]. */
static void weights(const struct world *w, const struct world_seq *q, uint32_t layer, uint32_t n,
                    uint32_t head, const bool *visible, double *weight)
{
	const struct skv_model *m = &w->model;
	uint32_t kv = head / (m->n_heads / m->n_kv_heads);
	float a[SKV_MAX_HEAD_DIM];
	double max = -INFINITY, sum = 0;

	row(q->content[n - 1], layer, ROW_Q, head, m->head_dim, a);
	for (uint32_t d = 0; d < m->head_dim && place_is_device(); d++)
		a[d] = stored(a[d], m->kv_dtype); /* as its tensor cores take it */
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

void world_compare(struct world *w, const struct world_seq *q, uint32_t layer, uint32_t n, uint32_t head,
                   const bool *visible, const float *out)
{
	const struct skv_model *m = &w->model;
	double *weight = calloc(n, sizeof(*weight)), expect[SKV_MAX_HEAD_DIM] = {0};
	const float *v;

	weights(w, q, layer, n, head, visible, weight);
	for (uint32_t t = 0; t < n; t++) {
		if (weight[t] == 0)
			continue;
		v = kv_row(w, q, t, layer, ROW_V, head / (m->n_heads / m->n_kv_heads));
		for (uint32_t d = 0; d < m->head_dim; d++)
			expect[d] += weight[t] * v[d];
	}
	for (uint32_t d = 0; d < m->head_dim; d++) {
		double diff = fabs(out[d] - expect[d]);

		ck_assert_msg(diff < TOLERANCE, "layer %u, token %u, head %u, %u: %g, expected %g", layer, n - 1, head,
		              d, out[d], expect[d]);
		if (diff > w->worst)
			w->worst = diff;
		w->checked++;
	}
	free(weight);
}

static void compare_row(struct world *w, const struct world_seq *q, uint32_t layer, uint32_t n,
                        const bool *visible, const float *out)
{
	for (uint32_t h = 0; h < w->model.n_heads; h++)
		world_compare(w, q, layer, n, h, visible, out + h * w->model.head_dim);
}

/* delta: the sum over a page's tokens of the largest weight of any head. */
static void score_by_weights(const struct world *w, const struct world_seq *q, uint32_t layer, uint32_t n,
                             const bool *visible, double *score)
{
	double *weight = calloc(n, sizeof(*weight)), *most = calloc(n, sizeof(*most));

	for (uint32_t h = 0; h < w->model.n_heads; h++) {
		weights(w, q, layer, n, h, visible, weight);
		for (uint32_t t = 0; t < n; t++)
			most[t] = fmax(most[t], weight[t]);
	}
	for (uint32_t t = 0; t < n; t++)
		score[t / SKV_PAGE_TOKENS] += most[t];
	free(weight);
	free(most);
}

/* quest: by what the page's keys can give the row at most, the best of all heads; or the sum over mean heads. */
static void score_by_bounds(const struct world *w, const struct world_seq *q, uint32_t layer, uint32_t n, double *score)
{
	const struct skv_model *m = &w->model;
	uint32_t group = m->n_heads / m->n_kv_heads, step = policy_of(w, q)->mean ? group : 1;

	for (uint32_t h = 0; h < m->n_heads; h += step) {
		double a[SKV_MAX_HEAD_DIM] = {0};
		float part[SKV_MAX_HEAD_DIM];

		for (uint32_t g = 0; g < step; g++) {
			row(q->content[n - 1], layer, ROW_Q, h + g, m->head_dim, part);
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
			score[u] = policy_of(w, q)->mean ? score[u] + most : h > 0 ? fmax(score[u], most) : most;
		}
	}
}

/* The pages that delta or quest must select in this layer. False: rounding may decide otherwise. */
static bool choose(const struct world *w, const struct world_seq *q, uint32_t layer, uint32_t n,
                   const bool *visible, bool *chosen)
{
	const struct world_policy *p = policy_of(w, q);
	uint32_t pages = skv_pages_of(n), k = skv_budget_of(p->budget, pages, p->floor);
	uint32_t recent = p->recent ? p->recent : k / 8;
	double *score = calloc(pages, sizeof(*score)), last = INFINITY;
	bool *open = calloc(pages, sizeof(*open)), sure = true;

	if (recent < p->recent_floor)
		recent = p->recent_floor;
	if (recent > k)
		recent = k;
	if (p->kind == WORLD_QUEST)
		score_by_bounds(w, q, layer, n, score);
	else
		score_by_weights(w, q, layer, n, visible, score);
	for (uint32_t u = 0; u < pages; u++) {
		chosen[u] = !holes(w, q, layer)[u] && (u >= pages - recent || u < p->pin);
		open[u] = !holes(w, q, layer)[u] && !chosen[u];
	}
	for (uint32_t i = 0; i < k - recent + 1; i++) {
		uint32_t best = pages;

		for (uint32_t u = 0; u < pages; u++)
			if (open[u] && (best == pages || score[u] > score[best]))
				best = u;
		if (best == pages)
			break;
		if (i == k - recent) { /* the first that must not be chosen */
			sure = last - score[best] > TIE * fabs(last);
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

static uint32_t recent_from(const struct world_policy *p, uint32_t n)
{
	uint32_t size = skv_budget_of(p->budget, n, p->floor);
	uint32_t recent = size > p->sinks ? size - p->sinks : 1;

	return n > recent ? n - recent : 0;
}

/* What a decode row sees in each layer: visible[layer][n]. False: rounding decides. Counts what is attended. */
static bool see(const struct world *w, const struct world_seq *q, uint32_t n, bool **visible,
                uint64_t *attended)
{
	const struct world_policy *p = policy_of(w, q);
	uint32_t pages = skv_pages_of(n);
	bool *chosen = calloc(pages, sizeof(*chosen)), any = false, sure = true;

	*attended = 0;
	for (uint32_t layer = 0; layer < w->model.n_layers; layer++) {
		bool selects = p->kind == WORLD_DELTA && p->layers >> layer & 1;
		bool follows = p->kind == WORLD_DELTA && !selects && layer >= p->dense && any;
		bool asks = p->kind == WORLD_QUEST && layer >= p->dense;
		bool window = p->kind == WORLD_STREAMING && layer >= p->dense;

		if (asks)
			sure = choose(w, q, layer, n, NULL, chosen) && sure;
		for (uint32_t t = 0; t < n; t++) {
			bool *v = &visible[layer][t];

			*v = !holes(w, q, layer)[t / SKV_PAGE_TOKENS];
			if (window)
				*v = *v && (t < p->sinks || t >= recent_from(p, n));
			if (follows || asks)
				*v = *v && chosen[t / SKV_PAGE_TOKENS];
			*attended += *v;
		}
		if (selects) {
			sure = choose(w, q, layer, n, visible[layer], chosen) && sure;
			any = true;
		}
	}
	free(chosen);
	return sure;
}

/* Pages that the policy evicts at the end of a step that brought the sequence to n tokens. */
static void evict(struct world *w, struct world_seq *q, uint32_t n)
{
	const struct world_policy *p = policy_of(w, q);

	if (p->kind != WORLD_STREAMING)
		return;
	for (uint32_t layer = p->dense; layer < w->model.n_layers; layer++)
		for (uint32_t u = skv_pages_of(p->sinks); (u + 1) * SKV_PAGE_TOKENS <= recent_from(p, n + 1);
		     u++)
			holes(w, q, layer)[u] = true;
}

void world_seq_append(struct world *w, struct world_seq *q, const uint64_t *content, uint32_t n, bool prompt)
{
	for (uint32_t i = 0; i < n; i++)
		put_content(w, q, q->len + i, content[i]);
	q->len += n;
	if (!prompt)
		evict(w, q, q->len);
}

/* ---- recall ---------------------------------------------------------------------------------- */

/* Does the layer look at less than everything? */
static bool sparse(const struct world_policy *p, uint32_t layer)
{
	uint32_t earlier = p->layers & ((1u << layer) - 1);
	bool follows = p->kind == WORLD_DELTA && !(p->layers >> layer & 1) && earlier;

	return layer >= p->dense && (follows || p->kind == WORLD_STREAMING || p->kind == WORLD_QUEST);
}

/* Sum over sparse layers of the share of the weights that is on visible tokens; adds their number to *ret_layers. */
static double recall(const struct world *w, const struct world_seq *q, uint32_t n, bool *const *visible,
                     uint64_t *ret_layers)
{
	double *weight = calloc(n, sizeof(*weight)), sum = 0;
	bool *there = calloc(n, sizeof(*there));

	for (uint32_t layer = 0; layer < w->model.n_layers; layer++) {
		if (!sparse(policy_of(w, q), layer))
			continue;
		for (uint32_t t = 0; t < n; t++)
			there[t] = !holes(w, q, layer)[t / SKV_PAGE_TOKENS];
		for (uint32_t h = 0; h < w->model.n_heads; h++) {
			weights(w, q, layer, n, h, there, weight);
			for (uint32_t t = 0; t < n; t++)
				sum += visible[layer][t] ? weight[t] / w->model.n_heads : 0;
		}
		*ret_layers += 1;
	}
	free(weight);
	free(there);
	return sum;
}

/* What the session measured in a step, before which it said `before`; at most 8 sequences. */
static void check_recall(struct world *w, const struct skv_stats *before, const struct world_item *items, uint32_t n,
                         bool ***visible, const bool *sure)
{
	struct skv_stats now = {.size = sizeof(now)};
	uint64_t layers = 0;
	double sum = 0;

	skv_session_stats(w->session, &now);
	for (uint32_t i = 0; i < n; i++) {
		if (!sure[i])
			return;
		if (!items[i].prompt)
			sum += recall(w, items[i].seq, items[i].seq->len, visible[i], &layers);
	}
	ck_assert_uint_eq(now.recall_layers - before->recall_layers, layers);
	ck_assert_msg(fabs(now.recall_sum - before->recall_sum - sum) <= 0.01 * (double)layers + 1e-9,
	              "recall of %llu layers: %g, expected %g", (unsigned long long)layers,
	              now.recall_sum - before->recall_sum, sum);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void rows_fill(const struct skv_model *m, struct place_rows *r, uint32_t at, uint64_t content,
                      uint32_t layer)
{
	for (uint32_t h = 0; h < m->n_heads; h++)
		row(content, layer, ROW_Q, h, m->head_dim,
		    r->q + ((size_t)at * m->n_heads + h) * m->head_dim);
	for (uint32_t h = 0; h < m->n_kv_heads; h++) {
		row(content, layer, ROW_K, h, m->head_dim,
		    r->k + ((size_t)at * m->n_kv_heads + h) * m->head_dim);
		row(content, layer, ROW_V, h, m->head_dim,
		    r->v + ((size_t)at * m->n_kv_heads + h) * m->head_dim);
	}
}

/* Compare one item's rows of a layer. */
static void check_item(struct world *w, const struct world_item *it, uint32_t layer, bool *const *visible,
                       const float *out)
{
	size_t width = (size_t)w->model.n_heads * w->model.head_dim;
	uint32_t n = it->seq->len + it->n_tokens;
	bool *dense;

	if (!it->prompt) {
		compare_row(w, it->seq, layer, n, visible[layer], out);
		return;
	}
	dense = calloc(n, sizeof(*dense));
	for (uint32_t t = 0; t < n; t++)
		dense[t] = !holes(w, it->seq, layer)[t / SKV_PAGE_TOKENS];
	for (uint32_t i = 0; i < it->n_tokens; i++)
		if (it->n_tokens <= ROWS_CHECKED || i == it->n_tokens - 1 ||
		    rnd_below(it->n_tokens) < ROWS_CHECKED)
			compare_row(w, it->seq, layer, it->seq->len + i + 1, dense, out + i * width);
	free(dense);
}

/* The library says the same of what the layer looked at, in a list of pages or of tokens; returns how many it has. */
static uint32_t check_looked(struct world *w, const struct world_item *it, uint32_t i, uint32_t layer, uint32_t row,
                             bool *const *visible)
{
	struct skv_looked looked = {.size = sizeof(looked)};
	uint32_t n = it->seq->len + it->n_tokens, *ids = calloc(n, sizeof(*ids));
	int e = skv_selection(w->session, layer, i, row, &looked, ids, n);
	bool *seen = calloc(n, sizeof(*seen));
	uint32_t unit; /* tokens in one */

	ck_assert_msg(e == 0, "selection: %d %s", e, skv_last_error());
	ck_assert_uint_eq(looked.len, n);
	unit = looked.how == SKV_LOOKED_DENSE || looked.how == SKV_LOOKED_PAGES ? SKV_PAGE_TOKENS : 1;
	for (uint32_t j = 0; j < looked.n; j++)
		for (uint32_t t = ids[j] * unit; t < (ids[j] + 1) * unit && t < n; t++)
			seen[t] = true;
	for (uint32_t t = 0; t < n; t++)
		ck_assert_msg(seen[t] == (it->prompt ? !holes(w, it->seq, layer)[t / SKV_PAGE_TOKENS] : visible[layer][t]),
		              "layer %u, token %u of %u: looked at is %d", layer, t, n, seen[t]);
	free(seen);
	free(ids);
	return looked.rows;
}

static void attend_all(struct world *w, const struct world_item *items, uint32_t n, struct place_rows *r,
                       int abort_at, bool ***visible, const bool *sure)
{
	size_t width = (size_t)w->model.n_heads * w->model.head_dim;

	for (uint32_t layer = 0; layer < w->model.n_layers && (int)layer != abort_at; layer++) {
		bool in_place = rnd_below(4) == 0;
		uint32_t at = 0;
		int e;

		for (uint32_t i = 0; i < n; i++)
			for (uint32_t j = 0; j < items[i].n_tokens; j++)
				rows_fill(&w->model, r, at++, items[i].content[j], layer);
		e = place_attend(w->session, layer, r, in_place);
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

int world_step(struct world *w, const struct world_item *items, uint32_t n, int abort_at)
{
	struct skv_step_item *step = calloc(n, sizeof(*step));
	int32_t *next = calloc(n, sizeof(*next)), *placed = place_get(n * sizeof(*next));
	bool ***visible = calloc(n, sizeof(*visible)), *sure = calloc(n, sizeof(*sure));
	uint64_t *attended = calloc(n, sizeof(*attended));
	struct skv_stats before = {.size = sizeof(before)};
	uint32_t total = 0;
	struct place_rows r;
	int e;

	if (w->measures)
		skv_session_stats(w->session, &before);
	for (uint32_t i = 0; i < n; i++) {
		const struct world_item *it = &items[i];
		int32_t *ids = calloc(it->n_tokens, sizeof(*ids));

		for (uint32_t j = 0; j < it->n_tokens; j++)
			ids[j] = world_token(it->content[j]);
		step[i] = (struct skv_step_item){.seq = it->seq->seq, .n_tokens = it->n_tokens, .tokens = ids,
		                                 .flags = it->prompt ? SKV_STEP_PROMPT : 0};
		next[i] = world_token(it->content[it->n_tokens - 1] + 1);
		total += it->n_tokens;
	}
	e = skv_step_begin(w->session, step, n, place_stream());
	for (uint32_t i = 0; i < n; i++) {
		free((void *)step[i].tokens); /* the library keeps none of it */
		visible[i] = calloc(w->model.n_layers, sizeof(**visible));
	}
	if (e < 0)
		goto out;
	if (w->next_spec[0] && !strcmp(skv_policy_spec(w->session), w->next_spec)) {
		w->policy = w->next;
		w->next_spec[0] = '\0';
	}
	for (uint32_t i = 0; i < n; i++) {
		struct world_seq *q = items[i].seq;
		uint32_t len = q->len + items[i].n_tokens;

		ck_assert_uint_le(len, q->cap);
		for (uint32_t j = 0; j < items[i].n_tokens; j++)
			put_content(w, q, q->len + j, items[i].content[j]);
		for (uint32_t layer = 0; layer < w->model.n_layers; layer++)
			visible[i][layer] = calloc(len, sizeof(bool));
		sure[i] = items[i].prompt || see(w, q, len, visible[i], &attended[i]);
		w->skipped += !sure[i];
	}
	r = place_rows_new(&w->model, total);
	attend_all(w, items, n, &r, abort_at, visible, sure);
	place_rows_free(&r);
	if (abort_at >= 0) {
		skv_step_abort(w->session);
		e = -ECANCELED;
		goto out;
	}
	e = skv_step_end(w->session, place_ids(placed, next, n));
	ck_assert_msg(e == 0, "step_end: %d %s", e, skv_last_error());
	for (uint32_t i = 0; i < n; i++)
		items[i].seq->len += items[i].n_tokens;
	if (w->measures)
		check_recall(w, &before, items, n, visible, sure);
	for (uint32_t i = 0; i < n; i++) {
		struct world_seq *q = items[i].seq;
		uint64_t a, c;

		if (!items[i].prompt) {
			evict(w, q, q->len);
			q->attended += attended[i];
			q->causal += (uint64_t)q->len * w->model.n_layers;
		}
		skv_seq_attended(q->seq, &a, &c);
		ck_assert_uint_eq(c, q->causal);
		ck_assert_msg(a == q->attended || !sure[i], "attended %llu, expected %llu",
		              (unsigned long long)a, (unsigned long long)q->attended);
		q->attended = a;
	}
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
	place_put(placed); /* after all that reads it */
	return e;
}

void world_feed(struct world *w, struct world_seq *q, uint64_t key, uint32_t n, bool prompt)
{
	uint64_t *content = calloc(n, sizeof(*content));
	int e;

	for (uint32_t i = 0; i < n; i++)
		content[i] = world_content(key, q->len + i);
	e = world_step(w, &(struct world_item){q, n, prompt, content}, 1, -1);
	ck_assert_msg(e == 0, "step: %d %s", e, skv_last_error());
	free(content);
}

/* Rows of these content numbers, which the items take in turns. */
static int run(struct world *w, const struct skv_step_item *items, uint32_t n_items, const uint64_t *content,
               uint32_t n, float *out, void (*before_end)(void))
{
	struct place_rows r = place_rows_new(&w->model, n);
	size_t size = (size_t)n * w->model.n_heads * w->model.head_dim;
	int32_t *next = calloc(n_items, sizeof(*next)), *placed = place_get(n_items * sizeof(*next));
	int e = skv_step_begin(w->session, items, n_items, place_stream());

	for (uint32_t layer = 0; layer < w->model.n_layers && e == 0; layer++) {
		for (uint32_t i = 0; i < n; i++)
			rows_fill(&w->model, &r, i, content[i], layer);
		e = place_attend(w->session, layer, &r, false);
		if (e == 0 && out)
			memcpy(out + layer * size, r.out, size * sizeof(float));
	}
	for (uint32_t i = 0, at = 0; i < n_items; i++) {
		at += items[i].n_tokens;
		next[i] = world_token(content[at - 1] + 1);
	}
	if (e == 0 && before_end)
		before_end();
	if (e == 0)
		e = skv_step_end(w->session, place_ids(placed, next, n_items));
	free(next);
	place_put(placed);
	place_rows_free(&r);
	return e;
}

int world_decode(struct world *w, struct skv_seq *const *seqs, const uint64_t *content, uint32_t n, float *out)
{
	struct skv_step_item *items = calloc(n, sizeof(*items));
	int32_t *ids = calloc(n, sizeof(*ids));
	int e;

	for (uint32_t i = 0; i < n; i++) {
		ids[i] = world_token(content[i]);
		items[i] = (struct skv_step_item){.seq = seqs[i], .n_tokens = 1, .tokens = &ids[i]};
	}
	e = run(w, items, n, content, n, out, NULL);
	free(items);
	free(ids);
	return e;
}

int world_run(struct world *w, struct skv_seq *seq, const uint64_t *content, uint32_t n, bool prompt,
              float *out, void (*before_end)(void))
{
	struct skv_step_item item = {.seq = seq, .n_tokens = n, .flags = prompt ? SKV_STEP_PROMPT : 0};
	int32_t *ids = calloc(n, sizeof(*ids));
	int e;

	for (uint32_t i = 0; i < n; i++)
		ids[i] = world_token(content[i]);
	item.tokens = ids;
	e = run(w, &item, 1, content, n, out, before_end);
	free(ids);
	return e;
}
