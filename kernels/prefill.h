/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/prefill.h - sparse prefill: how the rows of a prompt attend that are not dense.
 *
 * struct skv_sparse is struct skv_prefill (policy.h) as kernels take it. Rows lie in tiles of the sequence's
 * positions. A tile has lists of the blocks of tokens that its rows attend to beside sinks, window and the tile
 * itself; the kernels kascade_lists, hip_lists and minference_lists fill them, prefill_sparse attends. What a later
 * call of the same prompt needs of this one's rows is saved in pages of the pool, so that chunking a prompt changes
 * no result.
 */
#ifndef SKV_PREFILL_H
#define SKV_PREFILL_H

#include <sparsekv/policy.h>
#include "kernels/batch.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Lists of tiles: tile j of sequence i is the j-th from the one on that the call's first row is in. A list has
 * ascending ids of blocks of `unit` tokens, block u being tokens [u unit, (u + 1) unit). What rows attend to in any
 * case - sinks, window, their own tile - is not listed.
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

/* The most tiles that max_q rows can lie in. */
SKV_INLINE uint32_t skv_max_tiles(uint32_t max_q, uint32_t tile)
{
	return (max_q + tile - 2) / tile + 1;
}

/*
 * A row is the position p of its token. Dense rows are those
 *     from kseq.dense_from on,
 *     with gamma: p = skv_first_row(s, p, gamma),
 *     with segment: p - skv_first_row(s, p, segment) < SKV_MINFERENCE_ROWS.
 * Any other row attends, of the tokens t <= p, to those with
 *     t < sinks;  t + window > p, or with by_tile t + window >= p - p % tile;  a block in its tile's lists.
 *
 * Saved queries. What later calls need of these rows is saved in pages of the pool, named by the layer's table
 * `saved`: two sets of skv_saved_pages() pages each, as of slot metadata. A call reads set s->set ^ 1 if
 * s->prompt_start < len - n_q, and writes set s->set if s->prompt_continues. A set is, from the beginning of its
 * first page:
 *     with delta: the difference that the next row gets, if its correction row has come, fp32 [n_heads][head_dim];
 *     then queries of io_dtype, [n_saved_queries][n_heads][head_dim]: with segment, of the first rows of the segment that
 *     the call's last row is in, as far as they have come; else of the row skv_first_row(s, last row, tile).
 */
struct skv_sparse {
	uint32_t tile;      /* tokens: a power of two from 16 to 128 */
	uint32_t sinks, window;
	bool by_tile;       /* the window is that of the tile's first position */
	bool delta;         /* other rows get the difference, dense - sparse, of row skv_correction_row(s, sp, p) */
	uint32_t gamma;     /* 0: none; a power of two */
	uint32_t segment;   /* 0: none; a power of two, at least 2 SKV_MINFERENCE_ROWS */
	uint32_t n_saved_queries; /* n_saved_queries: 0, 1, or SKV_MINFERENCE_ROWS */
	const struct skv_tile_lists *lists, *extra; /* NULL: none. `extra` has as many rows as `lists`, and blocks of one token */
};

/*
 * The first row of p's run of x positions, or the prompt's first row: the representative row of a tile, a segment ...
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
 * The row whose difference row p gets if it is not dense. A segment has no lists before the last of its dense rows, so
 * no row before that one has a difference. (For a dense row the answer may be a later row.)
 */
SKV_INLINE uint32_t skv_correction_row(const struct skv_kseq *s, const struct skv_sparse *sp, uint32_t p)
{
	const uint32_t at = skv_first_row(s, p, sp->gamma);
	const uint32_t last = sp->segment ? skv_first_row(s, p, sp->segment) + SKV_MINFERENCE_ROWS - 1 : 0;

	return last > at ? last : at;
}

/* Where the queries begin in a set, in bytes; and the pages of a set. */
SKV_INLINE size_t skv_saved_queries_offset(const struct skv_shape *sh, const struct skv_sparse *sp)
{
	return sp->delta ? (size_t)sh->n_heads * sh->head_dim * sizeof(float) : 0;
}
SKV_INLINE uint32_t skv_saved_pages(const struct skv_shape *sh, const struct skv_sparse *sp)
{
	const size_t row = (size_t)sh->n_heads * sh->head_dim * skv_dtype_bytes(sh->io_dtype), room = skv_page_room(sh);

	return (uint32_t)((skv_saved_queries_offset(sh, sp) + sp->n_saved_queries * row + room - 1) / room);
}

/* Byte `at` of a set; a head's elements are never in two pages. The pages must be resident. */
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
