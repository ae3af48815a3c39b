/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/loss.h - what policies do to a model's own predictions.
 *
 * The prompts of cases are read densely and their answers decoded, first densely too, then under a policy. Its loss is
 * the Kullback-Leibler divergence of what it predicts from what the dense run did, in nats, mean over the answers'
 * tokens: nobody needs to know what is right, and a policy that is by chance right gains nothing.
 */
#ifndef ENG_LOSS_H
#define ENG_LOSS_H

#include <sparsekv/policy.h>
#include "engine/evaluate.h"

struct eng_loss {
	struct eng_eval eval;
	const char *prefix; /* for eng_loss_of_layers: a spec up to the layers, "delta?layers=" */
	size_t *first;      /* [case] the row that its answer begins with */
	size_t rows;
	float *dense;       /* [row][vocab] log p */
	double *sum;        /* [policy] of the run at hand */
};
#define ENG_LOSS_NULL ((struct eng_loss){.rows = 0})

/* Take over all of `eval` but its policies, and run it densely. Negative errno. */
int eng_loss_init(struct eng_loss *l, const struct eng_eval *eval, struct eng_error *err);
void eng_loss_deinit(struct eng_loss *l);

/* Of n specs. Negative errno. */
int eng_loss_of(struct eng_loss *l, const char *const *specs, uint32_t n, double *ret, struct eng_error *err);

/* A judge (engine/search.h) of sets of layers, behind the prefix; `arg` is the struct eng_loss. */
int eng_loss_of_layers(void *arg, const struct skv_layer_set *sets, uint32_t n, double *ret, struct eng_error *err);

#endif
