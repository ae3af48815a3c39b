/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/prompt.h - a prompt of one sequence in one layer, after a prefix that also has K and V.
 *
 * Rows of q and k are random, except for their first elements, which rotate slowly with the position, as with rotary
 * embeddings. So weights fall with the distance, and distances of similar weight are adjacent, as in models. Pages
 * are in random order.
 */
#ifndef SKV_BENCH_PROMPT_H
#define SKV_BENCH_PROMPT_H

#include "bench/kernel-fixture.h"
#include "kernels/prefill.h"

struct prompt {
	struct kernel_fixture fixture;       /* from fixture_open(): without sequences */
	uint32_t prefix, end; /* the prompt is tokens [prefix, end) */
	skv_pte *table;       /* the layer's page table; then (number sh.saved) that of saved prefill queries */
	uint32_t stride;
	void *q, *out; /* rows of the prompt, all heads */
};

/* Returns 0, or -1 after printing on stderr why there is no pool. Other failed allocations end the program. */
int prompt_init(struct prompt *, const struct fixture_options *, struct skv_shape, uint32_t tokens, uint32_t prefix);
void prompt_deinit(struct prompt *);

/*
 * Divides tokens [from, to) into calls of up to `step` rows. *ret_host: in host memory, which the caller frees;
 * *ret_seq: a copy in the kernels' memory. Returns the number of calls.
 */
uint32_t prompt_cut(struct prompt *, uint32_t from, uint32_t to, uint32_t step, struct skv_kseq **ret_host,
                    struct skv_kseq **ret_seq);

/* Replaces the scratch memory with `bytes` zeros. */
void prompt_scratch(struct prompt *, size_t bytes);

/* Copies to or from the kernels' memory. */
void prompt_copy(struct kernel_fixture *, void *to, const void *from, size_t bytes);

#endif
