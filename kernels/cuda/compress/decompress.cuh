/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/compress/decompress.cuh - the rows to decompress, and their destination, for decompress.cu and
 * quantize.cu.
 */
#ifndef SKV_CUDA_COMPRESS_DECOMPRESS_CUH
#define SKV_CUDA_COMPRESS_DECOMPRESS_CUH

#include "kernels/cuda/runtime/convert.cuh"
#include "kernels/cuda/runtime/cuda.h"

/* The rows that a call asks to decompress. */
struct wanted_rows {
	const struct skv_kseq *seq;
	const uint32_t *ids, *count; /* the list's ids and counts, or NULL: no list */
	uint32_t stride;
	struct skv_decompressed to;
	uint32_t first; /* number of tokens at the beginning that are never compressed */
};

static inline struct wanted_rows wanted_rows_of(const struct skv_batch *b, const struct skv_index_list *list,
                                                const struct skv_decompressed *to, uint32_t first)
{
	return {b->seq, list ? list->ids : NULL, list ? list->count : NULL, list ? list->stride : 0, *to, first};
}

/* Returns the number of rows to decompress of a sequence. */
DEVICE uint32_t rows_of(const struct wanted_rows *c, uint32_t i)
{
	const struct skv_kseq *s = &c->seq[i];
	if (!c->ids)
		return c->to.pool ? s->len : s->n_compressed > c->first ? s->n_compressed - c->first : 0;
	const uint32_t *ids = c->ids + (size_t)i * c->stride;
	uint32_t from = 0, to = c->count[i];
	if (to > 0 && ids[to - 1] < s->len)
		return to;
	while (from < to) { /* binary search for the first id that is not below len */
		const uint32_t at = (from + to) / 2;
		if (ids[at] < s->len)
			from = at + 1;
		else
			to = at;
	}
	return from;
}

DEVICE uint32_t token_of(const struct wanted_rows *c, uint32_t i, uint32_t row)
{
	if (c->ids)
		return c->ids[(size_t)i * c->stride + row];
	return c->to.pool ? row : c->first + row;
}

/* Returns the address of a row of head 0's K in a page: row `at` modulo the tokens of a page. */
DEVICE uint8_t *page_row(const struct skv_shape *sh, uint8_t *pool, uint32_t page, uint32_t at)
{
	return pool + page * sh->page_bytes + at % SKV_PAGE_TOKENS * (sh->head_dim * 2);
}

/*
 * For attention over the decompressed rows: fills in the page table entry of the page that has row `row` of sequence i
 * and, if `row` is 0, the sequence's struct skv_kseq.
 */
DEVICE void make_table_entry(const struct wanted_rows *c, uint32_t i, uint32_t row, uint32_t rows)
{
	skv_pte *table = c->to.table + (size_t)i * c->to.pages;
	const uint32_t page = row / SKV_PAGE_TOKENS;
	if (row < rows && row % SKV_PAGE_TOKENS == 0)
		table[page] = skv_pte_make(SKV_PTE_PRIVATE, i * c->to.pages + page);
	if (row > 0)
		return;
	struct skv_kseq s = c->seq[i];
	s.table = table;
	s.layer_stride = 0;
	s.len = rows;
	s.n_compressed = s.compress_to = 0;
	c->to.seq[i] = s;
}

#endif
