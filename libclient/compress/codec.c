/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/compress/codec.c - reads the file of a codec.
 *
 * The file has the safetensors format, with metadata sparsekv_codec "1", stride and near. For each layer l that the
 * codec covers, the file has the tensors
 *
 *   layers.l.down   [width][hidden]   layers.l.gate, layers.l.up   [hidden][d]     E(x) = down (silu(gate x) * up x)
 *   layers.l.out    [d][wide]         layers.l.open                [wide][width]   Dec(z) = out silu(open z)
 *
 * If the file has no gate and up, down is [width][d]; if it has no open, out is [d][width]. A layer may also have the
 * tensor
 *
 *   layers.l.k_norm [head_dim]        the weight of the model's norm of K: decompressed K are normed again
 */
#include "libclient/compress/codec.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/refuse.h"
#include "formats/safetensors.h"

#define DIM_MAX 65536u

struct prefill {
	struct skv_safetensors file;
	const char *path;
	char *err; /* receives the error text */
	size_t err_len;
};

#define bad(r, ...) skv_refuse(-EBADMSG, (r)->err, (r)->err_len, "compressor %.150s: " __VA_ARGS__)

/* ---- shapes ---------------------------------------------------------------------------------- */

static void tensor_name(char to[64], uint32_t layer, const char *part)
{
	snprintf(to, 64, "layers.%u.%s", layer, part);
}

static const struct skv_tensor *find(const struct prefill *r, uint32_t layer, const char *part)
{
	char name[64];

	tensor_name(name, layer, part);
	return skv_safetensors_find(&r->file, name);
}

/* Dimension number `which` of a matrix, or 0 if the file has no such matrix or the dimension is above DIM_MAX. */
static uint32_t dim(const struct prefill *r, uint32_t layer, const char *part, int which)
{
	const struct skv_tensor *t = find(r, layer, part);

	return t && t->n_dims == 2 && t->dim[which] <= DIM_MAX ? (uint32_t)t->dim[which] : 0;
}

static int take_number(const struct prefill *r, const char *key, uint32_t most, uint32_t *ret)
{
	const char *text = skv_safetensors_about(&r->file, key);
	char *end;
	unsigned long x;

	if (!text)
		return bad(r, "its metadata has no %s", r->path, key);
	errno = 0;
	x = strtoul(text, &end, 10);
	if (text[0] < '0' || text[0] > '9' || *end || errno || x > most)
		return bad(r, "its metadata has %s \"%.20s\", expected 0 to %u", r->path, key, text, most);
	*ret = (uint32_t)x;
	return 0;
}

/*
 * Read what all layers have in common, from the file's metadata and from the shapes of `layer`, the first layer that is
 * needed.
 */
static int take_shape(const struct prefill *r, uint32_t layer, struct codec *c)
{
	const char *version = skv_safetensors_about(&r->file, "sparsekv_codec");
	int e;

	if (!version || strcmp(version, "1") != 0)
		return bad(r, "sparsekv_codec in its metadata is %.20s, expected 1", r->path,
		           version ? version : "missing");
	e = take_number(r, "stride", 255, &c->stride);
	if (e == 0)
		e = take_number(r, "near", 4, &c->near);
	if (e < 0)
		return e;
	if (!find(r, layer, "down") || !find(r, layer, "out"))
		return bad(r, "layers.%u.down or layers.%u.out is missing", r->path, layer, layer);
	c->width = dim(r, layer, "down", 0);
	c->hidden = find(r, layer, "gate") ? dim(r, layer, "gate", 0) : 0;
	c->wide = find(r, layer, "open") ? dim(r, layer, "open", 0) : 0;
	if (c->width == 0 || c->width % 32 != 0 || c->width > c->d)
		return bad(r, "layers.%u.down: codes of %u numbers, expected a multiple of 32 up to %u", r->path, layer, c->width,
		           c->d);
	if (c->hidden % 64 != 0 || c->wide % 64 != 0 || (c->hidden == 0) != !find(r, layer, "gate") ||
	    (c->wide == 0) != !find(r, layer, "open"))
		return bad(r, "layers.%u: hidden layers of %u and %u numbers, expected multiples of 64", r->path, layer,
		           c->hidden, c->wide);
	return 0;
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Read a matrix of the file into `to`, or a vector if cols is 0. Every number must be finite. */
static int take_matrix(const struct prefill *r, uint32_t layer, const char *part, uint32_t rows, uint32_t cols,
                       float *to)
{
	char name[64], text[256];
	int e;

	tensor_name(name, layer, part);
	e = skv_safetensors_read(&r->file, name, rows, cols, to, text, sizeof(text));
	if (e < 0)
		return skv_refuse(-EBADMSG, r->err, r->err_len, "compressor %s", text);
	for (size_t i = 0; i < (size_t)rows * (cols ? cols : 1); i++)
		if (!isfinite(to[i]))
			return bad(r, "tensor %s: number %zu is not finite", r->path, name, i);
	return 0;
}

/* Read the matrices gate and up into `to`, with their rows interleaved: row i of gate, then row i of up. */
static int take_in(const struct prefill *r, uint32_t layer, uint32_t hidden, uint32_t d, float *to)
{
	static const char *const parts[] = {"gate", "up"};
	float *half = malloc((size_t)hidden * d * sizeof(*half));
	int e = half ? 0 : skv_refuse(-ENOMEM, r->err, r->err_len, "compressor %.150s: no memory", r->path);

	for (uint32_t which = 0; which < 2 && e == 0; which++) {
		e = take_matrix(r, layer, parts[which], hidden, d, half);
		for (uint32_t i = 0; i < hidden && e == 0; i++)
			memcpy(to + (2 * (size_t)i + which) * d, half + (size_t)i * d, d * sizeof(*to));
	}
	free(half);
	return e;
}

/*
 * The number of elements in all matrices of a layer. Each matrix has a multiple of 16 elements, so that rows are
 * aligned.
 */
static size_t layer_numbers(const struct codec *c)
{
	size_t down = (size_t)c->width * (c->hidden ? c->hidden : c->d), out = (size_t)c->d * (c->wide ? c->wide : c->width);

	return 2 * (size_t)c->hidden * c->d + down + (size_t)c->wide * c->width + out;
}

static int take_layer(const struct prefill *r, uint32_t layer, const struct codec *c, float *at,
                      struct codec_layer *ret)
{
	uint32_t from = c->hidden ? c->hidden : c->d, to = c->wide ? c->wide : c->width;
	int e = 0;

	if (c->hidden) {
		ret->in = at;
		e = take_in(r, layer, c->hidden, c->d, at);
		at += 2 * (size_t)c->hidden * c->d;
	} else if (find(r, layer, "gate") || find(r, layer, "up")) {
		e = bad(r, "layers.%u has a hidden layer, others have none", r->path, layer);
	}
	if (e == 0) {
		ret->down = at;
		e = take_matrix(r, layer, "down", c->width, from, at);
		at += (size_t)c->width * from;
	}
	if (e == 0 && c->wide) {
		ret->open = at;
		e = take_matrix(r, layer, "open", c->wide, c->width, at);
		at += (size_t)c->wide * c->width;
	} else if (e == 0 && find(r, layer, "open")) {
		e = bad(r, "layers.%u.open is there, others have none", r->path, layer);
	}
	if (e < 0)
		return e;
	ret->out = at;
	e = take_matrix(r, layer, "out", c->d, to, at);
	if (e < 0 || !find(r, layer, "k_norm"))
		return e;
	at += (size_t)c->d * to;
	ret->k_norm = at;
	return take_matrix(r, layer, "k_norm", c->head_dim, 0, at);
}

static int take_layers(const struct prefill *r, const struct skv_layer_set *compresses, struct codec *c)
{
	size_t each = layer_numbers(c), room = each + c->head_dim, n = 0;
	float *at;
	int e = 0;

	for (uint32_t layer = 0; layer < c->n_layers; layer++) {
		if (skv_layer_in(compresses, layer) && !find(r, layer, "down"))
			return bad(r, "layers.%u.down is missing: it was made for other layers", r->path, layer);
		n += skv_layer_in(compresses, layer);
	}
	/* checked before memory is allocated: a number takes at least 2 bytes in the file */
	if (n * each > r->file.data_bytes / 2)
		return bad(r, "%zu layers of %zu numbers are wanted, it is too short for these", r->path, n, each);
	c->weights = at = aligned_alloc(64, n * room * sizeof(*at));
	if (!at)
		return skv_refuse(-ENOMEM, r->err, r->err_len, "compressor %.150s: no memory for %zu numbers",
		                  r->path, n * room);
	for (uint32_t layer = 0; layer < c->n_layers && e == 0; layer++) {
		if (!skv_layer_in(compresses, layer))
			continue;
		e = take_layer(r, layer, c, at, &c->layer[layer]);
		at += room;
	}
	return e;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* FNV-1a over the file's 64-bit words, the last word padded with zeros, and over the file's length. */
static uint64_t fingerprint(const struct skv_safetensors *file)
{
	const uint8_t *p = file->map;
	uint64_t h = 14695981039346656037u ^ file->map_bytes;

	for (size_t at = 0; at < file->map_bytes; at += 8) {
		uint64_t word = 0;
		size_t left = file->map_bytes - at;

		memcpy(&word, p + at, left < 8 ? left : 8);
		h = (h ^ word) * 1099511628211u;
		h ^= h >> 32; /* multiplication carries changes to higher bits only */
	}
	return h ? h : 1;
}

static int take(const struct prefill *r, const struct skv_layer_set *compresses, struct codec *c)
{
	uint32_t first = 0;
	int e;

	while (first + 1 < c->n_layers && !skv_layer_in(compresses, first))
		first++;
	e = take_shape(r, first, c);
	return e < 0 ? e : take_layers(r, compresses, c);
}

int codec_read(const char *path, uint32_t d, uint32_t head_dim, uint32_t n_layers, const struct skv_layer_set *compresses,
               struct codec **ret, char *err, size_t err_len)
{
	struct prefill r = {.file = SKV_SAFETENSORS_NULL, .path = path, .err = err, .err_len = err_len};
	struct codec *c = calloc(1, sizeof(*c) + n_layers * sizeof(*c->layer));
	char text[256];
	int e;

	if (!c)
		return skv_refuse(-ENOMEM, err, err_len, "compressor %.150s: no memory", path);
	e = skv_safetensors_copy(&r.file, path, CODEC_BYTES_MAX, text, sizeof(text));
	if (e < 0) {
		codec_free(c);
		return skv_refuse(e, err, err_len, "compressor %s", text);
	}
	c->d = d;
	c->head_dim = head_dim;
	c->n_layers = n_layers;
	c->fingerprint = fingerprint(&r.file);
	e = take(&r, compresses, c);
	skv_safetensors_deinit(&r.file);
	if (e < 0) {
		codec_free(c);
		return e;
	}
	*ret = c;
	return 0;
}

void codec_forget(struct codec *c)
{
	if (!c)
		return;
	free(c->weights);
	c->weights = NULL;
	memset(c->layer, 0, c->n_layers * sizeof(*c->layer));
}

void codec_free(struct codec *c)
{
	codec_forget(c);
	free(c);
}
