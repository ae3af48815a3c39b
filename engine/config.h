/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/config.h - reads the config.json of models of the Llama family: Llama (with SmolLM and SmolLM2), Mistral,
 * Qwen2 (and 2.5) and Qwen3.
 *
 * If a model needs a feature that the engine does not have, reading fails with an error that names the feature. Such a
 * feature is not ignored, because with a wrong rotary scaling or a missing bias a model writes fluent nonsense, which
 * is worse than an error.
 */
#ifndef ENG_CONFIG_H
#define ENG_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <sparsekv/types.h>
#include "engine/error.h"

#define ENG_EOS_MOST 8u

struct eng_config {
	const char *architecture; /* name of the architecture in config.json; a static string */
	uint32_t hidden, n_layers, n_heads, n_kv_heads, head_dim, ffn, vocab;
	uint32_t max_positions;
	float rms_eps;
	struct skv_rope rope;
	bool tied; /* the output matrix is the embedding */
	bool qkv_bias, o_bias, mlp_bias;
	bool qk_norm;                    /* heads of q and k are RMS-normalized before the rotary embedding */
	/* [layer]: tokens that a token attends to, itself included; 0: all tokens before it */
	uint32_t window[SKV_MAX_LAYERS];
	int32_t bos;                     /* id of the token that begins a text; -1: none */
	int32_t eos;                     /* the first element of eos_list; -1: none */
	int32_t eos_list[ENG_EOS_MOST];  /* tokens that end a text */
	uint32_t n_eos;
};

/*
 * Reads a config.json. Returns 0; -EINVAL with a text that names the key and the expected value; or the negative errno
 * of reading the file.
 */
int eng_config_load(struct eng_config *ret, const char *path, struct eng_error *err);

/* Returns whether token `id` ends a text. */
bool eng_config_ends(const struct eng_config *c, int32_t id);

#endif
