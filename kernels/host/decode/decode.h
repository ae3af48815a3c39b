/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/decode/decode.h - a decode call in progress, shared by decode.c and evidence.c.
 */
#ifndef SKV_HOST_DECODE_H
#define SKV_HOST_DECODE_H

#include "kernels/host/runtime/host.h"

#define CHUNK 256u         /* tokens of a chunk, at most */
#define CHUNK_RUN 8u       /* chunks of one owner that a thread takes in one go, at most */
#define EVIDENCE_BYTES ((size_t)64 << 20)

enum decode_what { DECODE_DENSE, DECODE_WINDOW, DECODE_PAGES, DECODE_TOKENS };

struct decode {
	const struct skv_shape *sh;
	const struct skv_kseq *seq;
	uint32_t n, max_len;
	const float *q;
	float *out;
	enum decode_what what;
	const struct skv_window *window; /* DECODE_WINDOW */
	const struct skv_list *list;     /* DECODE_PAGES, DECODE_TOKENS */
	const struct skv_evidence *ev;
	bool keys; /* evidence without output: out is NULL, V is not read, nothing counts as attended */

	/*
	 * An owner is what has a selection of its own: a sequence, or a kv head or q head of one where lists are.
	 * Owner o is number o % splits of sequence o / splits; it has `group` q heads of each of `span` kv heads.
	 */
	uint32_t splits, span, group;
	uint32_t row_bytes, tile;
	struct {
		uint8_t first, n;
	} tuple[SKV_MAX_HEADS / 4 + 2]; /* a group's q heads, as they are taken together: 4, 2 or 1 */
	uint32_t tuples;
	uint32_t ahead;  /* strips to prefetch ahead */
	uint32_t run;    /* chunks that a thread takes in one go */
	uint32_t *start; /* [seq]: where the window begins to be recent; NULL without one */
	uint32_t *first; /* [owners + 1]: chunks before an owner's */
	uint32_t *first_run; /* [owners + 1]: runs of chunks before an owner's */
	float *part;     /* partial results, part_floats() of a chunk */
	float *raw;      /* [seq][n_heads][raw_stride]: scores, a chunk's tokens without gaps; may be NULL */
	size_t raw_stride;
	float *lse; /* [seq][n_heads], log2; goes with raw */
};

/* Units (pages, tokens) of one of an owner's chunks: [*ret_from, *ret_to). All about equally many. */
static inline void decode_chunk(const struct decode *d, uint32_t owner, uint32_t chunk, uint32_t units,
                                uint32_t *ret_from, uint32_t *ret_to)
{
	uint32_t n = d->first[owner + 1] - d->first[owner];
	uint32_t step = d->what == DECODE_TOKENS ? d->tile : d->tile / SKV_PAGE_TOKENS;
	uint32_t size = ((units + n - 1) / n + step - 1) / step * step;
	*ret_from = chunk * size;
	*ret_to = skv_min(*ret_from + size, units);
}

/* Fill d->ev's token and page from the scores and lse. */
void ISA(evidence)(struct decode *d, int threads);
#endif
