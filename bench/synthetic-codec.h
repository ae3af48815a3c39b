/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/synthetic-codec.h - what compressing policies are measured with: codecs of random weights, as the speed does
 * not depend on them, and rows of K and V, which may have a structure, as what is near to what decides where kernels
 * read.
 */
#ifndef SKV_BENCH_SYNTHETIC_CODEC_H
#define SKV_BENCH_SYNTHETIC_CODEC_H

#include <stdbool.h>
#include <sparsekv/types.h>

/*
 * Write a codec for deltakv of all the model's layers, of the sizes in the paper: codes of a quarter of K and V, a
 * hidden layer of three halves, a linear decoder. `path` (of `room` bytes) is a new file, gone with the program. The
 * program ends where that fails.
 */
void synthetic_codec(const struct skv_model *, char *path, size_t room);

enum synthetic_rows {
	SYNTHETIC_RANDOM,    /* no token is near to another */
	SYNTHETIC_CLUSTERED, /* each is near to one of 256 centres, before rotary positions */
};

/*
 * K (`v`: V) of the first `tokens` tokens, [tokens][n_kv_heads][head_dim] of the io dtype, K turned to its position.
 * The caller's to free; NULL: no memory.
 */
void *synthetic_rows(const struct skv_model *, enum synthetic_rows, bool v, uint32_t tokens);

#endif
