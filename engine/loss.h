/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/loss.h - the loss that policies cause in a model's predictions.
 *
 * Texts are read densely up to a row. The rest is decoded, first densely, then under each policy. A policy's loss is
 * the Kullback-Leibler divergence of its predictions from the dense run's, in nats, averaged over the decoded rows.
 * It needs no reference answers, and a policy that is right by chance gains nothing.
 *
 * The prompt's KV cache stays in the pool, and each policy decodes forks of it. Texts and policies are decoded
 * together, each sequence under its own policy, because a step of many rows takes little longer than one of few.
 */
#ifndef ENG_LOSS_H
#define ENG_LOSS_H

#include <signal.h>
#include "engine/forward.h"
#include "engine/progress.h"
#include "engine/text.h"

struct eng_loss_setup {
	const struct eng_model *model;
	struct skv_client *client;
	uint32_t kv_dtype;
	const struct eng_text *texts; /* in each text `rows` rows (0: all) from row `from` on are decoded */
	uint32_t n;                   /* at least 1 */
	bool no_graph;                     /* on a device: launch the kernels of a step one by one */
	struct eng_progress *progress;     /* must have begun; its unit is a row that is read or decoded */
	const volatile sig_atomic_t *stop; /* set by a signal handler: -EINTR at the next step; or NULL */
};

struct eng_loss {
	struct eng_loss_setup setup;
	const char *label; /* for the progress line */
	struct skv_session *session;
	struct eng_forward forward;
	struct skv_seq **read; /* [text], read up to row `from` */
	size_t *first;         /* [text]: index of its first row in `dense` */
	size_t rows;
	float *dense;          /* [row][vocab] log p */
};
#define ENG_LOSS_NULL ((struct eng_loss){.rows = 0})

/* Reads the texts and decodes them densely. Everything in `setup` must outlive it. Returns a negative errno. */
int eng_loss_init(struct eng_loss *l, const struct eng_loss_setup *setup, struct eng_error *err);
void eng_loss_deinit(struct eng_loss *l);

/*
 * Computes the losses of n policy specs, which must have dense prefill; an eng_losses (engine/profile.h) of a struct
 * eng_loss. Returns a negative errno.
 */
int eng_loss_of(void *loss, const char *const *specs, uint32_t n, const char *label, double *ret,
                struct eng_error *err);

#endif
