/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/prompt.h - makes a prompt for measuring prefill kernels: the rows of one sequence in one layer, and K and V of
 * a prefix before them.
 *
 * Rows of q and k are random, except for their first elements, which rotate slowly with the position, as with rotary
 * embeddings. So the attention weight of a token falls with its distance, and tokens of similar weight are adjacent, as
 * in models. The pages are in random order.
 */
#ifndef SKV_BENCH_PROMPT_H
#define SKV_BENCH_PROMPT_H

#include "bench/kernel-fixture.h"
#include "kernels/prefill.h"

struct prompt {
	struct kernel_fixture fixture;       /* from fixture_open(): a pool without sequences */
	uint32_t prefix, end; /* the prompt consists of the tokens [prefix, end); the prefix of those before */
	skv_pte *table; /* page table of the layer; then, as number sh.saved, the page table of saved prefill queries */
	uint32_t stride;
	void *q, *out; /* rows of the prompt with all heads */
};

/*
 * Returns 0, or -1 after printing on stderr why a pool could not be made. Any other failed allocation ends the program.
 */
int prompt_init(struct prompt *, const struct fixture_options *, struct skv_shape, uint32_t tokens, uint32_t prefix);
void prompt_deinit(struct prompt *);

/*
 * Divides the tokens [from, to) into chunks of up to `step` rows, one for each call of a kernel. *ret_host describes
 * the chunks in host memory, which the caller frees; *ret_seq is a copy in the kernels' memory. Returns the number of
 * chunks.
 */
uint32_t prompt_cut(struct prompt *, uint32_t from, uint32_t to, uint32_t step, struct skv_kseq **ret_host,
                    struct skv_kseq **ret_seq);

/* Replaces the fixture's scratch memory with `bytes` of zeros. */
void prompt_scratch(struct prompt *, size_t bytes);

/* Copies host memory to the kernels' memory, or the other way. */
void prompt_copy(struct kernel_fixture *, void *to, const void *from, size_t bytes);

#endif
