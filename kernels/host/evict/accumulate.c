/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/evict/accumulate.c - accumulated attention scores: sums of the weights that queries give a token.
 *
 * The weights of a decode step come from its attention. The weights of a prompt's rows are computed in this file, in
 * two passes over K: the first pass finds each row's log-sum-exp, the second computes the weights, for a block of
 * tokens and a kv head at a time. A token's weights are added in the order of the rows, whatever the number of threads
 * is.
 */
#include "kernels/host/evict/evict.h"
#include "kernels/host/evict/slot-meta.h"
#include "kernels/host/runtime/block.h"

/* ---- a decode step --------------------------------------------------------------------------- */

struct step_params {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_scores *scores;
};

static void step_item(void *ctx, uint32_t item, int thread)
{
	const struct step_params *c = ctx;
	const struct skv_kseq *s = &c->batch->seq[item / c->sh->n_kv_heads];
	const float *weight = c->scores->token + (size_t)item * c->scores->token_stride;
	const float group = (float)(c->sh->n_heads / c->sh->n_kv_heads);
	struct meta_iter now = meta_from(c->sh, s, item % c->sh->n_kv_heads, s->set, 0);
	(void)thread;

	for (uint32_t u = 0; s->accumulate != SKV_ACCUMULATE_NONE && u < s->len; u++) {
		struct skv_slot_meta *meta = meta_next(&now);
		meta->score = (s->accumulate == SKV_ACCUMULATE_ADD ? fabsf(meta->score) : 0) + weight[u] / group;
	}
}

void ISA(accumulate_scores)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_scores *scores,
                const struct skv_workspace *work)
{
	struct step_params c = {.sh = sh, .batch = batch, .scores = scores};

	skv_run(meta_threads(sh, batch, work), batch->n * sh->n_kv_heads, step_item, &c);
}

/* ---- a prompt -------------------------------------------------------------------------------- */

struct prompt_params {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const float *q;
	uint32_t window, group;
	uint32_t rows;   /* number of query rows of an item of the first pass */
	/*
	 * [seq + 1]: for one kv head, number of items before those of sequence i; an item is a block of rows (first
	 * pass) or of tokens (second pass)
	 */
	uint32_t *first;
	uint32_t *row;   /* [seq]: number of query rows of the batch before those of the sequence */
	float *lse;      /* [query row of the batch][n_heads]: log2 of the denominator of the row's softmax */
	struct per_thread space;
};

/* The buffers of one thread. */
struct buffers {
	float *q; /* [M_MAX][dim]: query rows, multiplied by the softmax scale */
	float *k; /* [dim][BLOCK]: K of a block, transposed */
	float *s; /* [STRIP][BLOCK]: scores */
	float *max, *sum; /* [M_MAX]: running maxima and sums of the query rows */
};

static size_t buffers_carve(struct carve *c, uint32_t dim, struct buffers *r)
{
	const size_t sizes[] = {M_MAX * dim, dim * BLOCK, STRIP * BLOCK, M_MAX, M_MAX};
	float **const at[] = {&r->q, &r->k, &r->s, &r->max, &r->sum};

	return carve_floats(c, sizeof sizes / sizeof *sizes, sizes, at);
}

static struct buffers buffers_of(const struct prompt_params *v, int thread)
{
	struct carve space = thread_begin(&v->space, thread);
	struct buffers r;

	buffers_carve(&space, v->sh->head_dim, &r);
	return r;
}

/* Returns the first query row of a sequence whose weights are accumulated. */
static uint32_t first_row(const struct prompt_params *v, const struct skv_kseq *s)
{
	return v->window && v->window < s->n_q ? s->n_q - v->window : 0;
}

/* Returns the log-sum-exp of a query row of sequence i, [n_heads]. */
static float *lse_of(const struct prompt_params *v, uint32_t i, uint32_t row)
{
	return v->lse + (size_t)(v->row[i] + row) * v->sh->n_heads;
}

/*
 * Loads n query rows of kv head h into to[n][dim], from number m0 on, where rows are numbered in the order [query row
 * from row0 on][head of the group]; fills to[] with zeros up to a whole strip.
 */
static void load_rows(const struct prompt_params *v, const struct skv_kseq *s, uint32_t h, uint32_t row0, uint32_t m0,
                      uint32_t n, float *to)
{
	const uint32_t dim = v->sh->head_dim, padded = (n + STRIP - 1) / STRIP * STRIP;
	const float scale = v->sh->scale * LOG2E;

	for (uint32_t x = 0; x < n; x++) {
		const uint32_t row = s->row + row0 + (m0 + x) / v->group, head = h * v->group + (m0 + x) % v->group;
		const float *q = v->q + ((size_t)row * v->sh->n_heads + head) * dim;
		for (uint32_t d = 0; d < dim; d += VL)
			v_storef(to + x * dim + d, v_loadf(q + d) * scale);
	}
	memset(to + n * dim, 0, (size_t)(padded - n) * dim * sizeof *to);
}

/*
 * Scores the rows of a strip against the block of tokens that begins at t0. Row x of the strip has number m0 + x,
 * counted from query row row0; rows after the n-th, which are padding, are masked like the n-th. Returns false if no
 * row attends to any token of the block.
 */
static bool score_strip(const struct prompt_params *v, const struct skv_kseq *s, const struct buffers *r, const float *q,
                        uint32_t row0, uint32_t m0, uint32_t n, uint32_t t0, uint32_t resident)
{
	const uint32_t dim = v->sh->head_dim, pos0 = s->len - s->n_q + row0;
	uint32_t visible[VL];

	for (uint32_t x = 0; x < STRIP; x++) {
		const uint32_t end = pos0 + (m0 + skv_min(x, n - 1)) / v->group + 1;
		visible[x] = end <= t0 ? 0 : skv_min(end - t0, BLOCK);
	}
	if (visible[n - 1] == 0)
		return false;
	product(q, dim, r->k, BLOCK, r->s, BLOCK, STRIP, BLOCK, dim, false);
	cap_strip(v->sh, r->s);
	if (visible[0] < BLOCK || resident != (1u << BLOCK_PAGES) - 1)
		mask_strip(r->s, visible, resident);
	return true;
}

static void lse_item(void *ctx, uint32_t item, int thread)
{
	const struct prompt_params *v = ctx;
	const uint32_t h = item % v->sh->n_kv_heads, block = item / v->sh->n_kv_heads;
	const uint32_t i = skv_range_of(v->first, v->batch->n, block);
	const struct skv_kseq *s = &v->batch->seq[i];
	const uint32_t row0 = first_row(v, s) + (block - v->first[i]) * v->rows;
	const uint32_t rows = skv_min(v->rows, s->n_q - row0);
	const uint32_t m = rows * v->group, dim = v->sh->head_dim, end = s->len - s->n_q + row0 + rows;
	const struct buffers r = buffers_of(v, thread);

	load_rows(v, s, h, row0, 0, m, r.q);
	for (uint32_t x = 0; x < M_MAX; x++) {
		r.max[x] = -INFINITY;
		r.sum[x] = 0;
	}
	for (uint32_t t0 = 0; t0 < end; t0 += BLOCK) {
		const uint32_t resident = widen_block(v->sh, s, h, t0, r.k, NULL);
		for (uint32_t m0 = 0; m0 < m; m0 += STRIP)
			if (score_strip(v, s, &r, r.q + m0 * dim, row0, m0, skv_min(STRIP, m - m0), t0, resident))
				add_strip(r.s, r.max + m0, r.sum + m0);
	}
	for (uint32_t x = 0; x < m; x++) {
		const uint32_t head = h * v->group + x % v->group;
		float *lse = lse_of(v, i, row0 + x / v->group) + head;
		*lse = r.sum[x] > 0 ? r.max[x] + log2f(r.sum[x] + sink_term(v->sh, head, r.max[x])) : 0;
	}
}

/* Adds the softmax weights of n rows of a strip to the sums of the block's tokens. */
static void add_weights(const struct prompt_params *v, uint32_t i, uint32_t h, uint32_t row0, uint32_t m0, uint32_t n,
                      const float *score, float sum[BLOCK])
{
	for (uint32_t x = 0; x < n; x++) {
		const float lse = lse_of(v, i, row0 + (m0 + x) / v->group)[h * v->group + (m0 + x) % v->group];
		for (uint32_t t = 0; t < BLOCK; t += VL)
			v_storef(sum + t, v_loadf(sum + t) + v_exp2(v_loadf(score + x * BLOCK + t) - lse));
	}
}

static void prompt_item(void *ctx, uint32_t item, int thread)
{
	const struct prompt_params *v = ctx;
	const uint32_t h = item % v->sh->n_kv_heads, block = item / v->sh->n_kv_heads;
	const uint32_t i = skv_range_of(v->first, v->batch->n, block);
	const struct skv_kseq *s = &v->batch->seq[i];
	const uint32_t t0 = (block - v->first[i]) * BLOCK, row0 = first_row(v, s), m = (s->n_q - row0) * v->group;
	const bool reset = v->window && s->n_q >= v->window;
	const struct buffers r = buffers_of(v, thread);
	const uint32_t resident = widen_block(v->sh, s, h, t0, r.k, NULL);
	struct meta_iter now = meta_from(v->sh, s, h, s->set, t0);
	float sum[BLOCK] = {0};

	for (uint32_t m0 = 0; m0 < m; m0 += STRIP) {
		const uint32_t n = skv_min(STRIP, m - m0);
		load_rows(v, s, h, row0, m0, n, r.q);
		if (score_strip(v, s, &r, r.q, row0, m0, n, t0, resident))
			add_weights(v, i, h, row0, m0, n, r.s, sum);
	}
	for (uint32_t t = 0; t < skv_min(BLOCK, s->len - t0); t++) {
		struct skv_slot_meta *meta = meta_next(&now);
		meta->score = (reset ? 0 : fabsf(meta->score)) + sum[t] / (float)v->group;
	}
}

size_t ISA(accumulate_bytes)(const struct skv_shape *sh, uint32_t n_seqs, uint32_t n_rows, int threads)
{
	struct buffers r;

	return 2 * carve_size((n_seqs + 1) * sizeof(uint32_t)) + carve_size((size_t)n_rows * sh->n_heads * sizeof(float)) +
	       (size_t)threads * buffers_carve(NULL, sh->head_dim, &r);
}

void ISA(accumulate_prompt)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q, uint32_t window,
                       const struct skv_workspace *work)
{
	const uint32_t n = batch->n;
	struct carve c = carve_begin(work);
	struct buffers r;
	struct prompt_params v = {.sh = sh, .batch = batch, .q = q, .window = window,
	                          .group = sh->n_heads / sh->n_kv_heads};
	uint32_t rows = 0;

	v.rows = skv_max(1, M_MAX / v.group);
	v.first = carve(&c, (n + 1) * sizeof *v.first);
	v.row = carve(&c, n * sizeof *v.row);
	v.first[0] = 0;
	for (uint32_t i = 0; i < n; i++) {
		const struct skv_kseq *s = &batch->seq[i];
		v.first[i + 1] = v.first[i] + (s->n_q - first_row(&v, s) + v.rows - 1) / v.rows;
		v.row[i] = rows;
		rows += s->n_q;
	}
	v.lse = carve(&c, (size_t)rows * sh->n_heads * sizeof *v.lse);
	v.space = per_thread(&c, work->threads, buffers_carve(NULL, sh->head_dim, &r));
	skv_run(work->threads, v.first[n] * sh->n_kv_heads, lse_item, &v);
	for (uint32_t i = 0; i < n; i++)
		v.first[i + 1] = v.first[i] + (batch->seq[i].len + BLOCK - 1) / BLOCK;
	skv_run(work->threads, v.first[n] * sh->n_kv_heads, prompt_item, &v);
}
