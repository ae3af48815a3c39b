/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/prefill/attend.h - attention of prompts. */
#ifndef SKV_CLIENT_PREFILL_ATTEND_H
#define SKV_CLIENT_PREFILL_ATTEND_H

struct layer;
struct step;
struct skv_session;

/* Lists for the prompts of the step, and what the kernels need besides. */
int prefill_prepare(struct skv_session *s);
/* The attention of a batch's prompts in a layer that does not compress. */
void prefill_attend(const struct layer *l);
/* Rows of the open step had no queries: what they would have attended to is unknown. */
void prefill_without_queries(struct step *st);

#endif
