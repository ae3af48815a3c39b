/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/model.h - a model: its configuration, and its weights where it is computed.
 *
 * Matrices are [out][in], as the files have them. What is multiplied by the same rows lies together
 * (q, k and v; gate and up), so that it is one product. Read-only once it is there; on the host any number of
 * threads may use it.
 */
#ifndef ENG_MODEL_H
#define ENG_MODEL_H

#include <sparsekv/types.h>
#include "engine/config.h"
#include "engine/backend.h"

/* Biases, and the norms of heads, are NULL where the configuration says that there are none. */
struct eng_layer {
	float *input_norm;          /* [hidden] */
	void *qkv;                  /* [(n_heads + 2 n_kv_heads) · head_dim][hidden] */
	float *qkv_bias;            /* [(n_heads + 2 n_kv_heads) · head_dim] */
	float *q_norm, *k_norm;     /* [head_dim] */
	void *o;                    /* [hidden][n_heads · head_dim] */
	float *o_bias;              /* [hidden] */
	float *post_attention_norm; /* [hidden] */
	void *gate_up;              /* [2 ffn][hidden] */
	float *gate_up_bias;        /* [2 ffn] */
	void *down;                 /* [hidden][ffn] */
	float *down_bias;           /* [hidden] */
};

struct eng_model {
	struct eng_config config;
	char name[SKV_NAME_MAX];  /* skv_identity_name(): what K and V are computed from */
	char files[SKV_PROFILE_PATH]; /* its directory, absolute; "" where there is none, or it is longer */
	struct eng_backend *backend;  /* that computes it; not the model's own */
	uint32_t dtype;           /* enum skv_dtype of the matrices; norms and biases are fp32 */
	void *weights;            /* everything below points into this block of the backend's memory */
	void *embedding;          /* [vocab][hidden] */
	void *output;             /* [vocab][hidden]; the embedding itself when they are tied */
	float *final_norm;        /* [hidden] */
	struct eng_layer *layers; /* [n_layers] */
	struct skv_model_layer *attention; /* [n_layers]: their sliding windows */
};
#define ENG_MODEL_NULL ((struct eng_model){.weights = NULL})

/*
 * Load config.json and the weights of a directory (formats/checkpoint.h). `dtype`: SKV_BF16 for matrices in bf16
 * where every matrix of the files is (and the backend is a device); else they are fp32, whatever the files have:
 * fp16 has no rows here, and bf16 would lose three of its bits. The files are mapped, so that besides the weights a
 * few MiB are needed. Negative errno and a text that names the file, key or tensor and what was expected.
 */
int eng_model_load(struct eng_model *ret, const char *directory, struct eng_backend *backend, uint32_t dtype,
                   struct eng_error *err);

/*
 * A model of this shape with weights that say nothing: for measuring, and for comparing one backend with
 * another, as the same seed gives the same weights everywhere. They are exact in bf16. The matrices are of
 * `dtype`; the host takes SKV_F32 alone. -ENOMEM, or what the device says.
 */
int eng_model_random(struct eng_model *ret, const struct eng_config *config, struct eng_backend *backend,
                     uint32_t dtype, uint32_t seed, struct eng_error *err);

void eng_model_deinit(struct eng_model *m);

/* What the client library must know of it, with pages of `kv_dtype` (enum skv_dtype). */
struct skv_model eng_model_describe(const struct eng_model *m, uint32_t kv_dtype);

#endif
