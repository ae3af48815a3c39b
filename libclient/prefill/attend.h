/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/prefill/attend.h - attention of prompts. */
#ifndef SKV_CLIENT_PREFILL_ATTEND_H
#define SKV_CLIENT_PREFILL_ATTEND_H

struct layer;
struct step;
struct skv_session;

/* Make room for the lists of the step's prompts, and for the kernels' workspace. 0, or a negative errno. */
int prefill_prepare(struct skv_session *s);
/* Attend with a batch's prompts, in a layer that does not compress. */
void prefill_attend(const struct layer *l);
/* The rows of the open step had no queries, so nothing is saved for later rows of their prompts. */
void prefill_without_queries(struct step *st);

#endif
