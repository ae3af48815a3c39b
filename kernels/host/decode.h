/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/decode.h - a decode call in progress, shared by decode.c and evidence.c.
 */
#ifndef SKV_HOST_DECODE_H
#define SKV_HOST_DECODE_H

#include "kernels/host/host.h"

#define CHUNK_PAGES 32u
#define CHUNK_TOKENS (CHUNK_PAGES * SKV_PAGE_TOKENS)
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

	uint32_t group, row_bytes, ahead, part_stride;
	uint32_t *first; /* items before owner seq * n_kv_heads + kv head */
	float *part;     /* [item][group][part_stride] */
	float *raw;      /* [seq][n_heads][raw_stride]: scores, a chunk's resident tokens moved together; may be NULL */
	size_t raw_stride;
	float *lse; /* [seq][n_heads], log2; goes with raw */
};

/* Fill d->ev's token and page from the scores and lse. */
void ISA(evidence)(struct decode *d, int threads);
#endif
