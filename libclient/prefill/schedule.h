/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/prefill/schedule.h - how a policy's prompts attend sparsely, and what is saved of one from step to step. */
#ifndef SKV_CLIENT_PREFILL_SCHEDULE_H
#define SKV_CLIENT_PREFILL_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/prefill.h"

struct policy;
struct skv_kseq;
struct skv_seq;
struct skv_session;

#define PREFILL_TILE 64u /* tokens of a tile, but for Kascade's */

struct prefill {
	uint64_t how;         /* fingerprint, not 0 */
	uint32_t gamma, tail; /* 0: no layer corrects */
	struct {
		struct skv_sparse sparse; /* without lists; tile 0: the layer is dense */
		uint32_t pages;           /* of a set */
	} layer[];                        /* n_layers */
};

/* How the policy's layers attend in prompts, if any does so sparsely. -ENOMEM. */
int prefill_make(struct skv_session *s, struct policy *p);
void prefill_unmake(struct policy *p);
/* Pages that the layer saves of a prompt that is being read: of both sets. */
uint32_t prefill_saved_pages(const struct policy *p, uint32_t layer);
/* Are the last rows of the policy's prompts dense in layers that attend sparsely? */
bool prefill_has_tail(const struct policy *p);
/* Is what was saved of the prompt that is being read what this policy goes on with? */
bool prefill_fits(const struct skv_seq *q, const struct policy *p);
/* How the open step's commit will speak of the prompt, and what the kernels are told of it. */
uint32_t prefill_about(struct skv_seq *q, bool prompt);
void prefill_schedule(const struct skv_seq *q, struct skv_kseq *ks);
/* In which layers do the prompt's rows of the open step attend sparsely? Into q->sparse. */
void prefill_find_sparse(struct skv_seq *q);

#endif
