/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/prefill/hip.c - makes HiP's lists of tiles: chunks of tokens, selected in stages by their representative
 * tokens.
 *
 * A work item is (sequence, tile, q head). The representative token of a chunk is found by bisection, so few keys are
 * read. The scores of these keys are computed one by one, directly from the pages.
 */
#include <math.h>
#include "kernels/host/prefill/prefill.h"
#include "kernels/host/prefill/tiles.h"
#include "kernels/host/runtime/simd.h"

static const uint32_t sizes[SKV_HIP_STAGES] = {64, 32, 8}; /* number of tokens of a chunk in each stage */

struct hip_params {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_sparse *sp;
	const struct skv_tile_lists *ret;
	const uint32_t *keep;
	const float *q;
	uint32_t *first; /* [seq + 1]: number of tiles before those of sequence i */
	struct per_thread space;
};

/* The buffers of one thread, each [max_len / 8 + 1]. */
struct buffers {
	uint32_t *chunk; /* candidate chunks, ascending */
	float *score;
	uint32_t *best, *workspace;
};

static size_t buffers_carve(struct carve *c, uint32_t max_len, struct buffers *r)
{
	const size_t bytes = (max_len / 8 + 1) * sizeof(uint32_t);

	if (c)
		*r = (struct buffers){carve(c, bytes), carve(c, bytes), carve(c, bytes), carve(c, bytes)};
	return 4 * carve_size(bytes);
}

INLINE float dot(uint32_t dtype, const float *q, const uint8_t *k, uint32_t dim)
{
	vf sum = {0};

	for (uint32_t d = 0; d < dim; d += VL)
		sum = v_fma(v_loadf(q + d), v_load(dtype, k + d * skv_dtype_bytes(dtype)), sum);
	return v_fold_runs(V_SUM, sum, VL)[0];
}

/*
 * Returns the score q·k of a token, -infinity if it is not resident. The softmax scale is left out, because it does not
 * change the order of scores.
 */
static float score_of(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t h, const float *q, uint32_t token)
{
	const skv_pte e = skv_layer_table(sh, s)[token / SKV_PAGE_TOKENS];

	if (!skv_pte_resident(e))
		return -INFINITY;
	const uint8_t *k = skv_key_row(sh, e, h, token);
	return BY_DTYPE(sh->dtype, dot, q, k, sh->head_dim) * skv_row_unit(sh, k);
}

/*
 * Returns the score of the chunk of n tokens that begins at `token`: the score of its representative token, found by
 * bisection. Of two halves, the one whose first token scores higher is halved again.
 */
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

static void hip_item(void *ctx, uint32_t item, int thread)
{
	const struct hip_params *g = ctx;
	const uint32_t head = item % g->sh->n_heads, h = head / (g->sh->n_heads / g->sh->n_kv_heads), tile = g->sp->tile;
	const uint32_t i = skv_range_of(g->first, g->batch->n, item / g->sh->n_heads), j = item / g->sh->n_heads - g->first[i];
	const struct skv_kseq *s = &g->batch->seq[i];
	const uint32_t x = (call_start(s) / tile + j) * tile, end = x > g->sp->window ? x - g->sp->window : 0;
	const float *q = query_of(g->sh, s, g->sp, g->q, skv_max(x, s->prompt_start), 0, head);
	const size_t list = list_of(g->ret, i, j, head);
	struct carve c = thread_begin(&g->space, thread);
	struct buffers r;
	uint32_t n = 0;

	buffers_carve(&c, g->batch->max_len, &r);
	for (uint32_t chunk = g->sp->sinks / sizes[0]; chunk < end / sizes[0]; chunk++)
		r.best[n++] = chunk;
	for (uint32_t stage = 0; stage < SKV_HIP_STAGES; stage++) {
		const uint32_t size = sizes[stage], parts = stage ? sizes[stage - 1] / size : 1;
		for (uint32_t k = 0; k < n * parts; k++) {
			r.chunk[k] = r.best[k / parts] * parts + k % parts;
			r.score[k] = chunk_score(g->sh, s, h, q, r.chunk[k] * size, size);
		}
		n = ISA(topk)(r.score, n * parts, g->keep[stage] / size, r.best, r.workspace);
		for (uint32_t k = 0; k < n; k++)
			r.best[k] = r.chunk[r.best[k]];
	}
	memcpy(g->ret->ids + list * g->ret->stride, r.best, n * sizeof *r.best);
	g->ret->count[list] = n;
}

size_t ISA(hip_bytes)(const struct skv_batch *bounds, int threads)
{
	struct buffers r;

	return carve_size((bounds->n + 1) * sizeof(uint32_t)) + (size_t)threads * buffers_carve(NULL, bounds->max_len,
			&r);
}

void ISA(hip_lists)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q, const struct skv_sparse *sp,
                      const uint32_t keep[SKV_HIP_STAGES], const struct skv_tile_lists *ret, const struct skv_workspace *work)
{
	struct hip_params g = {.sh = sh, .batch = batch, .sp = sp, .ret = ret, .keep = keep, .q = q};
	struct carve c = carve_begin(work);
	struct buffers r;

	g.first = carve(&c, (batch->n + 1) * sizeof *g.first);
	g.space = per_thread(&c, work->threads, buffers_carve(NULL, batch->max_len, &r));
	g.first[0] = 0;
	for (uint32_t i = 0; i < batch->n; i++)
		g.first[i + 1] = g.first[i] + tiles_of(&batch->seq[i], sp->tile);
	skv_run(work->threads, g.first[batch->n] * sh->n_heads, hip_item, &g);
}
