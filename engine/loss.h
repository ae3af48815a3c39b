/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/loss.h - what policies do to a model's own predictions.
 *
 * Texts are read densely up to a row, and what follows is decoded, first densely too, then under a policy. Its loss is
 * the Kullback-Leibler divergence of what it predicts from what the dense run did, in nats, mean over the decoded
 * rows: nobody needs to know what is right, and a policy that is by chance right gains nothing.
 *
 * What was read stays in the pool, and each policy decodes forks of it. Texts and policies are decoded together, each
 * sequence under its own policy, since a step of many rows takes little longer than one of few.
 */
#ifndef ENG_LOSS_H
#define ENG_LOSS_H

#include <signal.h>
#include <sparsekv/policy.h>
#include "engine/forward.h"
#include "engine/progress.h"
#include "engine/text.h"

struct eng_loss_setup {
	const struct eng_model *model;
	struct skv_client *client;
	uint32_t kv_dtype;
	const struct eng_text *texts; /* of each the `rows` (0: all) from row `from` on are decoded */
	uint32_t n;                   /* at least 1 */
	bool no_graph;                     /* on a device: launch the kernels of a step one by one */
	struct eng_progress *progress;     /* a unit is a row that is read or decoded; has begun */
	const volatile sig_atomic_t *stop; /* raised by a signal: -EINTR at the next step; or NULL */
};

struct eng_loss {
	struct eng_loss_setup setup;
	const char *prefix; /* for eng_loss_of_layers: a spec up to the layers, "delta?layers=" */
	const char *label;  /* of the progress */
	struct skv_session *session;
	struct eng_forward forward;
	struct skv_seq **read; /* [text], up to its row `from` */
	size_t *first;         /* [text] its first row in `dense` */
	size_t rows;
	float *dense;          /* [row][vocab] log p */
};
#define ENG_LOSS_NULL ((struct eng_loss){.rows = 0})

/* Read the texts and decode them densely. All that the setup names outlives it. Negative errno. */
int eng_loss_init(struct eng_loss *l, const struct eng_loss_setup *setup, struct eng_error *err);
void eng_loss_deinit(struct eng_loss *l);

/* Of n specs of policies that read prompts densely. Negative errno. */
int eng_loss_of(struct eng_loss *l, const char *const *specs, uint32_t n, double *ret, struct eng_error *err);

/* A judge (engine/search.h) of sets of layers, behind the prefix; `arg` is the struct eng_loss. */
int eng_loss_of_layers(void *arg, const struct skv_layer_set *sets, uint32_t n, double *ret, struct eng_error *err);

#endif
