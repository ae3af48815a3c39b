/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/model.h - a model in memory: its configuration and its weights in fp32.
 *
 * Matrices are [out][in], as the files have them. What is multiplied by the same rows lies together
 * (q, k and v; gate and up), so that it is one product. Read-only after loading; any number of
 * threads may use it.
 */
#ifndef ENG_MODEL_H
#define ENG_MODEL_H

#include <sparsekv/types.h>
#include "engine/config.h"
#include "engine/ops.h"

struct eng_layer {
	float *input_norm;          /* [hidden] */
	float *qkv;                 /* [(n_heads + 2 n_kv_heads) · head_dim][hidden] */
	float *o;                   /* [hidden][n_heads · head_dim] */
	float *post_attention_norm; /* [hidden] */
	float *gate_up;             /* [2 ffn][hidden] */
	float *down;                /* [hidden][ffn] */
};

struct eng_model {
	struct eng_config config;
	char name[SKV_NAME_MAX];  /* of the directory, and the weights' fingerprint */
	float *weights;           /* everything below points into this block */
	float *embedding;         /* [vocab][hidden] */
	float *output;            /* [vocab][hidden]; the embedding itself when they are tied */
	float *final_norm;        /* [hidden] */
	struct eng_layer *layers; /* [n_layers] */
};
#define ENG_MODEL_NULL ((struct eng_model){.weights = NULL})

/*
 * Load config.json and model.safetensors of a directory. Negative errno and a text that names the
 * file, key or tensor and what was expected.
 */
int eng_model_load(struct eng_model *ret, const char *directory, struct eng_error *err);
void eng_model_deinit(struct eng_model *m);

/* What the client library must know of it, with pages of `kv_dtype` (enum skv_dtype). */
struct skv_model eng_model_describe(const struct eng_model *m, uint32_t kv_dtype);

#endif
