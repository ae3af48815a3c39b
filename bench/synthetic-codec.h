/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/synthetic-codec.h - makes inputs for measuring compressing policies: codecs with random weights, because the
 * speed does not depend on the weights; and rows of K and V, which can be clustered, because the distances between
 * tokens determine which references the kernels read.
 */
#ifndef SKV_BENCH_SYNTHETIC_CODEC_H
#define SKV_BENCH_SYNTHETIC_CODEC_H

#include <stdbool.h>
#include <sparsekv/types.h>

/*
 * Writes a codec for deltakv for all layers of the model, with the sizes of the paper: a code has a quarter of the
 * numbers of K and V, the hidden layer has one and a half times that of K and V, and the decoder is linear. `path`
 * (`room` bytes) is set to the name of the new file, which is removed when the program exits. A failure ends the
 * program.
 */
void synthetic_codec(const struct skv_model *, char *path, size_t room);

enum synthetic_rows {
	SYNTHETIC_RANDOM,    /* no token is near another */
	SYNTHETIC_CLUSTERED, /* each token is near one of 256 centres, before the rotary embedding */
};

/*
 * Returns K (if `v` is true: V) of `tokens` tokens, [tokens][n_kv_heads][head_dim] in the model's io_dtype. K includes
 * the rotary embedding. The caller frees it; NULL: no memory.
 */
void *synthetic_rows(const struct skv_model *, enum synthetic_rows, bool v, uint32_t tokens);

#endif
