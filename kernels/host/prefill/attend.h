/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/prefill/attend.h - attention of many query rows to blocks of tokens, for prefill.c and sparse.c.
 *
 * The query rows of an item, one for each token and q head of a kv head's group, are up to M_MAX rows that attend to
 * the same K and V. Tokens are processed in blocks of BLOCK: a block is converted to fp32 once, with K transposed; then
 * both S = Q Kᵀ and O += P V are plain matrix products with a register tile of 4 rows.
 *
 * A row's output depends only on that row and on the tokens to which it attends. A row attends to the same blocks in
 * the same order, however rows are split into calls, items and strips. A block without tokens to which a row attends
 * changes no bit of the row's output. Products are summed in the order of d, outputs in the order of tokens. Tokens to
 * which a row must not attend do not enter the row's sums at all (not even as 0 * v), so a NaN in a later token does
 * not affect earlier rows. Tokens of holes are zeros in K and V with a score of -infinity.
 */
#ifndef SKV_HOST_ATTEND_H
#define SKV_HOST_ATTEND_H

#include "kernels/host/runtime/block.h"

/*
 * Query rows of a sequence that attend together. In the buffers, rows are numbered in the order [query row][q head].
 * Query row x is that of token pos[x]. Of the tokens up to pos[x], the row attends to those below `sinks` and those
 * from from[x] on.
 */
struct rows {
	const struct skv_shape *sh;
	const struct skv_kseq *s;
	uint32_t h;           /* the kv head */
	uint32_t head, heads; /* the rows are those of q heads [head, head + heads) of the kv head's group */
	uint32_t n, sinks;
	uint32_t pos[M_MAX];  /* [n]: positions of the query rows, ascending */
	uint32_t from[M_MAX];
};

/* The buffers of one thread, all fp32. */
struct buffers {
	float *q;   /* [M_MAX][dim]: query rows, multiplied by the softmax scale */
	float *acc; /* [M_MAX][dim]: sums of weights times V rows */
	float *k;   /* [dim][BLOCK]: K of a block, transposed */
	float *v;   /* [BLOCK][dim]: V of a block */
	float *s;   /* [STRIP][BLOCK]: scores, then weights */
	float *max, *sum; /* [M_MAX]: running maxima and sums of the softmax */
};

static size_t buffers_carve(struct carve *c, uint32_t dim, struct buffers *b)
{
	const size_t sizes[] = {M_MAX * dim,   M_MAX * dim, dim * BLOCK, dim * BLOCK,
	                        STRIP * BLOCK, M_MAX,       M_MAX};
	float **const at[] = {&b->q, &b->acc, &b->k, &b->v, &b->s, &b->max, &b->sum};

	return carve_floats(c, sizeof sizes / sizeof *sizes, sizes, at);
}

/* ---- a block of tokens ----------------------------------------------------------------------- */

/* The tokens of a block to which a row attends: [0, sinks) and [from, end), with sinks <= from <= end. */
struct span {
	uint32_t sinks, from, end;
};

static struct span span_of(const struct rows *r, uint32_t x, uint32_t t0)
{
	struct span see = {0};

	see.end = r->pos[x] < t0 ? 0 : skv_min(r->pos[x] + 1 - t0, BLOCK);
	see.sinks = r->sinks <= t0 ? 0 : skv_min(r->sinks - t0, see.end);
	see.from = r->from[x] <= t0 ? 0 : skv_min(r->from[x] - t0, see.end);
	if (see.sinks >= see.from) /* there is no gap between the two ranges */
		see.sinks = see.from = 0;
	return see;
}

/*
 * Sets scores of a strip to -infinity where row i must not attend: to tokens outside of its span, and to tokens in
 * pages that are not resident.
 */
static void mask_spans(float *s, const struct span see[STRIP], uint32_t resident)
{
	for (uint32_t i = 0; i < STRIP; i++)
		for (uint32_t t = 0; t < BLOCK; t++)
			if (t >= see[i].end || (t >= see[i].sinks && t < see[i].from) ||
			    !(resident >> t / SKV_PAGE_TOKENS & 1))
				s[i * BLOCK + t] = -INFINITY;
}

/*
 * One step of the online softmax for STRIP rows: turns their scores of a block into weights, and updates their maxima,
 * sums and acc.
 */
static void softmax_strip(float *s, float *max_at, float *sum_at, float *acc, uint32_t dim)
{
	vf r[VL], old = v_loadf(max_at), max, sum;
	for (uint32_t i = 0; i < STRIP; i++) {
		r[i] = v_loadf(s + i * BLOCK);
		for (uint32_t t = VL; t < BLOCK; t += VL)
			r[i] = v_max(v_loadf(s + i * BLOCK + t), r[i]);
	}
	max = v_max(v_fold_rows(V_MAX, r), old);
	v_storef(max_at, max);

	float base[VL], fix[VL];
	vf no_token = v_set(-INFINITY);
	vf finite = v_select(max == no_token, (vf){0}, max);
	vf shrink = v_exp2(old - finite);
	v_storef(base, finite);
	v_storef(fix, shrink);
	for (uint32_t i = 0; i < STRIP; i++) {
		r[i] = (vf){0};
		for (uint32_t t = 0; t < BLOCK; t += VL) {
			vf w = v_exp2(v_loadf(s + i * BLOCK + t) - base[i]);
			v_storef(s + i * BLOCK + t, w);
			r[i] += w;
		}
		if (fix[i] != 1)
			for (uint32_t d = 0; d < dim; d += VL)
				v_storef(acc + i * dim + d, v_loadf(acc + i * dim + d) * fix[i]);
	}
	sum = v_loadf(sum_at);
	v_storef(sum_at, v_fma(sum, shrink, v_fold_rows(V_SUM, r)));
}

/*
 * Rows [m0, m0 + n) of the buffers attend to the block whose K and V are in b->k and b->v. The elements from n on of
 * see[] must repeat the span of the last row.
 */
static void attend_strip(const struct skv_shape *sh, const struct buffers *b, uint32_t m0, uint32_t n,
                         const struct span see[STRIP], uint32_t resident)
{
	const uint32_t dim = sh->head_dim;
	float *acc = b->acc + (size_t)m0 * dim;
	bool whole = resident == (1u << BLOCK_PAGES) - 1;

	product(b->q + (size_t)m0 * dim, dim, b->k, BLOCK, b->s, BLOCK, STRIP, BLOCK, dim, false);
	cap_strip(sh, b->s);
	for (uint32_t i = 0; i < n; i++)
		whole = whole && see[i].from == 0 && see[i].end == BLOCK;
	if (!whole)
		mask_spans(b->s, see, resident);
	softmax_strip(b->s, b->max + m0, b->sum + m0, acc, dim);
	/* The rows of one token, which differ in q heads, have the same span. */
	for (uint32_t i = 0, same; i < n; i += same) {
		const struct span at = see[i];
		for (same = 1; i + same < n && !memcmp(&see[i + same], &at, sizeof at);)
			same++;
		if (at.sinks)
			product(b->s + i * BLOCK, BLOCK, b->v, dim, acc + i * dim, dim, same, dim, at.sinks, true);
		product(b->s + i * BLOCK + at.from, BLOCK, b->v + at.from * dim, dim, acc + i * dim, dim, same, dim,
		        at.end - at.from, true);
	}
}

/* All rows attend to the blocks of tokens from t0, a block's beginning, up to `end`. */
static void attend_blocks(const struct rows *r, const struct buffers *b, uint32_t t0, uint32_t end)
{
	const uint32_t m = r->n * r->heads;

	for (; t0 < end; t0 += BLOCK) {
		const uint32_t resident = widen_block(r->sh, r->s, r->h, t0, b->k, b->v);
		for (uint32_t m0 = 0; resident && m0 < m; m0 += STRIP) {
			struct span see[VL];
			uint32_t seen = 0;
			for (uint32_t i = 0; i < STRIP; i++) {
				see[i] = span_of(r, skv_min(m0 + i, m - 1) / r->heads, t0);
				seen |= see[i].sinks | (see[i].end - see[i].from);
			}
			if (seen)
				attend_strip(r->sh, b, m0, skv_min(STRIP, m - m0), see, resident);
		}
	}
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Returns the offset of query row x, from its first q head on, in q and out. */
static size_t row_at(const struct rows *r, uint32_t x)
{
	const uint32_t row = r->s->row + r->pos[x] - (r->s->len - r->s->n_q);

	return ((size_t)row * r->sh->n_heads + r->head) * r->sh->head_dim;
}

static void rows_begin(const struct rows *r, const struct buffers *b, const float *q)
{
	const uint32_t dim = r->sh->head_dim, width = r->heads * dim;
	const uint32_t padded = (r->n * r->heads + STRIP - 1) / STRIP * STRIP;
	const float scale = r->sh->scale * LOG2E;

	for (uint32_t x = 0; x < r->n; x++)
		for (uint32_t d = 0; d < width; d += VL)
			v_storef(b->q + x * width + d, v_loadf(q + row_at(r, x) + d) * scale);
	memset(b->q + r->n * width, 0, (padded * dim - r->n * width) * sizeof *b->q);
	memset(b->acc, 0, padded * dim * sizeof *b->acc);
	memset(b->sum, 0, padded * sizeof *b->sum);
	for (uint32_t m = 0; m < padded; m++)
		b->max[m] = -INFINITY;
}

/*
 * Called when the rows have attended to all of their tokens: stores the rows' log-sum-exp in `lse`, unless that is
 * NULL, then adds the terms of sinks to the sums.
 */
static void rows_end(const struct rows *r, const struct buffers *b, float *lse)
{
	for (uint32_t m = 0; m < r->n * r->heads; m++) {
		const uint32_t head = m % r->heads;

		if (lse)
			lse[row_at(r, m / r->heads) / r->sh->head_dim + head] =
			        b->sum[m] == 0 ? -INFINITY : (b->max[m] + log2f(b->sum[m])) * LN2;
		if (b->sum[m] != 0)
			b->sum[m] += sink_term(r->sh, r->head + head, b->max[m]);
	}
}

/* Returns elements [d, d + VL) of the output of row m of the buffers; zeros if the row attended to no token. */
INLINE vf attended(const struct buffers *b, uint32_t m, uint32_t dim, uint32_t d)
{
	return b->sum[m] == 0 ? (vf){0} : v_loadf(b->acc + m * dim + d) / b->sum[m];
}

/*
 * Divides the query rows of n sequences, which have n_rows[n] rows, into work items. first[i] gets the number of items
 * before those of sequence i, for one kv head; first[n] is their total. Returns the number of query rows of an item:
 * large items convert K and V less often, small ones keep all threads busy.
 */
static uint32_t divide_rows(const struct skv_shape *sh, const uint32_t *n_rows, uint32_t n, int threads,
                            uint32_t *first)
{
	const uint32_t group = sh->n_heads / sh->n_kv_heads;
	uint32_t rows = skv_max(1, M_MAX / group);

	for (first[0] = 0;; rows /= 2) {
		for (uint32_t i = 0; i < n; i++)
			first[i + 1] = first[i] + (n_rows[i] + rows - 1) / rows;
		if (rows * group <= 64 || rows == 1 ||
		    first[n] * sh->n_kv_heads >= (threads > 1 ? 4 * (uint32_t)threads : 1))
			return rows;
	}
}
#endif
