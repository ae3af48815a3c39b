/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/compress/compressor-device.c - copies the numbers of a codec to a device's memory. */
#include "libclient/compress/compressor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/compress/codec.h"
#include "libclient/device/device.h"
#include "libclient/error.h"
#include "libclient/session.h"

#define PARTS 5u /* arrays of a layer: matrices, k_norm */

/* Copy `bytes` bytes to the device's memory; compressor_free() frees the copy. */
static int to_device(struct compressor *k, const void *from, size_t bytes, const void **ret)
{
	const struct skv_backend *b = k->backend;
	void *there;
	int e = b->alloc(bytes, &there);

	if (e == 0) {
		k->held[k->n_held++] = there;
		e = b->copy(there, from, bytes, NULL);
	}
	if (e == 0)
		e = b->wait(NULL);
	if (e < 0)
		return error_set(e, "compressor %.150s: %zu bytes on the device: %s", k->path, bytes, b->error());
	*ret = there;
	return 0;
}

static uint16_t to_bf16(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits)); /* finite: the file was checked */
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Replace a matrix of n numbers, if there is one, by a bf16 copy in the device's memory. */
static int matrix_to_device(struct compressor *k, const void **matrix, size_t n)
{
	const float *from = *matrix;
	uint16_t *narrow;
	int e;

	if (!from)
		return 0;
	narrow = malloc(n * sizeof(*narrow));
	if (!narrow)
		return error_set(-ENOMEM, "compressor %.150s: no memory for %zu numbers", k->path, n);
	for (size_t i = 0; i < n; i++)
		narrow[i] = to_bf16(from[i]);
	e = to_device(k, narrow, n * sizeof(*narrow), matrix);
	free(narrow);
	return e;
}

/* k_norm is copied as fp32. */
static int norm_to_device(struct compressor *k, const float **norm, size_t n)
{
	const void *there = NULL;
	int e = *norm ? to_device(k, *norm, n * sizeof(**norm), &there) : 0;

	*norm = there;
	return e;
}

static int code_to_device(struct compressor *k, struct skv_codec *c, size_t d, size_t head_dim)
{
	const size_t parts = c->spans ? 2 * c->spans : 1, from = c->enc_hidden ? c->enc_hidden : d, to = c->dec_hidden ? c->dec_hidden : c->width;
	int e = matrix_to_device(k, &c->enc_in, 2 * c->enc_hidden * d);

	if (e == 0)
		e = matrix_to_device(k, &c->enc_out, c->width * from / parts);
	if (e == 0)
		e = matrix_to_device(k, &c->dec_in, (size_t)c->dec_hidden * c->width);
	if (e == 0)
		e = norm_to_device(k, &c->k_norm, head_dim);
	return e < 0 ? e : matrix_to_device(k, &c->dec_out, d * to / parts);
}

int compressor_to_device(const struct skv_session *s, struct compressor *k)
{
	const uint32_t layers = s->model.n_layers;
	const void *turn = NULL;
	int e;

	k->held = calloc(1 + (size_t)layers * PARTS, sizeof(*k->held));
	if (!k->held)
		return error_set(-ENOMEM, "out of memory");
	k->backend = s->device->backend;
	k->device = s->device->number;
	e = to_device(k, k->turn, s->model.head_dim / 2 * sizeof(*k->turn), &turn);
	for (uint32_t layer = 0; layer < layers && e == 0; layer++) {
		k->layer[layer].code.rope_freq = turn;
		e = code_to_device(k, &k->layer[layer].code, skv_token_dims(&s->shape) * s->model.n_ranks, s->model.head_dim);
	}
	codec_forget(k->codec);
	return e;
}
