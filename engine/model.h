/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/model.h - a model: its configuration, and its weights in a backend's memory.
 *
 * Matrices are [out][in], as in the files. Matrices that are multiplied by the same rows are adjacent (q, k and v;
 * gate and up), so that they are one product. A model is read-only after loading; on the host any number of threads
 * may use it.
 */
#ifndef ENG_MODEL_H
#define ENG_MODEL_H

#include <sparsekv/types.h>
#include "engine/config.h"
#include "engine/backend.h"

/* Biases, and the norms of heads, are NULL if the configuration has none. */
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
	char name[SKV_NAME_MAX];  /* skv_identity_name(): identifies everything that K and V are computed from */
	char files[SKV_PROFILE_PATH]; /* its directory's absolute path; "": none, or too long */
	struct eng_backend *backend;  /* computes the model; not owned */
	uint32_t dtype;           /* enum skv_dtype of the matrices; norms and biases are fp32 */
	void *weights;            /* the block of the backend's memory that everything below points into */
	void *embedding;          /* [vocab][hidden] */
	void *output;             /* [vocab][hidden]; equals `embedding` if they are tied */
	float *final_norm;        /* [hidden] */
	struct eng_layer *layers; /* [n_layers] */
	struct skv_model_layer *attention; /* [n_layers]: the layers' sliding windows */
};
#define ENG_MODEL_NULL ((struct eng_model){.weights = NULL})

/*
 * Loads config.json and the weights of a directory (formats/checkpoint.h). `dtype` SKV_BF16: matrices are bf16 if the
 * backend is a device and every matrix in the files is bf16. Otherwise matrices are fp32: there are no fp16 rows
 * here, and converting fp16 to bf16 would lose three bits. The files are mapped, so only a few MiB are needed besides
 * the weights. Returns a negative errno with a text that names the file, key or tensor and what was expected.
 */
int eng_model_load(struct eng_model *ret, const char *directory, struct eng_backend *backend, uint32_t dtype,
                   struct eng_error *err);

/*
 * Makes a model of this shape with random weights, for measuring, and for comparing backends: the same seed gives the
 * same weights on every backend. The weights are exact in bf16. The matrices have `dtype`; the host supports only
 * SKV_F32. -ENOMEM, or the device's error.
 */
int eng_model_random(struct eng_model *ret, const struct eng_config *config, struct eng_backend *backend,
                     uint32_t dtype, uint32_t seed, struct eng_error *err);

void eng_model_deinit(struct eng_model *m);

/* Describes the model to the client library, with pages of `kv_dtype` (enum skv_dtype). */
struct skv_model eng_model_describe(const struct eng_model *m, uint32_t kv_dtype);

#endif
