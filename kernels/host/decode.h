/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/decode.h - a decode call in progress, shared by decode.c and evidence.c.
 */
#ifndef SKV_HOST_DECODE_H
#define SKV_HOST_DECODE_H

#include "kernels/host/host.h"

#define CHUNK_MAX 512u /* tokens */
#define CHUNK_MIN 128u
#define CHUNK_BYTES ((size_t)1 << 20) /* of K and V that a chunk reads, roughly */
#define EVIDENCE_BYTES ((size_t)64 << 20)

enum decode_what { DECODE_DENSE, DECODE_WINDOW, DECODE_PAGES, DECODE_TOKENS };

struct decode {
	const struct skv_shape *sh;
	const struct skv_kseq *seq;
	uint32_t n;
	const float *q;
	float *out;
	enum decode_what what;
	const uint32_t *sinks, *start; /* DECODE_WINDOW */
	const struct skv_list *list;   /* DECODE_PAGES, DECODE_TOKENS */
	const struct skv_evidence *ev;

	/*
	 * An owner is what has a selection of its own: a sequence, or one kv head of a sequence where
	 * lists are per kv head. Owner o is sequence o / splits and its kv heads [o % splits * span, + span).
	 */
	uint32_t splits, span;
	uint32_t group, row_bytes, tile;
	uint32_t chunk;  /* units of a chunk, at most */
	uint32_t *first; /* [owners + 1]: chunks before an owner's */
	float *part;     /* partial results, part_floats() of a chunk */
	float *raw;      /* [seq][n_heads][raw_stride]: scores, a chunk's resident tokens moved together; may be NULL */
	size_t raw_stride;
	float *lse; /* [seq][n_heads], log2; goes with raw */
};

/* The units [from, to) of one of an owner's chunks: all of them about equally large. */
static inline void decode_chunk(const struct decode *d, uint32_t owner, uint32_t chunk, uint32_t units, uint32_t *ret_from,
                                uint32_t *ret_to)
{
	uint32_t n = d->first[owner + 1] - d->first[owner], step = d->what == DECODE_TOKENS ? 64 : 4;
	uint32_t size = ((units + n - 1) / n + step - 1) / step * step;
	*ret_from = chunk * size;
	*ret_to = skv_min(*ret_from + size, units);
}

/* Fill d->ev's token and page from the scores and lse. */
void ISA(evidence)(struct decode *d, int threads);
#endif
