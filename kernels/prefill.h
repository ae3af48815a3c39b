/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/prefill.h - sparse prefill: how the rows of a prompt attend that do not use dense attention.
 *
 * struct skv_sparse is the kernels' form of struct skv_prefill (policy.h). The rows of a prompt are grouped into tiles
 * by position. A tile has lists of token blocks, to which the tile's rows attend besides sinks, window and the tile
 * itself. kascade_lists, hip_lists and minference_lists fill these lists; prefill_sparse attends. Data of a call's rows
 * that a later call of the same prompt needs is saved in pages of the pool, so chunking a prompt does not change the
 * result.
 */
#ifndef SKV_PREFILL_H
#define SKV_PREFILL_H

#include <sparsekv/policy.h>
#include "kernels/batch.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The lists of tiles. Tile j of sequence i is the j-th tile, counted from the one with the call's first row. A list has
 * ascending ids of blocks of `unit` tokens; block u is tokens [u unit, (u + 1) unit). Tokens that rows attend to in any
 * case (sinks, window, their own tile) are not listed.
 */
struct skv_tile_lists {
	uint32_t rows;   /* number of lists of a tile: n_kv_heads or n_heads */
	uint32_t tiles;  /* number of tiles of a sequence, at least skv_max_tiles() */
	uint32_t stride; /* number of elements reserved for a list */
	uint32_t unit;   /* number of tokens of a block: 1, 8 or 64 */
	uint32_t *ids;   /* [seq][tiles][rows][stride]: ids of blocks */
	uint32_t *count; /* [seq][tiles][rows]: number of ids in each list */
	/*
	 * with rows = n_kv_heads: kv head h reads list map[h] instead of list h; functions that write a list ignore
	 * this
	 */
	bool mapped;
	uint8_t map[SKV_MAX_HEADS];
};

/* Returns the largest number of tiles of `tile` tokens that max_q consecutive rows can span. */
SKV_INLINE uint32_t skv_max_tiles(uint32_t max_q, uint32_t tile)
{
	return (max_q + tile - 2) / tile + 1;
}

/*
 * A row is identified by the position p of its token. The dense rows of a prompt, which attend to all tokens up to p,
 * are
 *     rows p >= kseq.dense_from,
 *     with gamma: rows p = skv_first_row(s, p, gamma),
 *     with segment: rows p - skv_first_row(s, p, segment) < SKV_MINFERENCE_ROWS.
 * Any other row, a sparse row, attends to the tokens t <= p with
 *     t < sinks;  t + window > p, or with by_tile t + window >= p - p % tile;  t in a block of the tile's lists.
 *
 * Saved queries. The queries and differences that later calls of a prompt need are saved in pages of the pool, which
 * the layer's table `saved` lists. As with slot metadata there are two sets, each of skv_saved_pages() pages. A call
 * reads set s->set ^ 1 if s->prompt_start < len - n_q, and writes set s->set if s->prompt_continues. A set contains,
 * from the beginning of its first page:
 *     with delta: the difference that the prompt's next row adds, if already computed, fp32 [n_heads][head_dim];
 *     then queries in io_dtype, [n_saved_queries][n_heads][head_dim]: with segment, the queries of the first rows of
 *     the segment that has the call's last row, as far as computed; else that of row skv_first_row(s, last row, tile).
 */
struct skv_sparse {
	uint32_t tile;      /* number of tokens of a tile: a power of two from 16 to 128 */
	uint32_t sinks, window;
	bool by_tile;       /* all rows of a tile have the window of the tile's first position */
	/* row p, if sparse, adds the difference, dense - sparse, of row skv_correction_row(s, sp, p) */
	bool delta;
	/* every gamma-th position is dense, a power of two; 0: no rows are dense because of gamma */
	uint32_t gamma;
	/* positions of a MInference segment, a power of two, at least 2 SKV_MINFERENCE_ROWS; 0: no segments */
	uint32_t segment;
	uint32_t n_saved_queries; /* number of queries in a set: 0, 1, or SKV_MINFERENCE_ROWS */
	/* The tiles' lists; NULL: none. `extra` has as many rows as `lists`, and blocks of one token. */
	const struct skv_tile_lists *lists, *extra;
};

/*
 * Returns the first row of the aligned range of x positions that contains p, or the prompt's first row if that is
 * later. This is the representative row of a tile if x is the tile's size, or the first dense row of a segment, and so
 * on.
 */
SKV_INLINE uint32_t skv_first_row(const struct skv_kseq *s, uint32_t p, uint32_t x)
{
	const uint32_t at = p - p % x;

	return at > s->prompt_start ? at : s->prompt_start;
}

/* Does row p of a prompt use dense attention? */
SKV_INLINE bool skv_row_dense(const struct skv_kseq *s, const struct skv_sparse *sp, uint32_t p)
{
	return p >= s->dense_from || (sp->gamma && p == skv_first_row(s, p, sp->gamma)) ||
	       (sp->segment && p - skv_first_row(s, p, sp->segment) < SKV_MINFERENCE_ROWS);
}

/*
 * Returns the row whose difference, dense - sparse, row p adds if p is not dense. A segment has no lists before the
 * last of its dense rows, so no earlier row of a segment has a difference. (If row p is dense, the result may be a
 * later row.)
 */
SKV_INLINE uint32_t skv_correction_row(const struct skv_kseq *s, const struct skv_sparse *sp, uint32_t p)
{
	const uint32_t at = skv_first_row(s, p, sp->gamma);
	const uint32_t last = sp->segment ? skv_first_row(s, p, sp->segment) + SKV_MINFERENCE_ROWS - 1 : 0;

	return last > at ? last : at;
}

/* The offset of the saved queries in a set, in bytes, and the number of pages of a set. */
SKV_INLINE size_t skv_saved_queries_offset(const struct skv_shape *sh, const struct skv_sparse *sp)
{
	return sp->delta ? (size_t)sh->n_heads * sh->head_dim * sizeof(float) : 0;
}
SKV_INLINE uint32_t skv_saved_pages(const struct skv_shape *sh, const struct skv_sparse *sp)
{
	const size_t row = (size_t)sh->n_heads * sh->head_dim * skv_dtype_bytes(sh->io_dtype), room = skv_page_room(sh);

	return (uint32_t)((skv_saved_queries_offset(sh, sp) + sp->n_saved_queries * row + room - 1) / room);
}

/*
 * Returns the address of byte `at` of a set of saved queries. The elements of a head never cross a page boundary. The
 * pages of the set must be resident.
 */
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
