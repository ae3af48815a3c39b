/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/select/page-bounds.c - makes page bounds, the minima and maxima of a page's keys, and scores pages by
 * them (Quest).
 *
 * Page bounds are minima and maxima of values in the pool, so the pool's dtype represents them exactly. Exception:
 * small values in fp8 are rounded outwards. Bounds are always made from all rows of a page, never from the bounds that
 * an earlier call made.
 */
#include "kernels/host/select/select.h"
#include "kernels/evict.h"
#include "kernels/host/runtime/fp8.h"
#include "kernels/host/runtime/simd.h"
#include <math.h>

#define QUERIES 4 /* number of queries scored at a time: a value that is read from a page serves all of them */

/* ---- update ---------------------------------------------------------------------------------- */

struct update_params {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_slot_mapping *slots; /* NULL: a token's slot is its position */
	/*
	 * [n + 1]: number of work items before those of sequence i; an item is a page; with slots, a sequence's first
	 * item is the page of each kv head's slot
	 */
	uint32_t *first;
};

static uint32_t first_page(const struct skv_kseq *s)
{
	return (s->len - s->n_state) / SKV_PAGE_TOKENS;
}

INLINE void bound_rows(uint32_t dtype, const uint8_t *rows, uint32_t n, uint32_t dim, uint8_t *low, uint8_t *high)
{
	const size_t each = skv_dtype_bytes(dtype);

	for (uint32_t d = 0; d < dim; d += VL) {
		vf lo = v_load(dtype, rows + d * each), hi = lo;
		for (uint32_t t = 1; t < n; t++) {
			vf x = v_load(dtype, rows + (t * dim + d) * each);
			lo = -v_max(-lo, -x);
			hi = v_max(hi, x);
		}
		v_store(dtype, low + d * each, lo);
		v_store(dtype, high + d * each, hi);
	}
}

/*
 * Makes the bounds of fp8 rows: the maxima of -x and of x are rounded up, so that the bounds hold; then the signs of
 * the maxima of -x are flipped, which makes them minima.
 */
static void bound_fp8_rows(const struct skv_shape *sh, const uint8_t *rows, uint32_t n, uint8_t *low, uint8_t *high)
{
	const uint32_t dim = sh->head_dim;
	float unit[SKV_PAGE_TOKENS], lo[SKV_MAX_HEAD_DIM], hi[SKV_MAX_HEAD_DIM];

	for (uint32_t t = 0; t < n; t++)
		unit[t] = skv_row_unit(sh, rows + t * dim);
	for (uint32_t d = 0; d < dim; d += VL) {
		vf least = -v_load_fp8(rows + d) * unit[0], most = -least;
		for (uint32_t t = 1; t < n; t++) {
			const vf x = v_load_fp8(rows + t * dim + d) * unit[t];
			least = v_max(least, -x);
			most = v_max(most, x);
		}
		v_storef(lo + d, least);
		v_storef(hi + d, most);
	}
	store_fp8_row(sh, low, lo, FP8_UP);
	store_fp8_row(sh, high, hi, FP8_UP);
	for (uint32_t d = 0; d < dim; d++)
		low[d] ^= 0x80;
}

static void update_page(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t h, uint32_t page,
                        uint32_t tokens)
{
	const skv_pte entry = skv_layer_table(sh, s)[page], state = skv_state_table(sh, s)[page / SKV_PAGE_TOKENS];
	if (!skv_pte_resident(entry) || !skv_pte_resident(state))
		return;
	const uint8_t *rows = skv_page_k(sh, entry, h);
	uint8_t *low = skv_bounds_row(sh, state, h, page), *high = low + skv_v_offset(sh);
	if (sh->dtype == SKV_FP8)
		bound_fp8_rows(sh, rows, tokens, low, high);
	else
		BY_DTYPE(sh->dtype, bound_rows, rows, tokens, sh->head_dim, low, high);
}

/* Is the sequence's new token stored in the slots that alloc_slots() chose? */
static bool in_slots(const struct update_params *u, const struct skv_kseq *s)
{
	return u->slots && s->n_q == 1;
}

static void update_item(void *ctx, uint32_t item, int thread)
{
	const struct update_params *u = ctx;
	const uint32_t i = skv_range_of(u->first, u->batch->n, item);
	const struct skv_kseq *s = &u->batch->seq[i];
	const uint32_t nth = item - u->first[i], heads = u->sh->n_kv_heads;
	(void)thread;

	for (uint32_t h = 0; h < heads; h++)
		if (in_slots(u, s)) {
			const uint32_t slot = u->slots->slot[(size_t)i * heads + h], own = slot / SKV_PAGE_TOKENS;
			const uint32_t page = nth ? first_page(s) + nth - 1 : own;
			if (nth == 0)
				update_page(u->sh, s, h, own, slot % SKV_PAGE_TOKENS + 1);
			else if (page != own)
				update_page(u->sh, s, h, page, SKV_PAGE_TOKENS);
		} else {
			const uint32_t page = first_page(s) + nth, left = s->len - page * SKV_PAGE_TOKENS;
			update_page(u->sh, s, h, page, skv_min(left, SKV_PAGE_TOKENS));
		}
}

/*
 * Returns the number of work items of a sequence. With slots, all pages except that of the new token are full and
 * already have their bounds. The bounds of these pages are made again only if n_state is above 1.
 */
static uint32_t items_of(const struct update_params *u, const struct skv_kseq *s)
{
	const uint32_t pages = s->n_state ? skv_pages_of(s->len) - first_page(s) : 0;

	return !in_slots(u, s) ? pages : s->n_state > 1 ? 1 + pages : s->n_state;
}

void ISA(update_bounds)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_slot_mapping *slots,
                        const struct skv_workspace *work)
{
	const uint32_t n = batch->n;
	struct carve c = carve_begin(work);
	struct update_params u = {.sh = sh, .batch = batch, .slots = slots};

	u.first = carve(&c, (n + 1) * sizeof *u.first);
	u.first[0] = 0;
	for (uint32_t i = 0; i < n; i++)
		u.first[i + 1] = u.first[i] + items_of(&u, &batch->seq[i]);
	skv_run(u.first[n] > 4 ? work->threads : 1, u.first[n], update_item, &u);
}

/* ---- scores ---------------------------------------------------------------------------------- */

struct score_params {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const float *q;
	const struct skv_scores *scores;
	uint32_t reduce; /* enum skv_reduce: how the scores of q heads are combined */
	uint32_t heads;  /* number of queries scored for a kv head: that of its GQA group, or 1 for the group's mean */
	uint32_t *first; /* [n + 1]: number of work items before those of sequence i; an item is a state page */
};

/* Returns query number g of kv head h: a row of q, or the mean of the group's rows, which is stored in `mean`. */
static const float *query(const struct score_params *x, const struct skv_kseq *s, uint32_t h, uint32_t g, float *mean)
{
	const uint32_t dim = x->sh->head_dim, group = x->sh->n_heads / x->sh->n_kv_heads;
	const float *q = x->q + ((size_t)s->row * x->sh->n_heads + h * group) * dim;

	if (x->reduce != SKV_REDUCE_MEAN_Q)
		return q + g * dim;
	for (uint32_t d = 0; d < dim; d += VL) {
		vf sum = v_loadf(q + d);
		for (uint32_t j = 1; j < group; j++)
			sum += v_loadf(q + j * dim + d);
		v_storef(mean + d, sum / (float)group);
	}
	return mean;
}

/*
 * Computes upper bounds of q·k over all keys between the rows of bounds `low` and `high`, for n queries, whose rows are
 * dim elements apart.
 */
INLINE void score_rows(uint32_t dtype, const struct skv_shape *sh, const int n, const float *q, const uint8_t *low, const uint8_t *high,
                       float *ret)
{
	const float low_unit = skv_row_unit(sh, low), high_unit = skv_row_unit(sh, high);
	const uint32_t dim = sh->head_dim;
	const size_t each = skv_dtype_bytes(dtype);
	vf sum[QUERIES] = {0};

	for (uint32_t d = 0; d < dim; d += VL) {
		vf lo = v_load(dtype, low + d * each), hi = v_load(dtype, high + d * each);
		if (dtype == SKV_FP8) {
			lo *= low_unit;
			hi *= high_unit;
		}
		UNROLL
		for (int y = 0; y < n; y++) {
			vf x = v_loadf(q + y * dim + d);
			sum[y] += v_max(x * lo, x * hi);
		}
	}
	UNROLL
	for (int y = 0; y < n; y++)
		ret[y] = v_fold_runs(V_SUM, sum[y], VL)[0];
}

INLINE void score_typed(uint32_t dtype, const struct skv_shape *sh, uint32_t n, const float *q, const uint8_t *low, const uint8_t *high,
                        float *ret)
{
	if (n == QUERIES)
		score_rows(dtype, sh, QUERIES, q, low, high, ret);
	else
		for (uint32_t y = 0; y < n; y++)
			score_rows(dtype, sh, 1, q + y * sh->head_dim, low, high, ret + y);
}

static void score_page(const struct skv_shape *sh, uint32_t n, const float *q, skv_pte state, uint32_t h, uint32_t page,
                       float ret[QUERIES])
{
	const uint8_t *low = skv_bounds_row(sh, state, h, page), *high = low + skv_v_offset(sh);

	BY_DTYPE(sh->dtype, score_typed, sh, n, q, low, high, ret);
}

/*
 * Combines the score u of a query with those of the other queries that share its row of scores. `at` is the query's
 * number, counted over all kv heads.
 */
static void reduce(const struct score_params *x, uint32_t i, uint32_t at, uint32_t page, float u)
{
	const uint32_t per_row = x->sh->n_kv_heads * x->heads / x->scores->rows;
	float *score = x->scores->page + ((size_t)i * x->scores->rows + at / per_row) * x->scores->page_stride + page;

	if (at % per_row == 0)
		*score = u;
	else if (x->reduce == SKV_REDUCE_MAX)
		*score = *score > u ? *score : u;
	else
		*score += u;
}

/*
 * Scores pages [from, to), whose bounds are in one state page, for queries [g, g + n) of kv head h, and combines the
 * scores.
 */
static void score_queries(const struct score_params *x, const struct skv_kseq *s, uint32_t i, uint32_t h, uint32_t g,
                          uint32_t n, uint32_t from, uint32_t to)
{
	const skv_pte *table = skv_layer_table(x->sh, s);
	const skv_pte state = skv_state_table(x->sh, s)[from / SKV_PAGE_TOKENS];
	float mean[SKV_MAX_HEAD_DIM];
	const float *q = query(x, s, h, g, mean);

	for (uint32_t page = from; page < to; page++) {
		float u[QUERIES] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
		if (skv_pte_resident(table[page]) && skv_pte_resident(state))
			score_page(x->sh, n, q, state, h, page, u);
		for (uint32_t y = 0; y < n; y++)
			reduce(x, i, h * x->heads + g + y, page, u[y]);
	}
}

static void score_item(void *ctx, uint32_t item, int thread)
{
	const struct score_params *x = ctx;
	const uint32_t i = skv_range_of(x->first, x->batch->n, item);
	const struct skv_kseq *s = &x->batch->seq[i];
	const uint32_t from = (item - x->first[i]) * SKV_PAGE_TOKENS;
	const uint32_t to = skv_min(from + SKV_PAGE_TOKENS, skv_pages_of(s->len));
	(void)thread;

	for (uint32_t h = 0; h < x->sh->n_kv_heads; h++)
		for (uint32_t g = 0; g < x->heads; g += QUERIES)
			score_queries(x, s, i, h, g, skv_min(x->heads - g, QUERIES), from, to);
}

void ISA(score_pages)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q, uint32_t reduce,
                      const struct skv_scores *scores, const struct skv_workspace *work)
{
	const uint32_t n = batch->n;
	struct carve c = carve_begin(work);
	struct score_params x = {.sh = sh, .batch = batch, .q = q, .scores = scores, .reduce = reduce};

	x.heads = reduce == SKV_REDUCE_MEAN_Q ? 1 : sh->n_heads / sh->n_kv_heads;
	x.first = carve(&c, (n + 1) * sizeof *x.first);
	x.first[0] = 0;
	for (uint32_t i = 0; i < n; i++)
		x.first[i + 1] = x.first[i] + skv_pages_of(skv_pages_of(batch->seq[i].len));
	skv_run(work->threads, x.first[n], score_item, &x);
}
