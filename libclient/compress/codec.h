/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/compress/codec.h - codecs: files of a policy that compresses tokens (struct skv_compress), as the kernels
 * take them.
 *
 * A file comes from anywhere: it is read whole, and nothing of it is believed before it was checked, every number of it
 * too. What was read does not change any more, whatever becomes of the file.
 */
#ifndef SKV_LIBCLIENT_CODEC_H
#define SKV_LIBCLIENT_CODEC_H

#include <stddef.h>
#include <stdint.h>
#include <sparsekv/policy.h>

#define CODEC_BYTES_MAX ((size_t)8 << 30) /* of a file */

/* Matrices are [out][in], all is fp32, in `weights`; NULL where there is none. */
struct codec_layer {
	const float *in;   /* E's gate and up: row 2i is gate's row i, row 2i + 1 up's; [2 hidden][d] */
	const float *down; /* [width][hidden], or [width][d] without a hidden layer */
	const float *open; /* [wide][width] */
	const float *out;  /* [d][wide], or [d][width] */
	const float *k_norm; /* [head_dim]; layers of a file may have it or not */
};

struct codec {
	uint64_t fingerprint; /* of the whole file; never 0 */
	uint32_t d, head_dim, width;
	uint32_t hidden, wide; /* 0: no such layer */
	uint32_t stride, near; /* of the references that it was made with */
	uint32_t n_layers;
	float *weights;
	struct codec_layer layer[]; /* all NULL where the file has none */
};

/*
 * Read the file for a model of n_layers layers whose x has d elements, head_dim in each head; `compress` are the
 * layers that it must have. 0 and *ret, to be freed, or a negative errno with a text that names file and tensor:
 * -EBADMSG for what is malformed or does not fit, -EFBIG, -ENOMEM, what opening it said.
 */
int codec_read(const char *path, uint32_t d, uint32_t head_dim, uint32_t n_layers, const struct skv_layer_set *compress,
               struct codec **ret, char *err, size_t err_len);
void codec_free(struct codec *c);
void codec_forget(struct codec *c); /* its weights; NULL is fine */

#endif
