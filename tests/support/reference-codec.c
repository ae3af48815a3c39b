/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/reference-codec.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/codec-file.h"
#include "tests/support/random.h"

#define WIDTH 32u /* of random codecs */

void refmodel_packable(struct skv_model *m)
{
	/* records hold 2 · n_kv_heads · head_dim numbers, in scale blocks of 64 */
	m->head_dim = (m->head_dim + 31) / 32 * 32;
	m->rope = (struct skv_rope){.type = SKV_ROPE_DEFAULT, .theta = 10000};
}

/* [rows][cols]: random with rows of about unit length; identity for seed 0. */
static float *matrix(uint32_t rows, uint32_t cols, uint64_t *seed)
{
	float *x = calloc((size_t)rows * cols, sizeof(*x));

	ck_assert_ptr_nonnull(x);
	for (size_t i = 0; i < (size_t)rows * cols; i++)
		if (*seed)
			x[i] = (float)((int64_t)(refmodel_content((*seed)++, 0) % 2001) - 1000) / 1000.0f / sqrtf((float)cols);
		else
			x[i] = i / cols == i % cols;
	return x;
}

static void write_codec(const struct skv_model *m, const char *about, uint64_t seed, const char *path)
{
	struct codec_file f = {.about = about};
	const uint32_t d = 2 * m->n_kv_heads * m->head_dim, width = seed ? WIDTH : d;
	float *numbers[2 * REFMODEL_MAX_LAYERS];

	for (uint32_t layer = 0; layer < m->n_layers; layer++) {
		numbers[2 * layer] = matrix(width, d, &seed);
		numbers[2 * layer + 1] = matrix(d, width, &seed);
		codec_file_add(&f, layer, "down", width, d, numbers[2 * layer]);
		codec_file_add(&f, layer, "out", d, width, numbers[2 * layer + 1]);
	}
	codec_file_write(&f, path);
	for (uint32_t i = 0; i < 2 * m->n_layers; i++)
		free(numbers[i]);
}

void refmodel_codec(const struct skv_model *m, uint64_t seed, const char *path)
{
	write_codec(m, "{\"sparsekv_codec\":\"1\",\"stride\":\"5\",\"near\":\"3\"}", seed, path);
}

void refmodel_codec_alone(const struct skv_model *m, uint64_t seed, const char *path)
{
	write_codec(m, "{\"sparsekv_codec\":\"1\",\"stride\":\"0\",\"near\":\"0\"}", seed, path);
}
