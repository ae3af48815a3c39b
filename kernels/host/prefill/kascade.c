/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/prefill/kascade.c - makes Kascade's lists of tiles: the tokens to which a tile's representative row
 * gives the most weight.
 *
 * A work item is (sequence, BAND consecutive tiles, kv head), so that a block of K is converted to fp32 once for all of
 * these tiles.
 */
#include "kernels/host/prefill/prefill.h"
#include "kernels/host/prefill/tiles.h"
#include "kernels/host/prefill/weights.h"

#define BAND 8u /* tiles of a band; a thread's buffer is BAND * max_len floats */

struct kascade_params {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_sparse *sp;
	const struct skv_tile_lists *ret;
	const float *q;
	struct skv_budget top;
	uint32_t floor, group, band;
	uint32_t *first; /* [seq + 1]: number of bands (groups of tiles) before those of sequence i */
	struct per_thread space;
};

/* The buffers of one thread. */
struct buffers {
	struct weigh w;
	float *weight; /* [BAND][max_len]: weights of tokens, summed over the GQA group */
	uint32_t *ids; /* [max_len]: workspace of topk() */
};

static size_t buffers_carve(struct carve *c, uint32_t dim, uint32_t max_len, struct buffers *r)
{
	if (c) {
		r->weight = carve(c, (size_t)BAND * max_len * sizeof *r->weight);
		r->ids = carve(c, max_len * sizeof *r->ids);
	}
	return carve_size((size_t)BAND * max_len * sizeof *r->weight) + carve_size(max_len * sizeof *r->ids) +
	       weigh_carve(c, dim, &r->w);
}

/*
 * Sums the weights that the representative row of each tile gives to tokens, over the q heads of the group. The first
 * tile begins at x0.
 */
static void add_up(const struct kascade_params *b, struct buffers *r, uint32_t x0)
{
	const struct weigh *w = &r->w;
	const size_t stride = b->batch->max_len;

	for (uint32_t m = 0; m < w->m; m += b->group)
		memset(r->weight + m / b->group * stride, 0, (x0 + m / b->group * b->sp->tile) * sizeof *r->weight);
	for (uint32_t t0 = 0; t0 < w->end[w->m - 1]; t0 += BLOCK) {
		const uint32_t resident = widen_block(w->sh, w->s, w->h, t0, w->k, NULL);
		for (uint32_t m0 = 0; resident && m0 < w->m; m0 += STRIP) {
			if (!weigh_strip(w, m0, t0, resident))
				continue;
			for (uint32_t m = m0; m < skv_min(m0 + STRIP, w->m); m++) {
				float *sum = r->weight + m / b->group * stride + t0;
				for (uint32_t t = 0; t0 + t < w->end[m] && t < BLOCK; t++)
					sum[t] += w->w[(m - m0) * BLOCK + t];
			}
		}
	}
}

static void kascade_item(void *ctx, uint32_t item, int thread)
{
	const struct kascade_params *b = ctx;
	const uint32_t h = item % b->sh->n_kv_heads, number = item / b->sh->n_kv_heads;
	const uint32_t i = skv_range_of(b->first, b->batch->n, number);
	const struct skv_kseq *s = &b->batch->seq[i];
	/* the last tiles of a sequence cost most, so they are processed first */
	const uint32_t j0 = (b->first[i + 1] - 1 - number) * b->band;
	const uint32_t n = skv_min(b->band, tiles_of(s, b->sp->tile) - j0), x0 = (call_start(s) / b->sp->tile + j0) * b->sp->tile;
	struct carve c = thread_begin(&b->space, thread);
	struct buffers r = {.w = {.sh = b->sh, .s = s, .h = h}};

	buffers_carve(&c, b->sh->head_dim, b->batch->max_len, &r);
	for (uint32_t j = 0; j < n; j++)
		for (uint32_t g = 0; g < b->group; g++) {
			const uint32_t x = x0 + j * b->sp->tile, head = h * b->group + g;
			weigh_row(&r.w, query_of(b->sh, s, b->sp, b->q, skv_max(x, s->prompt_start), 0, head), head, x);
		}
	weigh_sums(&r.w);
	add_up(b, &r, x0);
	for (uint32_t j = 0; j < n; j++) {
		const uint32_t x = x0 + j * b->sp->tile;
		const size_t list = list_of(b->ret, i, j0 + j, h);
		float *weight = r.weight + (size_t)j * b->batch->max_len;
		for (uint32_t t = 0; t < x; t++)
			if (!skv_pte_resident(skv_layer_table(b->sh, s)[t / SKV_PAGE_TOKENS]))
				weight[t] = -INFINITY;
		b->ret->count[list] = ISA(topk)(weight, x, skv_budget_of(b->top, x, b->floor),
		                                b->ret->ids + list * b->ret->stride, r.ids);
	}
}

size_t ISA(kascade_bytes)(const struct skv_shape *sh, const struct skv_batch *bounds, int threads)
{
	struct buffers r;

	return carve_size((bounds->n + 1) * sizeof(uint32_t)) +
	       (size_t)threads * buffers_carve(NULL, sh->head_dim, bounds->max_len, &r);
}

void ISA(kascade_lists)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q, const struct skv_sparse *sp,
                    struct skv_budget top, uint32_t floor, const struct skv_tile_lists *ret, const struct skv_workspace *work)
{
	const uint32_t group = sh->n_heads / sh->n_kv_heads;
	struct kascade_params b = {.sh = sh, .batch = batch, .sp = sp, .ret = ret, .q = q, .top = top, .floor = floor, .group = group,
	                 .band = skv_min(BAND, M_MAX / group)};
	struct carve c = carve_begin(work);
	struct buffers r;

	b.first = carve(&c, (batch->n + 1) * sizeof *b.first);
	b.space = per_thread(&c, work->threads, buffers_carve(NULL, sh->head_dim, batch->max_len, &r));
	b.first[0] = 0;
	for (uint32_t i = 0; i < batch->n; i++)
		b.first[i + 1] = b.first[i] + (tiles_of(&batch->seq[i], sp->tile) + b.band - 1) / b.band;
	skv_run(work->threads, b.first[batch->n] * sh->n_kv_heads, kascade_item, &b);
}
