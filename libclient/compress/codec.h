/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/compress/codec.h - codecs: files with the weights by which a policy compresses tokens, read into memory for
 * the kernels.
 *
 * A codec's file is untrusted. codec_read() reads it whole and checks everything in it, each number included, before
 * use. Later changes of the file have no effect.
 */
#ifndef SKV_CLIENT_COMPRESS_CODEC_H
#define SKV_CLIENT_COMPRESS_CODEC_H

#include <stddef.h>
#include <stdint.h>
#include <sparsekv/policy.h>

#define CODEC_BYTES_MAX ((size_t)8 << 30) /* maximum size of a codec's file */

/*
 * The codec of one layer. Matrices are [out][in] and fp32, in codec.weights; a pointer is NULL if the layer has no such
 * matrix.
 */
struct codec_layer {
	const float *in;   /* [2 hidden][d]: row 2i is row i of the encoder's gate, row 2i + 1 is row i of up */
	const float *down; /* [width][hidden], or [width][d] without a hidden layer */
	const float *open; /* [wide][width] */
	const float *out;  /* [d][wide], or [d][width] */
	const float *k_norm; /* weights of the model's norm of K; NULL: K are not normed again */
};

struct codec {
	uint64_t fingerprint; /* hash of the whole file; never 0 */
	uint32_t d, head_dim, width;
	/* sizes of the encoder's and the decoder's hidden layer; 0: the codec has no such hidden layer */
	uint32_t hidden, wide;
	uint32_t stride, near; /* stride, and references of a token, with which the codec was trained */
	uint32_t n_layers;
	float *weights;
	struct codec_layer layer[]; /* all pointers are NULL in layers that were not read */
};

/*
 * Read a codec's file for a model of n_layers layers, with d elements of K and V in a token and head_dim in a head.
 * `compress`: the layers that are read, which the file must have. Returns 0 and *ret, which codec_free() frees, or a
 * negative errno with a text that names file and tensor: -EBADMSG if something is malformed or does not fit, -EFBIG,
 * -ENOMEM, or the errno of opening it.
 */
int codec_read(const char *path, uint32_t d, uint32_t head_dim, uint32_t n_layers, const struct skv_layer_set *compress,
               struct codec **ret, char *err, size_t err_len);
void codec_free(struct codec *c);
void codec_forget(struct codec *c); /* frees the codec's weights, not the codec; NULL is fine */

#endif
