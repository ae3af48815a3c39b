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

#define PREFILL_TILE 64u /* tokens of a tile; Kascade's tiles have their own size */

struct prefill {
	uint64_t how;         /* fingerprint, not 0 */
	uint32_t gamma, tail; /* 0: no layer corrects */
	struct {
		struct skv_sparse sparse; /* without lists; tile 0: the layer is dense */
		uint32_t pages;           /* of one set of saved state */
	} layer[];                        /* n_layers */
};

/* Make p->prefill from the plans; it stays NULL if all layers attend densely. 0, or -ENOMEM. */
int prefill_make(struct skv_session *s, struct policy *p);
void prefill_unmake(struct policy *p);
/* Pages that the layer saves of a prompt that is being read, in both sets. */
uint32_t prefill_saved_pages(const struct policy *p, uint32_t layer);
/* Are the last rows of the policy's prompts dense in layers that attend sparsely? */
bool prefill_has_tail(const struct policy *p);
/* Can this policy continue the prompt that is being read, with what was saved of it? */
bool prefill_fits(const struct skv_seq *q, const struct policy *p);
/*
 * prefill_about() sets q->prompt.next and returns SKV_ABOUT_PREFILL, or 0, for the open step's commit;
 * prefill_schedule() tells the kernels of the prompt.
 */
uint32_t prefill_about(struct skv_seq *q, bool prompt);
void prefill_schedule(const struct skv_seq *q, struct skv_kseq *ks);
/* Set q->prompt.sparse: the layers in which the prompt's rows of the open step attend sparsely. */
void prefill_find_sparse(struct skv_seq *q);

#endif
