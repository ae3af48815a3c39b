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
#include <sparsekv/types.h>
#include "engine/error.h"

struct eng_config {
	uint32_t hidden, n_layers, n_heads, n_kv_heads, head_dim, ffn, vocab;
	uint32_t max_positions;
	float rms_eps;
	struct skv_rope rope;
	bool tied; /* the output matrix is the embedding */
	int32_t bos, eos;
};

/* Read a config.json. -EINVAL with a text that names the key and what was expected; -errno of the file. */
int eng_config_load(struct eng_config *ret, const char *path, struct eng_error *err);

#endif
