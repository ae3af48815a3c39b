/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/sparse.h - rows of prompts that do not see all: what kernels are told of them, and what follows from that alone. */
#ifndef SKV_SPARSE_H
#define SKV_SPARSE_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Lists of tiles: tile j of sequence i is the j-th from that on that the call's first row is in. Ascending ids of units of
 * `unit` tokens, unit u being tokens [u unit, (u + 1) unit). What rows see anyhow - sinks, window, own tile - is not listed.
 */
struct skv_tiles {
	uint32_t rows;   /* lists a tile: n_kv_heads or n_heads */
	uint32_t tiles;  /* of a sequence, at least skv_tiles_most() */
	uint32_t stride; /* elements reserved for a list */
	uint32_t unit;   /* 1, 8 or 64 */
	uint32_t *ids;   /* [seq][tiles][rows][stride] */
	uint32_t *count; /* [seq][tiles][rows] */
	bool mapped;     /* rows = n_kv_heads: kv head h has list map[h], of a list's readers alone */
	uint8_t map[SKV_MAX_HEADS];
};

/* Tiles that so many rows lie in, at most. */
SKV_INLINE uint32_t skv_tiles_most(uint32_t max_q, uint32_t tile)
{
	return (max_q + tile - 2) / tile + 1;
}

/*
 * How rows of prompts attend: struct skv_prefill (policy.h) for kernels. A row is the position p of its token;
 * skv_begin(s, p, x) says which row speaks for it. Dense are rows
 *     from s->dense on,
 *     with gamma: p = skv_begin(s, p, gamma),
 *     with segment: p - skv_begin(s, p, segment) < SKV_MINFERENCE_ROWS.
 * Any other row sees of the tokens t <= p those with
 *     t < sinks;  t + window > p, or with by_tile t + window >= p - p % tile;  a unit in its tile's lists.
 *
 * What later calls need of these rows is kept in pages of the pool, which the layer's table `kept` names: two sets, as of
 * notes, of skv_kept_pages() pages each. A call reads set s->set ^ 1 if s->prompt < len - n_q, and writes set s->set if
 * s->later. A set is, in bytes from its first page's beginning: with `delta` the difference that the next row gets, if its
 * speaker has come, fp32 [n_heads][head_dim]; then `kept_rows` queries of io_dtype, [kept_rows][n_heads][head_dim]: with
 * segment, of the first rows of the segment that the call's last row is in, as far as they have come; else of the row
 * skv_begin(s, last row, tile).
 */
struct skv_sparse {
	uint32_t tile;      /* tokens: a power of two from 16 to 128 */
	uint32_t sinks, window;
	bool by_tile;
	bool delta;         /* rows that are not dense get the difference, dense - sparse, of row skv_speaker(s, sp, p) */
	uint32_t gamma;     /* 0: none; a power of two */
	uint32_t segment;   /* 0: none; a power of two, at least 2 SKV_MINFERENCE_ROWS */
	uint32_t kept_rows; /* 0, 1, or SKV_MINFERENCE_ROWS */
	const struct skv_tiles *units, *more; /* NULL: none. `more` has as many rows, and unit 1 */
};

/* The row of a prompt that speaks for row p where every x-th does. */
SKV_INLINE uint32_t skv_begin(const struct skv_kseq *s, uint32_t p, uint32_t x)
{
	const uint32_t at = p - p % x;

	return at > s->prompt ? at : s->prompt;
}

/* Is row p of a prompt dense? */
SKV_INLINE bool skv_row_dense(const struct skv_kseq *s, const struct skv_sparse *sp, uint32_t p)
{
	return p >= s->dense || (sp->gamma && p == skv_begin(s, p, sp->gamma)) ||
	       (sp->segment && p - skv_begin(s, p, sp->segment) < SKV_MINFERENCE_ROWS);
}

/*
 * The row whose difference row p gets if it is not dense. Of a segment no list is known before the last of its dense rows:
 * so none before it speaks. (Of dense rows the answer may be a later row.)
 */
SKV_INLINE uint32_t skv_speaker(const struct skv_kseq *s, const struct skv_sparse *sp, uint32_t p)
{
	const uint32_t at = skv_begin(s, p, sp->gamma);
	const uint32_t last = sp->segment ? skv_begin(s, p, sp->segment) + SKV_MINFERENCE_ROWS - 1 : 0;

	return last > at ? last : at;
}

/* Where the kept queries begin in a set, its bytes, and its pages. */
SKV_INLINE size_t skv_kept_queries(const struct skv_shape *sh, const struct skv_sparse *sp)
{
	return sp->delta ? (size_t)sh->n_heads * sh->head_dim * sizeof(float) : 0;
}
SKV_INLINE uint32_t skv_kept_pages(const struct skv_shape *sh, const struct skv_sparse *sp)
{
	const size_t row = (size_t)sh->n_heads * sh->head_dim * skv_dtype_bytes(sh->io_dtype);

	return (uint32_t)((skv_kept_queries(sh, sp) + sp->kept_rows * row + sh->page_bytes - 1) / sh->page_bytes);
}

/* Byte `at` of a set; a head's elements are never in two pages. The pages must be resident. */
SKV_INLINE void *skv_kept_at(const struct skv_shape *sh, const struct skv_kseq *s, const struct skv_sparse *sp, uint32_t set,
                             size_t at)
{
	const skv_pte *table = s->table + (size_t)sh->kept * s->layer_stride;
	const skv_pte entry = table[set * skv_kept_pages(sh, sp) + at / sh->page_bytes];

	return sh->pool + skv_pte_id(entry) * sh->page_bytes + at % sh->page_bytes;
}

#ifdef __cplusplus
}
#endif
#endif
