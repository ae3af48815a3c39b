/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/config.h - what config.json says of a model of the Llama family: Llama (SmolLM and SmolLM2 are), Mistral,
 * Qwen2 (and 2.5) and Qwen3.
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

#define ENG_EOS_MOST 8u

struct eng_config {
	const char *architecture; /* as config.json names it; static */
	uint32_t hidden, n_layers, n_heads, n_kv_heads, head_dim, ffn, vocab;
	uint32_t max_positions;
	float rms_eps;
	struct skv_rope rope;
	bool tied; /* the output matrix is the embedding */
	bool qkv_bias, o_bias, mlp_bias;
	bool qk_norm;                    /* heads of q and k have RMS norms, in front of their rotation */
	uint32_t window[SKV_MAX_LAYERS]; /* a token attends to so many, itself the last; 0: to all before it */
	int32_t bos;                     /* -1: none */
	int32_t eos;                     /* the first of these, or -1: */
	int32_t eos_list[ENG_EOS_MOST];  /* a text ends with any of these */
	uint32_t n_eos;
};

/* Read a config.json. -EINVAL with a text that names the key and what was expected; -errno of the file. */
int eng_config_load(struct eng_config *ret, const char *path, struct eng_error *err);

/* Does a text end with this token? */
bool eng_config_ends(const struct eng_config *c, int32_t id);

#endif
