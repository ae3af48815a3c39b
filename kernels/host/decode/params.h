/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/decode/params.h - parameters of a decode call, shared by decode.c, merge.c and scores.c.
 */
#ifndef SKV_HOST_DECODE_PARAMS_H
#define SKV_HOST_DECODE_PARAMS_H

#include "kernels/compress.h"
#include "kernels/host/runtime/host.h"
#include "kernels/select.h"

#define CHUNK 256u         /* largest number of tokens of a chunk */
#define CHUNK_RUN 8u       /* largest number of consecutive chunks of a request that a thread takes at once */
#define RAW_BYTES ((size_t)64 << 20) /* largest size of the raw scores held at a time, unless one sequence needs more */

/* How a call chooses the tokens to which it attends. */
enum kv_source { KV_DENSE, KV_WINDOW, KV_PAGES, KV_TOKENS };

struct decode_params {
	const struct skv_shape *sh;
	const struct skv_kseq *seq;
	uint32_t n, max_len;
	const float *q;
	float *out;
	enum kv_source source;
	const struct skv_window *window; /* with KV_WINDOW */
	const struct skv_index_list *list;     /* with KV_PAGES and KV_TOKENS */
	const struct skv_scores *scores;
	bool keys; /* only scores are computed: out is NULL, V is not read, and no token counts as attended to */

	/*
	 * A request is what has a list of its own: a sequence, or a kv head or q head of a sequence if lists are per
	 * head. Request r is number r % splits of sequence r / splits. A request has `span` kv heads and, of each of
	 * these, `group` q heads.
	 */
	uint32_t splits, span, group;
	uint32_t row_bytes, tile;
	size_t scales_at; /* with fp8: offset of the rows' scales from a page's start; else 0 */
	struct {
		uint8_t first, n;
	} tuple[SKV_MAX_HEADS / 4 + 2]; /* sets of a group's q heads that are processed together: 4, 2 or 1 */
	uint32_t tuples;
	uint32_t ahead;  /* number of strips that are prefetched ahead */
	uint32_t run;    /* number of consecutive chunks that a thread takes at once */
	uint32_t *start; /* [seq]: token at which the window's recent part begins; NULL without a window */
	uint32_t *first; /* [requests + 1]: number of chunks before those of each request */
	uint32_t *first_run; /* [requests + 1]: number of runs (consecutive chunks) before those of each request */
	float *part;     /* partial results of all chunks, partial_floats() floats for each chunk */
	/* [seq][n_heads][raw_stride]: raw scores, where the tokens of each chunk are without gaps; NULL: not needed */
	float *raw;
	size_t raw_stride;
	float *lse; /* [seq][n_heads]: log2 of the softmax denominator; NULL if `raw` is */
};

/*
 * Stores the range [*ret_from, *ret_to) of a chunk among the pages or tokens to which a request attends. The chunks of
 * a request have about the same size.
 */
static inline void decode_chunk(const struct decode_params *d, uint32_t request, uint32_t chunk, uint32_t units,
                                uint32_t *ret_from, uint32_t *ret_to)
{
	uint32_t n = d->first[request + 1] - d->first[request];
	uint32_t step = d->source == KV_TOKENS ? d->tile : d->tile / SKV_PAGE_TOKENS;
	uint32_t size = ((units + n - 1) / n + step - 1) / step * step;
	*ret_from = chunk * size;
	*ret_to = skv_min(*ret_from + size, units);
}

/*
 * The partial result of a chunk for each q head of its request, where heads are numbered from the request's first kv
 * head on.
 */
struct partial {
	float *acc; /* [heads][head_dim]: Σ 2^(score - max) v over the chunk's tokens */
	float *max; /* [heads]: the largest score, in units of log2; -INFINITY if the chunk has no token */
	float *sum; /* [heads]: Σ 2^(score - max) over the chunk's tokens */
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

/* Merges the partial results of each request's chunks into the outputs and the log-sum-exps. */
void ISA(merge_partials)(struct decode_params *d, int threads);

/* Fills the token and page scores of d->scores from the raw scores and the log-sum-exps. */
void ISA(reduce_scores)(struct decode_params *d, int threads);
#endif
