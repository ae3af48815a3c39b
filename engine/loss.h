/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/loss.h - computes how much policies change a model's predictions.
 *
 * Each text is read with dense attention up to row `from`. The rows that count after it are decoded, first with dense
 * attention, then under each policy. A policy's loss is the Kullback-Leibler divergence between the predictions of the
 * dense run and those of the policy, in nats, averaged over the decoded rows. This loss needs no reference answers, and
 * a policy does not gain by a prediction that is right by chance.
 *
 * The sequence with a text's first part stays in the pool, and each policy decodes a fork of it. A step decodes several
 * texts under several policies at once, each sequence under its own policy, because a step of many rows takes little
 * longer than a step of few rows.
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
	const struct eng_text *texts; /* of each text, eng_text_rows() rows from its row `from` on are decoded */
	uint32_t n;                   /* number of texts, at least 1 */
	bool no_graph;                     /* on a device: launch the kernels of a step one by one */
	struct eng_progress *progress;     /* must have begun; its unit is one row that is read or decoded */
	const volatile sig_atomic_t *stop; /* a signal handler sets it: the next step returns -EINTR; may be NULL */
};

struct eng_loss {
	struct eng_loss_setup setup;
	const char *label; /* text of the progress line */
	struct skv_session *session;
	struct eng_forward forward;
	struct skv_seq **read; /* [text]: sequences that contain the text up to row `from` */
	size_t *first;         /* [text]: index in `dense` of the text's first decoded row */
	size_t rows;
	float *dense;          /* [row][vocab]: log p of the dense run */
};
#define ENG_LOSS_NULL ((struct eng_loss){.rows = 0})

/*
 * Reads the texts, and decodes them with dense attention. Everything that `setup` points to must outlive *l. Returns 0
 * or a negative errno.
 */
int eng_loss_init(struct eng_loss *l, const struct eng_loss_setup *setup, struct eng_error *err);
void eng_loss_deinit(struct eng_loss *l);

/*
 * Computes the losses of n policy specs, which must be of policies with dense prefill. eng_loss_of() is an eng_losses
 * function (engine/profile.h) whose argument `loss` is a struct eng_loss. Returns 0 or a negative errno.
 */
int eng_loss_of(void *loss, const char *const *specs, uint32_t n, const char *label, double *ret,
                struct eng_error *err);

#endif
