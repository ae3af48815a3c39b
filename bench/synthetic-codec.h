/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/synthetic-codec.h - inputs for measuring compressing policies: codecs of random weights, because the speed
 * does not depend on them, and rows of K and V, optionally clustered, because nearness determines which references
 * kernels read.
 */
#ifndef SKV_BENCH_SYNTHETIC_CODEC_H
#define SKV_BENCH_SYNTHETIC_CODEC_H

#include <stdbool.h>
#include <sparsekv/types.h>

/*
 * Writes a codec for deltakv with all the model's layers, in the paper's sizes: codes of a quarter of K and V, a
 * hidden layer of three halves, a linear decoder. `path` (of `room` bytes) is set to a new file, which is removed
 * when the program exits. Ends the program on failure.
 */
void synthetic_codec(const struct skv_model *, char *path, size_t room);

enum synthetic_rows {
	SYNTHETIC_RANDOM,    /* no token is near another */
	SYNTHETIC_CLUSTERED, /* each token is near one of 256 centres, before the rotary embedding */
};

/*
 * Returns K (`v`: V) of the first `tokens` tokens, [tokens][n_kv_heads][head_dim] in the io dtype. K includes rotary
 * positions. The caller frees it; NULL: no memory.
 */
void *synthetic_rows(const struct skv_model *, enum synthetic_rows, bool v, uint32_t tokens);

#endif
