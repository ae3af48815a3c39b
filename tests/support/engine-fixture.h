/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/engine-fixture.h - small random models for the tests of engine/. */
#ifndef SKV_TEST_ENGINE_FIXTURE_H
#define SKV_TEST_ENGINE_FIXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "tests/support/folder.h"

enum fx_type { FX_F32, FX_F16, FX_BF16 };

struct fx_model {
	uint32_t hidden, layers, heads, kv_heads, head_dim, ffn, vocab, positions;
	double theta, eps;
	enum fx_type type;
	bool tied;
};
/* Values in the order of the struct's fields. */
#define FX_TINY ((struct fx_model){48, 3, 4, 2, 16, 80, 264, 512, 10000, 1e-5, FX_BF16, true})

/*
 * Weights of a model in double, exactly the values that fx_model_write() writes. fx_weight() finds the [out][in] matrix
 * by its name in the file.
 */
struct fx_weights;
struct fx_weights *fx_weights_new(const struct fx_model *m);
void fx_weights_free(struct fx_weights *w);
const double *fx_weight(const struct fx_weights *w, const char *name);

/* Writes config.json and model.safetensors into a folder. */
void fx_model_write(const struct fx_model *m, const struct fx_weights *w, const char *folder);

/*
 * Computes the model plainly in double, with dense attention. Returns logits [n][vocab] of all tokens of the sequence;
 * the caller frees them.
 */
double *fx_reference(const struct fx_model *m, const struct fx_weights *w, const int32_t *tokens, uint32_t n);

#endif
