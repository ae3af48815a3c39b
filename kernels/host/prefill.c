/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/prefill.c - causal attention of many query rows.
 *
 * An item is (sequence, block of query rows, kv head). Its query rows times the heads of the group
 * are M rows against the same K and V. Tokens are taken in blocks of BLOCK, aligned to token 0:
 * a block is widened to fp32 once, K transposed, and then both S = Q Kᵀ and O += P V are plain
 * matrix products with a register tile of 4 rows.
 *
 * A row's result depends on that row and the tokens it sees, on nothing else: its blocks are the
 * same and come in the same order however rows are cut into calls, items and strips, and every
 * product is summed in the order of d, then of tokens. Tokens that a row must not see take no part
 * at all (not even as 0 * v), so a NaN further on in the sequence does not reach back.
 * Holes are zeros in K and V with a score of -inf.
 */
#include "kernels/host/block.h"
#include <math.h>

#define M_MAX 256u /* rows of an item: query rows times group */

struct prefill {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const float *q;
	float *out;
	uint32_t group;
	uint32_t rows;   /* query rows of an item */
	uint32_t *first; /* row blocks before sequence i */
	uint8_t *scratch;
	size_t scratch_stride;
};

/* A thread's buffers, all fp32. */
struct buffers {
	float *q;   /* [M][dim], times the softmax scale */
	float *acc; /* [M][dim] */
	float *k;   /* [dim][BLOCK]: K transposed */
	float *v;   /* [BLOCK][dim] */
	float *s;   /* [STRIP][BLOCK] */
	float *max, *sum; /* [M] */
};

/* ---- a block of tokens ----------------------------------------------------------------------- */

/* One step of the running softmax for STRIP rows of scores; their sums, maxima and acc are brought along. */
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

/* Rows [m0, m0 + STRIP) of the item against the block in b->k, b->v. Row m0 + i sees visible[i] of it. */
static void attend_strip(const struct buffers *b, uint32_t m0, uint32_t rows, uint32_t dim,
                         const uint32_t *visible, uint32_t resident)
{
	float *acc = b->acc + (size_t)m0 * dim;
	product(b->q + (size_t)m0 * dim, dim, b->k, BLOCK, b->s, BLOCK, STRIP, BLOCK, dim, false);
	if (visible[0] < BLOCK || resident != (1u << BLOCK_PAGES) - 1)
		mask_strip(b->s, visible, resident);
	softmax_strip(b->s, b->max + m0, b->sum + m0, acc, dim);
	/* Rows of one token see the same; rows ascend, so if the first sees the whole block, all do. */
	for (uint32_t i = 0, same; i < rows; i += same) {
		for (same = 1; i + same < rows && visible[i + same] == visible[i];)
			same++;
		product(b->s + i * BLOCK, BLOCK, b->v, dim, acc + i * dim, dim, same, dim, visible[i], true);
	}
}

/* ---- an item --------------------------------------------------------------------------------- */

static size_t buffers_carve(struct carve *c, uint32_t dim, struct buffers *b)
{
	const size_t sizes[] = {M_MAX * dim,   M_MAX * dim, dim * BLOCK, dim * BLOCK,
	                        STRIP * BLOCK, M_MAX,       M_MAX};
	float **at[] = {&b->q, &b->acc, &b->k, &b->v, &b->s, &b->max, &b->sum};
	size_t total = 0;
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		total += carve_size(sizes[i] * sizeof(float));
		if (c)
			*at[i] = carve(c, sizes[i] * sizeof(float));
	}
	return total;
}

static void item_begin(const struct buffers *b, const struct prefill *p, const float *q, uint32_t rows)
{
	const uint32_t dim = p->sh->head_dim, width = p->group * dim;
	const uint32_t padded = (rows * p->group + STRIP - 1) / STRIP * STRIP;
	const float scale = p->sh->scale * 1.44269504088896340736f;
	for (uint32_t r = 0; r < rows; r++, q += p->sh->n_heads * dim)
		for (uint32_t d = 0; d < width; d += VL)
			v_storef(b->q + r * width + d, v_loadf(q + d) * scale);
	memset(b->q + rows * width, 0, (padded * dim - rows * width) * sizeof *b->q);
	memset(b->acc, 0, padded * dim * sizeof *b->acc);
	memset(b->sum, 0, padded * sizeof *b->sum);
	for (uint32_t m = 0; m < padded; m++)
		b->max[m] = -INFINITY;
}

static void item_end(const struct buffers *b, const struct prefill *p, float *out, uint32_t rows)
{
	const uint32_t dim = p->sh->head_dim;
	for (uint32_t m = 0; m < rows * p->group; m++) {
		float *to = out + (size_t)(m / p->group) * p->sh->n_heads * dim + m % p->group * dim;
		for (uint32_t d = 0; d < dim; d += VL)
			v_storef(to + d,
			         b->sum[m] == 0 ? (vf){0} : v_loadf(b->acc + m * dim + d) / b->sum[m]);
	}
}

static void prefill_item(void *ctx, uint32_t item, int thread)
{
	const struct prefill *p = ctx;
	const struct skv_shape *sh = p->sh;
	uint32_t blocks = item / sh->n_kv_heads, h = item % sh->n_kv_heads;
	uint32_t i = skv_owner(p->first, p->batch->n, blocks);
	const struct skv_kseq *s = &p->batch->seq[i];
	/* A sequence's last rows cost most: they come first. */
	uint32_t row0 = (p->first[i + 1] - 1 - blocks) * p->rows, rows = skv_min(p->rows, s->n_q - row0);
	uint32_t pos0 = s->len - s->n_q + row0, m = rows * p->group;
	size_t at = ((size_t)(s->row + row0) * sh->n_heads + h * p->group) * sh->head_dim;
	struct buffers b;
	uint8_t *scratch = p->scratch + thread * p->scratch_stride;
	struct carve c = {scratch, scratch + p->scratch_stride};

	buffers_carve(&c, sh->head_dim, &b);
	item_begin(&b, p, p->q + at, rows);
	for (uint32_t t0 = 0; t0 < pos0 + rows; t0 += BLOCK) {
		uint32_t resident = widen_block(sh, s, h, t0, b.k, b.v);
		if (!resident)
			continue;
		for (uint32_t m0 = 0; m0 < m; m0 += STRIP) {
			uint32_t visible[VL], n = skv_min(STRIP, m - m0);
			for (uint32_t x = 0; x < n; x++) {
				uint32_t end = pos0 + (m0 + x) / p->group + 1;
				visible[x] = end <= t0 ? 0 : skv_min(end - t0, BLOCK);
			}
			for (uint32_t x = n; x < STRIP; x++)
				visible[x] = visible[n - 1];
			if (visible[n - 1])
				attend_strip(&b, m0, n, sh->head_dim, visible, resident);
		}
	}
	item_end(&b, p, p->out + at, rows);
}

size_t ISA(prefill_bytes)(const struct skv_shape *sh, uint32_t n, int threads)
{
	struct buffers b;
	return carve_size((n + 1) * sizeof(uint32_t)) +
	       (size_t)threads * buffers_carve(NULL, sh->head_dim, &b);
}

void ISA(prefill_dense)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q, void *out,
                        const struct skv_work *work)
{
	const uint32_t n = batch->n;
	struct carve c = carve_begin(work);
	struct buffers b;
	struct prefill p = {.sh = sh, .batch = batch, .q = q, .out = out};
	p.group = sh->n_heads / sh->n_kv_heads;
	p.first = carve(&c, (n + 1) * sizeof *p.first);
	p.scratch_stride = buffers_carve(NULL, sh->head_dim, &b);
	p.scratch = carve(&c, (size_t)work->threads * p.scratch_stride);

	/* Large items widen K and V less often; small ones keep all threads busy. */
	p.first[0] = 0;
	for (p.rows = skv_max(1, M_MAX / p.group);; p.rows /= 2) {
		for (uint32_t i = 0; i < n; i++)
			p.first[i + 1] = p.first[i] + (batch->seq[i].n_q + p.rows - 1) / p.rows;
		if (p.rows * p.group <= 64 || p.rows == 1 ||
		    p.first[n] * sh->n_kv_heads >= (work->threads > 1 ? 4 * (uint32_t)work->threads : 1))
			break;
	}
	skv_run(work->threads, p.first[n] * sh->n_kv_heads, prefill_item, &p);
}
