/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/prefill.h - sparse prefill: how the rows of a prompt that are not dense attend.
 *
 * struct skv_sparse is the kernels' form of struct skv_prefill (policy.h). Rows are grouped into tiles by position. A
 * tile has lists of token blocks that its rows attend to besides sinks, window and the tile itself. kascade_lists,
 * hip_lists and minference_lists fill these lists; prefill_sparse attends. Data of this call's rows that a later call
 * of the same prompt needs is saved in pages of the pool, so chunking a prompt does not change the result.
 */
#ifndef SKV_PREFILL_H
#define SKV_PREFILL_H

#include <sparsekv/policy.h>
#include "kernels/batch.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Lists of tiles: tile j of sequence i is the j-th, counted from the tile of the call's first row. A list has ascending
 * ids of blocks of `unit` tokens; block u is tokens [u unit, (u + 1) unit). Tokens that rows attend to in any case
 * (sinks, window, their own tile) are not listed.
 */
struct skv_tile_lists {
	uint32_t rows;   /* lists a tile: n_kv_heads or n_heads */
	uint32_t tiles;  /* of a sequence, at least skv_max_tiles() */
	uint32_t stride; /* elements reserved for a list */
	uint32_t unit;   /* tokens of a block: 1, 8 or 64 */
	uint32_t *ids;   /* [seq][tiles][rows][stride] */
	uint32_t *count; /* [seq][tiles][rows] */
	bool mapped;     /* rows = n_kv_heads: kv head h reads list map[h]; only readers of a list use it */
	uint8_t map[SKV_MAX_HEADS];
};

/* The largest number of tiles that max_q rows can span. */
SKV_INLINE uint32_t skv_max_tiles(uint32_t max_q, uint32_t tile)
{
	return (max_q + tile - 2) / tile + 1;
}

/*
 * A row is identified by the position p of its token. Dense rows are those
 *     from kseq.dense_from on,
 *     with gamma: p = skv_first_row(s, p, gamma),
 *     with segment: p - skv_first_row(s, p, segment) < SKV_MINFERENCE_ROWS.
 * Any other row attends, of the tokens t <= p, to those with
 *     t < sinks;  t + window > p, or with by_tile t + window >= p - p % tile;  a block in its tile's lists.
 *
 * Saved queries. Data that later calls need of these rows is saved in pages of the pool, listed in the layer's table
 * `saved`: two sets of skv_saved_pages() pages each, as with slot metadata. A call reads set s->set ^ 1 if
 * s->prompt_start < len - n_q, and writes set s->set if s->prompt_continues. A set contains, from the beginning of its
 * first page:
 *     with delta: the difference that the next row gets, if its correction row was computed, fp32 [n_heads][head_dim];
 *     then queries of io_dtype, [n_saved_queries][n_heads][head_dim]: with segment, of the first rows of the segment
 *     with the call's last row, as far as they were computed; else of the row skv_first_row(s, last row, tile).
 */
struct skv_sparse {
	uint32_t tile;      /* tokens: a power of two from 16 to 128 */
	uint32_t sinks, window;
	bool by_tile;       /* the window is that of the tile's first position */
	bool delta;         /* sparse rows get the difference, dense - sparse, of row skv_correction_row(s, sp, p) */
	uint32_t gamma;     /* 0: none; a power of two */
	uint32_t segment;   /* 0: none; a power of two, at least 2 SKV_MINFERENCE_ROWS */
	uint32_t n_saved_queries; /* 0, 1, or SKV_MINFERENCE_ROWS */
	/* NULL: none. `extra` has as many rows as `lists`, and blocks of one token. */
	const struct skv_tile_lists *lists, *extra;
};

/*
 * The first row of the aligned range of x positions that contains p, or the prompt's first row if that is later. This
 * is the representative row of a tile, of a segment ...
 */
SKV_INLINE uint32_t skv_first_row(const struct skv_kseq *s, uint32_t p, uint32_t x)
{
	const uint32_t at = p - p % x;

	return at > s->prompt_start ? at : s->prompt_start;
}

/* Is row p of a prompt dense? */
SKV_INLINE bool skv_row_dense(const struct skv_kseq *s, const struct skv_sparse *sp, uint32_t p)
{
	return p >= s->dense_from || (sp->gamma && p == skv_first_row(s, p, sp->gamma)) ||
	       (sp->segment && p - skv_first_row(s, p, sp->segment) < SKV_MINFERENCE_ROWS);
}

/*
 * The row whose difference row p gets if p is not dense. A segment has no lists before the last of its dense rows, so
 * no earlier row of it has a difference. (For a dense row the result may be a later row.)
 */
SKV_INLINE uint32_t skv_correction_row(const struct skv_kseq *s, const struct skv_sparse *sp, uint32_t p)
{
	const uint32_t at = skv_first_row(s, p, sp->gamma);
	const uint32_t last = sp->segment ? skv_first_row(s, p, sp->segment) + SKV_MINFERENCE_ROWS - 1 : 0;

	return last > at ? last : at;
}

/* Offset of the queries in a set, in bytes, and the number of pages of a set. */
SKV_INLINE size_t skv_saved_queries_offset(const struct skv_shape *sh, const struct skv_sparse *sp)
{
	return sp->delta ? (size_t)sh->n_heads * sh->head_dim * sizeof(float) : 0;
}
SKV_INLINE uint32_t skv_saved_pages(const struct skv_shape *sh, const struct skv_sparse *sp)
{
	const size_t row = (size_t)sh->n_heads * sh->head_dim * skv_dtype_bytes(sh->io_dtype), room = skv_page_room(sh);

	return (uint32_t)((skv_saved_queries_offset(sh, sp) + sp->n_saved_queries * row + room - 1) / room);
}

/* Address of byte `at` of a set; a head's elements never cross a page boundary. The pages must be resident. */
SKV_INLINE void *skv_saved_at(const struct skv_shape *sh, const struct skv_kseq *s, const struct skv_sparse *sp, uint32_t set,
                             size_t at)
{
	const skv_pte *table = s->table + (size_t)sh->saved * s->layer_stride;
	const skv_pte entry = table[set * skv_saved_pages(sh, sp) + at / skv_page_room(sh)];

	return sh->pool + skv_pte_id(entry) * sh->page_bytes + at % skv_page_room(sh);
}

#ifdef __cplusplus
}
#endif
#endif
