/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/layers-case.h - a model whose layers have windows, softcaps, sinks, scales and K and V of other layers,
 * and steps of it through the client library, each output beside attention in double precision.
 *
 * What a row of a layer with a window attends to is known from the model. In the others it is the policy's choice: there
 * skv_selection() says what was attended to, and the output must be attention over that.
 */
#ifndef SKV_TEST_LAYERS_CASE_H
#define SKV_TEST_LAYERS_CASE_H

#include "tests/support/client-test.h"

#define LAYERS_MAX 8u

struct layers_model {
	struct skv_model model; /* its layers point into `layer`, and they into `sinks` */
	struct skv_model_layer layer[LAYERS_MAX];
	float sinks[LAYERS_MAX][SKV_MAX_HEADS];
};

/* Random ones: each layer has some of these. `shared`: some layers share K and V. The last layer is a plain one. */
void layers_model(struct layers_model *, const char *name, bool shared, uint32_t max_tokens);

/* A sequence as it must be. */
struct layers_seq {
	struct skv_seq *seq;
	uint64_t key; /* its rows follow from it, and from positions */
	uint32_t len, cap;
	float *k[LAYERS_MAX], *v[LAYERS_MAX]; /* [cap][n_kv_heads][head_dim], as the pages keep them */
	bool exact; /* layers without a window attend to what skv_selection() says, to K and V as they are given */
};
void layers_seq_init(const struct layers_model *, struct layers_seq *, struct skv_seq *, uint64_t key, uint32_t cap);
void layers_seq_deinit(struct layers_seq *);

/* What a step does with one sequence: decodes, or reads n rows of a prompt that has so many more. */
struct layers_item {
	struct layers_seq *q;
	uint32_t n, remaining;
	bool prompt;
};

/* A step; rows lie in memory in one of several ways. All outputs and log-sum-exps are compared. */
void layers_step(const struct layers_model *, struct skv_session *, const struct layers_item *, uint32_t n);

#endif
