/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/host/prefill/tiles.h - tiles of prompts, their lists, and saved queries, for the files of sparse prefill. */
#ifndef SKV_HOST_TILES_H
#define SKV_HOST_TILES_H

#include "kernels/host/runtime/host.h"
#include "kernels/prefill.h"

/* Returns the position of the call's first row. */
static inline uint32_t call_start(const struct skv_kseq *s)
{
	return s->len - s->n_q;
}

/* Returns the number of tiles of `tile` tokens that contain rows of the call. */
static inline uint32_t tiles_of(const struct skv_kseq *s, uint32_t tile)
{
	return (s->len - 1) / tile - call_start(s) / tile + 1;
}

/* Returns the index of a list in struct skv_tile_lists: that of list `row` of tile j of sequence i. */
static inline size_t list_of(const struct skv_tile_lists *t, uint32_t i, uint32_t j, uint32_t row)
{
	return ((size_t)i * t->tiles + j) * t->rows + row;
}

/*
 * Returns the query of row p for a q head: from q if the row belongs to this call, else query number `saved` of those
 * that the previous call saved. Saved queries are fp32, like all rows on the host.
 */
static inline const float *query_of(const struct skv_shape *sh, const struct skv_kseq *s, const struct skv_sparse *sp,
                                    const float *q, uint32_t p, uint32_t saved, uint32_t head)
{
	const size_t at = ((size_t)saved * sh->n_heads + head) * sh->head_dim * sizeof(float);

	if (p >= call_start(s))
		return q + ((size_t)(s->row + p - call_start(s)) * sh->n_heads + head) * sh->head_dim;
	return skv_saved_at(sh, s, sp, s->set ^ 1, skv_saved_queries_offset(sh, sp) + at);
}
#endif
