/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/model.h - a model: its configuration, and its weights in a backend's memory.
 *
 * Matrices are stored as [out][in], as in checkpoint files. Matrices that are multiplied by the same rows (q, k and v;
 * gate and up) are adjacent in memory, so that one matrix product computes them all. A model is not changed after it is
 * loaded. On the host any number of threads may use a model.
 */
#ifndef ENG_MODEL_H
#define ENG_MODEL_H

#include <sparsekv/types.h>
#include "engine/config.h"
#include "engine/backend.h"

/* The weights of one layer. Biases and the norms of heads are NULL if the model's configuration has none. */
struct eng_layer {
	float *input_norm;          /* [hidden]: weights of the RMS norm before attention */
	void *qkv;                  /* [(n_heads + 2 n_kv_heads) · head_dim][hidden]: projections to q, k and v */
	float *qkv_bias;            /* [(n_heads + 2 n_kv_heads) · head_dim] */
	float *q_norm, *k_norm;     /* [head_dim]: weights of the RMS norms of q and k heads */
	void *o;                    /* [hidden][n_heads · head_dim]: output projection */
	float *o_bias;              /* [hidden] */
	float *post_attention_norm; /* [hidden]: weights of the RMS norm before the MLP */
	void *gate_up;              /* [2 ffn][hidden]: gate, then up */
	float *gate_up_bias;        /* [2 ffn] */
	void *down;                 /* [hidden][ffn]: down projection */
	float *down_bias;           /* [hidden] */
};

struct eng_model {
	struct eng_config config;
	char name[SKV_NAME_MAX];  /* from skv_identity_name(): identifies everything that K and V are computed from */
	/* absolute path of the model's directory; "": no directory, or its path is too long */
	char files[SKV_PROFILE_PATH];
	struct eng_backend *backend;  /* the backend that computes the model; not owned */
	uint32_t dtype;           /* enum skv_dtype of the matrices; norms and biases are fp32 */
	void *weights;            /* one block of the backend's memory, which the pointers below point into */
	void *embedding;          /* [vocab][hidden]: input embedding */
	void *output;             /* [vocab][hidden]: output matrix; equals `embedding` if the model ties the two */
	float *final_norm;        /* [hidden]: weights of the last RMS norm */
	struct eng_layer *layers; /* [n_layers] */
	struct skv_model_layer *attention; /* [n_layers]: sliding windows of the layers */
};
#define ENG_MODEL_NULL ((struct eng_model){.weights = NULL})

/*
 * Loads config.json and the weights of a directory (formats/checkpoint.h). The model's matrices are bf16 if `dtype` is
 * SKV_BF16, the backend is a device, and every matrix in the files is bf16. Otherwise the matrices are fp32: the engine
 * has no fp16 arithmetic, and converting fp16 to bf16 would lose three bits of the mantissa. The files are mapped into
 * memory, so loading needs only a few MiB besides the weights. Returns 0, or a negative errno with a text that names
 * the file, key or tensor and the expected value.
 */
int eng_model_load(struct eng_model *ret, const char *directory, struct eng_backend *backend, uint32_t dtype,
                   struct eng_error *err);

/*
 * Makes a model with the shape of `config` and random weights, to measure speed or to compare backends: the same seed
 * gives the same weights on every backend. All weights are exact in bf16. The matrices have `dtype`; the host supports
 * only SKV_F32. Returns 0, -ENOMEM, or an error of the device.
 */
int eng_model_random(struct eng_model *ret, const struct eng_config *config, struct eng_backend *backend,
                     uint32_t dtype, uint32_t seed, struct eng_error *err);

void eng_model_deinit(struct eng_model *m);

/*
 * Returns the model's shape and name for the client library (skv_open()), with K and V pages of `kv_dtype` (enum
 * skv_dtype).
 */
struct skv_model eng_model_describe(const struct eng_model *m, uint32_t kv_dtype);

#endif
