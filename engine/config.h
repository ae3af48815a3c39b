/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/config.h - what config.json says of a model of the Llama family.
 *
 * What the engine does not compute is refused by its name rather than ignored: a wrong rotary
 * scaling or a forgotten bias gives fluent nonsense, which is worse than an error.
 */
#ifndef ENG_CONFIG_H
#define ENG_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include "engine/error.h"

enum eng_rope_type {
	ENG_ROPE_DEFAULT,
	ENG_ROPE_LINEAR, /* positions divided by `factor` */
	ENG_ROPE_LLAMA3, /* low frequencies divided by `factor`, a smooth passage between */
};

struct eng_rope {
	enum eng_rope_type type;
	double theta;
	double factor, low_freq_factor, high_freq_factor, original_positions;
};

struct eng_config {
	uint32_t hidden, n_layers, n_heads, n_kv_heads, head_dim, ffn, vocab;
	uint32_t max_positions;
	float rms_eps;
	struct eng_rope rope;
	bool tied; /* the output matrix is the embedding */
	int32_t bos, eos;
};

/* Read a config.json. -EINVAL with a text that names the key and what was expected; -errno of the file. */
int eng_config_load(struct eng_config *ret, const char *path, struct eng_error *err);

/* The angle a position adds to the rotary pair i of head_dim/2, in radians. */
double eng_rope_frequency(const struct eng_rope *rope, uint32_t head_dim, uint32_t i);

#endif
