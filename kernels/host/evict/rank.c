/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/evict/rank.c - turns accumulated scores into ranks: scores are smoothed over positions, and weighed
 * against the redundancy of keys (R-KV).
 */
#include <math.h>
#include "kernels/host/evict/evict.h"
#include "kernels/host/evict/slot-meta.h"
#include "kernels/host/runtime/simd.h"
#include "kernels/host/select/topk-key.h"

struct rank_params {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_rank *rule;
	float *rank;
	uint32_t stride;
	struct per_thread space;
};

/* ---- by position ----------------------------------------------------------------------------- */

/* The buffers of one thread, for n tokens. */
struct buffers {
	float *score;
	float *before;  /* -pos of each slot: exact, because a float represents all positions of a sequence */
	uint32_t *slot; /* slots in the order of their positions */
	uint32_t *part; /* workspace of sort_ids() */
};
static_assert(SKV_MAX_TOKENS <= 1u << 24, "positions are floats");

static size_t buffers_carve(struct carve *c, uint32_t n, struct buffers *r)
{
	if (c)
		*r = (struct buffers){carve(c, n * sizeof(float)), carve(c, n * sizeof(float)),
		                   carve(c, n * sizeof(uint32_t)), carve(c, n * sizeof(uint32_t))};
	return 2 * carve_size(n * sizeof(float)) + 2 * carve_size(n * sizeof(uint32_t));
}

/*
 * Computes, as rank, the mean score over `width` positions around each token. Tokens are processed in the order of
 * their positions.
 */
static void smooth(struct meta_iter now, uint32_t n, uint32_t width, const struct buffers *r, float *rank)
{
	const float half = (float)(width / 2);

	for (uint32_t u = 0; u < n; u++) {
		const struct skv_slot_meta meta = *meta_next(&now);
		r->score[u] = meta_active(meta) ? meta.score : 0;
		r->before[u] = -(float)meta.pos;
		r->slot[u] = u;
	}
	ISA(sort_ids)(r->before, r->slot, n, r->part);
	for (uint32_t x = 0, from = 0; x < n; x++) {
		const float at = r->before[r->slot[x]];
		float sum = 0;
		while (r->before[r->slot[from]] > at + half)
			from++;
		for (uint32_t y = from; y < n && r->before[r->slot[y]] >= at - half; y++)
			sum += r->score[r->slot[y]];
		rank[r->slot[x]] = sum / (float)width;
	}
}

/* ---- redundancy ------------------------------------------------------------------------------ */

/*
 * Computes the largest magnitude of a key's elements, and the key's norm divided by that magnitude. Returns false if
 * the key has no direction: it is zero or not finite. The functions below ignore the scales of fp8 rows, because a
 * scale does not change a key's direction.
 */
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

/* Adds a key, divided by its norm, to sum[dim]. */
INLINE void add_key(uint32_t dtype, const uint8_t *key, uint32_t dim, float *sum)
{
	float most, length;

	if (!measure(dtype, key, dim, &most, &length))
		return;
	for (uint32_t d = 0; d < dim; d += VL)
		v_storef(sum + d, v_loadf(sum + d) + v_load(dtype, key + d * skv_dtype_bytes(dtype)) / most / length);
}

/* Returns the dot product of the normalized key and a vector; 0 if the key has no direction. */
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

/*
 * Computes the mean cosine similarity of each key to all keys, as the dot product of the normalized key with the mean
 * of all normalized keys.
 */
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
		                 : times_key(dtype, skv_key_row(sh, table[u / SKV_PAGE_TOKENS], h, u), sh->head_dim,
		                             mean);
}

static void similarities(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t h, float *ret)
{
	BY_DTYPE(sh->dtype, similarity, sh, s, h, ret);
}

/*
 * Mixes importance and redundancy: rank = lambda * (rank / sum of ranks) - (1 - lambda) * softmax of similarities.
 * Similarities are at most 1, so no maximum is subtracted before the exponentials.
 */
static void mix(float lambda, const float *similar, uint32_t n, float *rank)
{
	double total = 0, denominator = 0;

	for (uint32_t u = 0; u < n; u++) {
		total += rank[u];
		denominator += expf(similar[u]);
	}
	for (uint32_t u = 0; u < n; u++) {
		const double importance = total > 0 ? rank[u] / total : 0;
		rank[u] = (float)(lambda * importance - (1 - (double)lambda) * expf(similar[u]) / denominator);
	}
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static void rank_item(void *ctx, uint32_t item, int thread)
{
	const struct rank_params *c = ctx;
	const uint32_t h = item % c->sh->n_kv_heads;
	const struct skv_kseq *s = &c->batch->seq[item / c->sh->n_kv_heads];
	struct carve space = thread_begin(&c->space, thread);
	struct meta_iter now = meta_from(c->sh, s, h, s->set, 0), again = now;
	float *rank = c->rank + (size_t)item * c->stride;
	struct buffers r;

	if (s->n_retained >= s->len && s->n_active == UINT32_MAX)
		return;
	buffers_carve(&space, s->len, &r);
	if (c->rule->smooth > 1)
		smooth(now, s->len, c->rule->smooth, &r, rank);
	for (uint32_t u = 0; u < s->len; u++) {
		const struct skv_slot_meta meta = *meta_next(&again);
		if (!meta_active(meta))
			rank[u] = -INFINITY;
		else if (c->rule->smooth <= 1)
			rank[u] = meta.score;
	}
	if (c->rule->lambda > 0) {
		similarities(c->sh, s, h, r.score);
		mix(c->rule->lambda, r.score, s->len, rank);
	}
}

size_t ISA(rank_bytes)(uint32_t max_len, int threads)
{
	return (size_t)threads * buffers_carve(NULL, max_len, NULL);
}

void ISA(rank_tokens)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_rank *rule, float *rank,
               uint32_t stride, const struct skv_workspace *work)
{
	struct carve c = carve_begin(work);
	struct rank_params x = {.sh = sh, .batch = batch, .rule = rule, .rank = rank, .stride = stride};

	x.space = per_thread(&c, work->threads, buffers_carve(NULL, batch->max_len, NULL));
	skv_run(meta_threads(sh, batch, work), batch->n * sh->n_kv_heads, rank_item, &x);
}
