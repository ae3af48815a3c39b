/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/prefill/schedule.h - how the prompts of a policy attend sparsely, and which queries of a prompt are saved
 * from step to step.
 */
#ifndef SKV_CLIENT_PREFILL_SCHEDULE_H
#define SKV_CLIENT_PREFILL_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/prefill.h"

struct policy;
struct skv_kseq;
struct skv_seq;
struct skv_session;

#define PREFILL_TILE 64u /* tokens of a tile, except of Kascade's tiles, which have a size of their own */

struct prefill {
	uint64_t how;         /* fingerprint of how prompts attend, not 0 */
	uint32_t gamma, tail; /* of the plan's correction; 0: no layer has a correction */
	struct {
		struct skv_sparse sparse; /* how the layer attends, without the lists of tiles; tile 0: densely */
		uint32_t pages;           /* pages of one of the two sets of saved queries */
	} layer[];                        /* n_layers */
};

/*
 * Make p->prefill from the policy's plans; p->prefill stays NULL if all layers attend densely. Returns 0, or -ENOMEM.
 */
int prefill_make(struct skv_session *s, struct policy *p);
void prefill_unmake(struct policy *p);
/* Number of pages in which the layer saves queries of a prompt that is being read: both sets. */
uint32_t prefill_saved_pages(const struct policy *p, uint32_t layer);
/* Do the last rows of a prompt attend densely under this policy, in layers that otherwise attend sparsely? */
bool prefill_has_tail(const struct policy *p);
/* Can this policy continue the prompt that is being read, with the queries that were saved? */
bool prefill_fits(const struct skv_seq *q, const struct policy *p);
/*
 * prefill_about() sets q->prompt.next, and returns SKV_ABOUT_PREFILL if the open step's commit leaves a prompt in
 * progress, else 0. prefill_schedule() fills the fields of `ks` that describe the prompt to the kernels.
 */
uint32_t prefill_about(struct skv_seq *q, bool prompt);
void prefill_schedule(const struct skv_seq *q, struct skv_kseq *ks);
/* Set q->prompt.sparse: the layers in which the prompt's rows of the open step attend sparsely. */
void prefill_find_sparse(struct skv_seq *q);

#endif
