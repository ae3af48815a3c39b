/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/prefill/hip.c - HiP's lists of tiles: chunks of tokens, chosen in stages by what represents them.
 *
 * An item is (sequence, tile, q head). A chunk's representative comes from halving it, so few keys are read: their scores
 * are made one by one, where the pages are.
 */
#include <math.h>
#include "kernels/host/runtime/simd.h"
#include "kernels/host/prefill/tiles.h"

static const uint32_t sizes[SKV_HIP_STAGES] = {64, 32, 8}; /* tokens of a chunk */

struct stages {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_sparse *sp;
	const struct skv_tiles *ret;
	const uint32_t *keep;
	const float *q;
	uint32_t *first; /* [seq + 1]: tiles before sequence i's */
	uint8_t *scratch;
	size_t scratch_stride;
};

/* A thread's own, each [max_len / 8 + 1]. */
struct room {
	uint32_t *chunk; /* candidates, ascending */
	float *score;
	uint32_t *best, *scratch;
};

static size_t room_carve(struct carve *c, uint32_t max_len, struct room *r)
{
	const size_t bytes = (max_len / 8 + 1) * sizeof(uint32_t);

	if (c)
		*r = (struct room){carve(c, bytes), carve(c, bytes), carve(c, bytes), carve(c, bytes)};
	return 4 * carve_size(bytes);
}

INLINE float dot(uint32_t dtype, const float *q, const uint8_t *k, uint32_t dim)
{
	vf sum = {0};

	for (uint32_t d = 0; d < dim; d += VL)
		sum = v_fma(v_loadf(q + d), v_load(dtype, k + d * skv_dtype_bytes(dtype)), sum);
	return v_fold_runs(V_SUM, sum, VL)[0];
}

/* Without the softmax scale, which changes no order. */
static float score_of(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t h, const float *q, uint32_t token)
{
	const skv_pte e = skv_layer_table(sh, s)[token / SKV_PAGE_TOKENS];

	if (!skv_pte_resident(e))
		return -INFINITY;
	const uint8_t *k = skv_key_row(sh, e, h, token);
	return sh->dtype == SKV_F32   ? dot(SKV_F32, q, k, sh->head_dim)
	       : sh->dtype == SKV_F16 ? dot(SKV_F16, q, k, sh->head_dim)
	                              : dot(SKV_BF16, q, k, sh->head_dim);
}

/* The score of the chunk of n tokens from `token` on: `token` represents what is left of it, or does a half's first. */
static float chunk_score(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t h, const float *q, uint32_t token,
                         uint32_t n)
{
	float best = score_of(sh, s, h, q, token);

	while (n > 1) {
		const float other = score_of(sh, s, h, q, token + (n /= 2));
		if (other > best) {
			best = other;
			token += n;
		}
	}
	return best;
}

static void stages_item(void *ctx, uint32_t item, int thread)
{
	const struct stages *g = ctx;
	const uint32_t head = item % g->sh->n_heads, h = head / (g->sh->n_heads / g->sh->n_kv_heads), tile = g->sp->tile;
	const uint32_t i = skv_owner(g->first, g->batch->n, item / g->sh->n_heads), j = item / g->sh->n_heads - g->first[i];
	const struct skv_kseq *s = &g->batch->seq[i];
	const uint32_t x = (call_start(s) / tile + j) * tile, end = x > g->sp->window ? x - g->sp->window : 0;
	const float *q = query_of(g->sh, s, g->sp, g->q, skv_max(x, s->prompt), 0, head);
	const size_t list = list_of(g->ret, i, j, head);
	uint8_t *scratch = g->scratch + thread * g->scratch_stride;
	struct carve c = {scratch, scratch + g->scratch_stride};
	struct room r;
	uint32_t n = 0;

	room_carve(&c, g->batch->max_len, &r);
	for (uint32_t chunk = g->sp->sinks / sizes[0]; chunk < end / sizes[0]; chunk++)
		r.best[n++] = chunk;
	for (uint32_t stage = 0; stage < SKV_HIP_STAGES; stage++) {
		const uint32_t size = sizes[stage], parts = stage ? sizes[stage - 1] / size : 1;
		for (uint32_t k = 0; k < n * parts; k++) {
			r.chunk[k] = r.best[k / parts] * parts + k % parts;
			r.score[k] = chunk_score(g->sh, s, h, q, r.chunk[k] * size, size);
		}
		n = ISA(topk)(r.score, n * parts, g->keep[stage] / size, r.best, r.scratch);
		for (uint32_t k = 0; k < n; k++)
			r.best[k] = r.chunk[r.best[k]];
	}
	memcpy(g->ret->ids + list * g->ret->stride, r.best, n * sizeof *r.best);
	g->ret->count[list] = n;
}

size_t ISA(stages_bytes)(const struct skv_batch *bounds, int threads)
{
	struct room r;

	return carve_size((bounds->n + 1) * sizeof(uint32_t)) + (size_t)threads * room_carve(NULL, bounds->max_len, &r);
}

void ISA(tile_stages)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q, const struct skv_sparse *sp,
                      const uint32_t keep[SKV_HIP_STAGES], const struct skv_tiles *ret, const struct skv_work *work)
{
	struct stages g = {.sh = sh, .batch = batch, .sp = sp, .ret = ret, .keep = keep, .q = q};
	struct carve c = carve_begin(work);
	struct room r;

	g.first = carve(&c, (batch->n + 1) * sizeof *g.first);
	g.scratch_stride = room_carve(NULL, batch->max_len, &r);
	g.scratch = carve(&c, (size_t)work->threads * g.scratch_stride);
	g.first[0] = 0;
	for (uint32_t i = 0; i < batch->n; i++)
		g.first[i + 1] = g.first[i] + tiles_of(&batch->seq[i], sp->tile);
	skv_run(work->threads, g.first[batch->n] * sh->n_heads, stages_item, &g);
}
