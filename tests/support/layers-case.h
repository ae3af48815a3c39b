/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/layers-case.h - a model whose layers have windows, softcaps, sinks, scales and K and V of other layers.
 * Steps run through the client library; each output is compared with attention in double precision.
 *
 * In a layer with a window the model determines what a row attends to. In the others it is the policy's choice: there
 * skv_selection() reports what was attended to, and the output must be attention over exactly that.
 */
#ifndef SKV_TEST_LAYERS_CASE_H
#define SKV_TEST_LAYERS_CASE_H

#include "tests/support/client-test.h"

#define LAYERS_MAX 8u

struct layers_model {
	struct skv_model model; /* its layers point into `layer`, and those into `sinks` */
	struct skv_model_layer layer[LAYERS_MAX];
	float sinks[LAYERS_MAX][SKV_MAX_HEADS];
};

/*
 * Makes a random model: each layer has some of these properties. `shared`: some layers share K and V. The last layer is
 * a plain one.
 */
void layers_model(struct layers_model *, const char *name, bool shared, uint32_t max_tokens);

/* The expected contents of a sequence. */
struct layers_seq {
	struct skv_seq *seq;
	uint64_t key; /* determines its rows, with the position */
	uint32_t len, cap;
	float *k[LAYERS_MAX], *v[LAYERS_MAX]; /* [cap][n_kv_heads][head_dim], as pages store them */
	bool exact; /* layers without a window attend to what skv_selection() says, with uncompressed K and V */
};
void layers_seq_init(const struct layers_model *, struct layers_seq *, struct skv_seq *, uint64_t key, uint32_t cap);
void layers_seq_deinit(struct layers_seq *);

/* What a step does with one sequence: decodes, or reads n rows of a prompt of which `remaining` rows follow. */
struct layers_item {
	struct layers_seq *q;
	uint32_t n, remaining;
	bool prompt;
};

/* Runs a step, with rows laid out in one of several ways, and compares all outputs and log-sum-exps. */
void layers_step(const struct layers_model *, struct skv_session *, const struct layers_item *, uint32_t n);

#endif
