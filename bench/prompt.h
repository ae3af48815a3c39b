/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/prompt.h - a prompt of one sequence in one layer, behind a prefix whose K and V are there as well.
 *
 * Rows of q and k are random but for their first elements, which turn slowly with the position, as rotary positions do:
 * so weights fall with the distance, and distances of a like weight lie next to each other, as in models. Pages lie in
 * random order.
 */
#ifndef SKV_BENCH_PROMPT_H
#define SKV_BENCH_PROMPT_H

#include "bench/kernel-fixture.h"
#include "kernels/prefill.h"

struct prompt {
	struct kernel_fixture fixture;       /* fixture_open(): no sequences */
	uint32_t prefix, end; /* the prompt is tokens [prefix, end) */
	skv_pte *table;       /* the layer's, then (number sh.kept) that of what it keeps */
	uint32_t stride;
	void *q, *out; /* rows of the prompt; all heads */
};

/* 0, or -1 after saying on stderr why there is no pool. Other memory that is missing ends the program. */
int prompt_init(struct prompt *, const struct fixture_options *, struct skv_shape, uint32_t tokens, uint32_t prefix);
void prompt_deinit(struct prompt *);

/*
 * Tokens [from, to) as a prompt in calls of up to `step`: *ret_host[] in the host's memory, to be freed, and room for
 * them with the same in it where the kernels work. Returns how many.
 */
uint32_t prompt_cut(struct prompt *, uint32_t from, uint32_t to, uint32_t step, struct skv_kseq **ret_host,
                    struct skv_kseq **ret_seq);

/* Scratch of so many bytes, zeros, in place of what there was. */
void prompt_scratch(struct prompt *, size_t bytes);

/* To or from where the kernels work. */
void prompt_copy(struct kernel_fixture *, void *to, const void *from, size_t bytes);

#endif
