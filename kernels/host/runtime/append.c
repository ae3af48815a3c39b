/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/runtime/append.c - writes new rows of K and V into their pages, and copies pages.
 *
 * Each row of a page is written by one work item only, so any split over threads is safe; work is split by query rows.
 */
#include "kernels/evict.h"
#include "kernels/host/runtime/append.h"
#include "kernels/host/runtime/fp8.h"
#include "kernels/host/select/select.h"
#include "kernels/host/runtime/simd.h"

#define ROWS_PER_ITEM 16u

struct append_params {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_slot_mapping *slots; /* NULL: each row goes to the slot of its token's position */
	const float *k, *v;
	uint32_t *first; /* [n + 1]: number of items before those of sequence i */
};

INLINE void store_row(uint32_t dtype, uint8_t *dst, const float *src, uint32_t dim)
{
	for (uint32_t d = 0; d < dim; d += VL)
		v_store(dtype, dst + d * skv_dtype_bytes(dtype), v_loadf(src + d));
}

static void store(const struct skv_shape *sh, uint8_t *dst, const float *src)
{
	if (sh->dtype == SKV_FP8)
		store_fp8_row(sh, dst, src, FP8_NEAREST);
	else
		BY_DTYPE(sh->dtype, store_row, dst, src, sh->head_dim);
}

static void append_rows(const struct append_params *a, uint32_t i, uint32_t row0, uint32_t row1)
{
	const struct skv_shape *sh = a->sh;
	const struct skv_kseq *s = &a->batch->seq[i];
	const skv_pte *table = skv_layer_table(sh, s);
	const uint32_t *slot = a->slots && s->n_q == 1 ? a->slots->slot + (size_t)i * sh->n_kv_heads : NULL;
	for (uint32_t row = row0; row < row1; row++) {
		for (uint32_t h = 0; h < sh->n_kv_heads; h++) {
			uint32_t token = slot ? slot[h] : s->len - s->n_q + row;
			skv_pte e = table[token / SKV_PAGE_TOKENS];
			if (!skv_pte_resident(e))
				continue;
			uint8_t *dst = skv_page_k(sh, e, h) + token % SKV_PAGE_TOKENS * skv_row_bytes(sh);
			size_t src = ((size_t)(s->row + row) * sh->n_kv_heads + h) * sh->head_dim;
			store(sh, dst, a->k + src);
			store(sh, dst + skv_v_offset(sh), a->v + src);
		}
	}
}

static void append_item(void *ctx, uint32_t item, int thread)
{
	const struct append_params *a = ctx;
	uint32_t i = skv_range_of(a->first, a->batch->n, item);
	uint32_t row = (item - a->first[i]) * ROWS_PER_ITEM;
	(void)thread;
	append_rows(a, i, row, skv_min(row + ROWS_PER_ITEM, a->batch->seq[i].n_q));
}

void ISA(append)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_slot_mapping *slots,
                 const void *k, const void *v, const struct skv_workspace *work)
{
	const uint32_t n = batch->n;
	struct carve c = carve_begin(work);
	struct append_params a = {.sh = sh, .batch = batch, .slots = slots, .k = k, .v = v};
	a.first = carve(&c, (n + 1) * sizeof *a.first);
	a.first[0] = 0;
	for (uint32_t i = 0; i < n; i++)
		a.first[i + 1] = a.first[i] + (batch->seq[i].n_q + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM;
	/* A decode step appends few rows: copying them takes less time than waking a thread. */
	skv_run(a.first[n] > 4 ? work->threads : 1, a.first[n], append_item, &a);
	if (sh->sketch_bits && !slots)
		ISA(update_sketches)(sh, batch, work);
}

void ISA(copy_pages)(const struct skv_shape *sh, const uint32_t *dst, const uint32_t *src, uint32_t n,
                     const struct skv_workspace *work)
{
	(void)work;
	for (uint32_t i = 0; i < n; i++)
		memcpy(sh->pool + dst[i] * sh->page_bytes, sh->pool + src[i] * sh->page_bytes,
		       sh->page_bytes);
}
