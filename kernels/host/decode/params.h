/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/decode/params.h - parameters of a decode call, shared by decode.c, merge.c and scores.c.
 */
#ifndef SKV_HOST_DECODE_PARAMS_H
#define SKV_HOST_DECODE_PARAMS_H

#include "kernels/compress.h"
#include "kernels/host/runtime/host.h"
#include "kernels/select.h"

#define CHUNK 256u         /* maximum number of tokens of a chunk */
#define CHUNK_RUN 8u       /* maximum number of consecutive chunks of a request that a thread takes */
#define RAW_BYTES ((size_t)64 << 20) /* maximum size of the raw scores held at a time */

/* Which tokens a call attends to. */
enum kv_source { KV_DENSE, KV_WINDOW, KV_PAGES, KV_TOKENS };

struct decode_params {
	const struct skv_shape *sh;
	const struct skv_kseq *seq;
	uint32_t n, max_len;
	const float *q;
	float *out;
	enum kv_source source;
	const struct skv_window *window; /* KV_WINDOW */
	const struct skv_index_list *list;     /* KV_PAGES, KV_TOKENS */
	const struct skv_scores *scores;
	bool keys; /* only scores: out is NULL, V is not read, no token counts as attended to */

	/*
	 * A request has a selection of its own: it is a sequence, or a kv head or q head of a sequence if lists are per
	 * head. Request r is number r % splits of sequence r / splits; it has `group` q heads of each of `span` kv
	 * heads.
	 */
	uint32_t splits, span, group;
	uint32_t row_bytes, tile;
	size_t scales_at; /* fp8: offset of the rows' scales from a page's start; else 0 */
	struct {
		uint8_t first, n;
	} tuple[SKV_MAX_HEADS / 4 + 2]; /* a group's q heads that are processed together: 4, 2 or 1 */
	uint32_t tuples;
	uint32_t ahead;  /* strips to prefetch ahead */
	uint32_t run;    /* consecutive chunks that a thread takes */
	uint32_t *start; /* [seq]: where the window's recent part begins; NULL without a window */
	uint32_t *first; /* [requests + 1]: number of chunks before those of a request */
	uint32_t *first_run; /* [requests + 1]: number of runs of chunks before those of a request */
	float *part;     /* partial results, partial_floats() for each chunk */
	float *raw;      /* [seq][n_heads][raw_stride]: scores, a chunk's tokens without gaps; may be NULL */
	size_t raw_stride;
	float *lse; /* [seq][n_heads]: log2 of the softmax's denominator; goes with raw */
};

/* Pages or tokens [*ret_from, *ret_to) of one of a request's chunks. Chunks have about the same size. */
static inline void decode_chunk(const struct decode_params *d, uint32_t request, uint32_t chunk, uint32_t units,
                                uint32_t *ret_from, uint32_t *ret_to)
{
	uint32_t n = d->first[request + 1] - d->first[request];
	uint32_t step = d->source == KV_TOKENS ? d->tile : d->tile / SKV_PAGE_TOKENS;
	uint32_t size = ((units + n - 1) / n + step - 1) / step * step;
	*ret_from = chunk * size;
	*ret_to = skv_min(*ret_from + size, units);
}

/* The partial result of a chunk for each of its q heads (numbered from its first kv head on). */
struct partial {
	float *acc; /* [heads][head_dim]: Σ 2^(score - max) v */
	float *max; /* [heads]: of the scores, in log2; -INFINITY when there was no token */
	float *sum; /* [heads]: Σ 2^(score - max) */
};

static inline size_t partial_floats(const struct skv_shape *sh, uint32_t heads)
{
	return ((size_t)heads * (sh->head_dim + 2) + 15) & ~(size_t)15;
}

static inline struct partial partial_of(const struct decode_params *d, uint32_t chunk)
{
	const uint32_t heads = d->span * d->group;
	float *p = d->part + chunk * partial_floats(d->sh, heads), *tail = p + (size_t)heads * d->sh->head_dim;
	return (struct partial){.acc = p, .max = tail, .sum = tail + heads};
}

/* Merges the partial results of each request's chunks into out and lse. */
void ISA(merge_partials)(struct decode_params *d, int threads);

/* Fills token and page of d->scores from the raw scores and lse. */
void ISA(reduce_scores)(struct decode_params *d, int threads);
#endif
