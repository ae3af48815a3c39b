/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/compress/codec.h - codecs: files of policies that compress tokens, as the kernels take them.
 *
 * A file is untrusted. It is read whole, and everything in it, each number included, is checked before it is used.
 * Later changes of the file have no effect.
 */
#ifndef SKV_CLIENT_COMPRESS_CODEC_H
#define SKV_CLIENT_COMPRESS_CODEC_H

#include <stddef.h>
#include <stdint.h>
#include <sparsekv/policy.h>

#define CODEC_BYTES_MAX ((size_t)8 << 30) /* of a file */

/* Matrices are [out][in]. All numbers are fp32, in codec.weights; NULL: the layer has none. */
struct codec_layer {
	const float *in;   /* [2 hidden][d]: row 2i is row i of the encoder's gate, row 2i + 1 is row i of up */
	const float *down; /* [width][hidden], or [width][d] without a hidden layer */
	const float *open; /* [wide][width] */
	const float *out;  /* [d][wide], or [d][width] */
	const float *k_norm; /* [head_dim]; optional for each layer */
};

struct codec {
	uint64_t fingerprint; /* of the whole file; never 0 */
	uint32_t d, head_dim, width;
	uint32_t hidden, wide; /* 0: no such layer */
	uint32_t stride, near; /* of the references that it was trained with */
	uint32_t n_layers;
	float *weights;
	struct codec_layer layer[]; /* all NULL where the file has none */
};

/*
 * Read the file for a model of n_layers layers whose x has d elements, head_dim in each head. `compress`: the layers
 * that the file must have. Returns 0 and *ret, which codec_free() frees, or a negative errno with a text that names
 * file and tensor: -EBADMSG if something is malformed or does not fit, -EFBIG, -ENOMEM, or the errno of opening it.
 */
int codec_read(const char *path, uint32_t d, uint32_t head_dim, uint32_t n_layers, const struct skv_layer_set *compress,
               struct codec **ret, char *err, size_t err_len);
void codec_free(struct codec *c);
void codec_forget(struct codec *c); /* frees its weights; NULL is fine */

#endif
