/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/evict/rank.c - how values become ranks: smoothed over positions, and set against how much keys are alike.
 *
 * An item is one kv head of a sequence.
 */
#include <math.h>
#include "kernels/host/evict/slot-meta.h"
#include "kernels/host/runtime/simd.h"

struct call {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_rank *how;
	float *rank;
	uint32_t stride;
	uint8_t *scratch; /* of each thread */
	size_t scratch_stride;
};

/* ---- by position ----------------------------------------------------------------------------- */

/* A thread's buffers, for n tokens. */
struct room {
	float *value;
	float *before;  /* -pos: exact, as a sequence has no more tokens than a float has integers */
	uint32_t *slot; /* by position */
	uint32_t *part;
};
static_assert(SKV_MAX_TOKENS <= 1u << 24, "positions are floats");

static size_t room_carve(struct carve *c, uint32_t n, struct room *r)
{
	if (c)
		*r = (struct room){carve(c, n * sizeof(float)), carve(c, n * sizeof(float)),
		                   carve(c, n * sizeof(uint32_t)), carve(c, n * sizeof(uint32_t))};
	return 2 * carve_size(n * sizeof(float)) + 2 * carve_size(n * sizeof(uint32_t));
}

/* The mean of `width` positions around each token, the tokens in the order of their positions. */
static void smooth(struct notes now, uint32_t n, uint32_t width, const struct room *r, float *rank)
{
	const float half = (float)(width / 2);

	for (uint32_t u = 0; u < n; u++) {
		const struct skv_note note = *notes_next(&now);
		r->value[u] = note_awake(note) ? note.value : 0;
		r->before[u] = -(float)note.pos;
		r->slot[u] = u;
	}
	ISA(sort_ids)(r->before, r->slot, n, r->part);
	for (uint32_t x = 0, from = 0; x < n; x++) {
		const float at = r->before[r->slot[x]];
		float sum = 0;
		while (r->before[r->slot[from]] > at + half)
			from++;
		for (uint32_t y = from; y < n && r->before[r->slot[y]] >= at - half; y++)
			sum += r->value[r->slot[y]];
		rank[r->slot[x]] = sum / (float)width;
	}
}

/* ---- redundancy ------------------------------------------------------------------------------ */

/* The largest magnitude of a key's elements, and its length in units of that; false: it has no direction. */
INLINE bool measure(uint32_t dtype, const uint8_t *key, uint32_t dim, float *ret_most, float *ret_length)
{
	vf most = {0}, sum = {0};

	for (uint32_t d = 0; d < dim; d += VL) {
		const vf x = v_load(dtype, key + d * skv_dtype_bytes(dtype));
		most = v_max(most, v_max(x, -x));
	}
	*ret_most = v_fold_runs(V_MAX, most, VL)[0];
	if (!(*ret_most > 0 && *ret_most < INFINITY))
		return false;
	for (uint32_t d = 0; d < dim; d += VL) {
		const vf x = v_load(dtype, key + d * skv_dtype_bytes(dtype)) / *ret_most;
		sum = v_fma(x, x, sum);
	}
	*ret_length = sqrtf(v_fold_runs(V_SUM, sum, VL)[0]);
	return true;
}

/* Add the key, as a vector of length 1, to sum[dim]. */
INLINE void add_key(uint32_t dtype, const uint8_t *key, uint32_t dim, float *sum)
{
	float most, length;

	if (!measure(dtype, key, dim, &most, &length))
		return;
	for (uint32_t d = 0; d < dim; d += VL)
		v_storef(sum + d, v_loadf(sum + d) + v_load(dtype, key + d * skv_dtype_bytes(dtype)) / most / length);
}

/* Its product with a vector, again as one of length 1. */
INLINE float times_key(uint32_t dtype, const uint8_t *key, uint32_t dim, const float *vector)
{
	float most, length;
	vf sum = {0};

	if (!measure(dtype, key, dim, &most, &length))
		return 0;
	for (uint32_t d = 0; d < dim; d += VL)
		sum = v_fma(v_load(dtype, key + d * skv_dtype_bytes(dtype)) / most / length, v_loadf(vector + d), sum);
	return v_fold_runs(V_SUM, sum, VL)[0];
}

/* The mean similarity of each key to all n: its product with the mean of all directions. */
INLINE void similarity(uint32_t dtype, const struct skv_shape *sh, const struct skv_kseq *s, uint32_t h, float *ret)
{
	const skv_pte *table = skv_layer_table(sh, s);
	float mean[SKV_MAX_HEAD_DIM] = {0};

	for (uint32_t u = 0; u < s->len; u++)
		if (skv_pte_resident(table[u / SKV_PAGE_TOKENS]))
			add_key(dtype, skv_key_row(sh, table[u / SKV_PAGE_TOKENS], h, u), sh->head_dim, mean);
	for (uint32_t d = 0; d < sh->head_dim; d++)
		mean[d] /= (float)s->len;
	for (uint32_t u = 0; u < s->len; u++)
		ret[u] = !skv_pte_resident(table[u / SKV_PAGE_TOKENS])
		                 ? 0
		                 : times_key(dtype, skv_key_row(sh, table[u / SKV_PAGE_TOKENS], h, u), sh->head_dim, mean);
}

static void similarities(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t h, float *ret)
{
	switch (sh->dtype) {
	case SKV_F32:
		similarity(SKV_F32, sh, s, h, ret);
		break;
	case SKV_F16:
		similarity(SKV_F16, sh, s, h, ret);
		break;
	default:
		similarity(SKV_BF16, sh, s, h, ret);
	}
}

/* lambda * the rank's share of all - (1 - lambda) * softmax of similarities. These are at most 1: no maximum is needed. */
static void mix(float lambda, const float *similar, uint32_t n, float *rank)
{
	double all = 0, denominator = 0;

	for (uint32_t u = 0; u < n; u++) {
		all += rank[u];
		denominator += expf(similar[u]);
	}
	for (uint32_t u = 0; u < n; u++) {
		const double importance = all > 0 ? rank[u] / all : 0;
		rank[u] = (float)(lambda * importance - (1 - (double)lambda) * expf(similar[u]) / denominator);
	}
}

/* ---- a call ---------------------------------------------------------------------------------- */

static void rank_item(void *ctx, uint32_t item, int thread)
{
	const struct call *c = ctx;
	const uint32_t h = item % c->sh->n_kv_heads;
	const struct skv_kseq *s = &c->batch->seq[item / c->sh->n_kv_heads];
	uint8_t *scratch = c->scratch + thread * c->scratch_stride;
	struct carve at = {scratch, scratch + c->scratch_stride};
	struct notes now = notes_from(c->sh, s, h, s->set, 0), again = now;
	float *rank = c->rank + (size_t)item * c->stride;
	struct room r;

	if (s->keep >= s->len && s->awake == UINT32_MAX)
		return;
	room_carve(&at, s->len, &r);
	if (c->how->smooth > 1)
		smooth(now, s->len, c->how->smooth, &r, rank);
	for (uint32_t u = 0; u < s->len; u++) {
		const struct skv_note note = *notes_next(&again);
		if (!note_awake(note))
			rank[u] = -INFINITY;
		else if (c->how->smooth <= 1)
			rank[u] = note.value;
	}
	if (c->how->lambda > 0) {
		similarities(c->sh, s, h, r.value);
		mix(c->how->lambda, r.value, s->len, rank);
	}
}

size_t ISA(rank_bytes)(uint32_t max_len, int threads)
{
	return (size_t)threads * room_carve(NULL, max_len, NULL);
}

void ISA(rank)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_rank *how, float *rank,
               uint32_t stride, const struct skv_work *work)
{
	struct carve c = carve_begin(work);
	struct call x = {.sh = sh, .batch = batch, .how = how, .rank = rank, .stride = stride};

	x.scratch_stride = room_carve(NULL, batch->max_len, NULL);
	x.scratch = carve(&c, (size_t)work->threads * x.scratch_stride);
	skv_run(notes_threads(sh, batch, work), batch->n * sh->n_kv_heads, rank_item, &x);
}
