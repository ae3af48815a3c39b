/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/prefill/attend.h - attention of prompts. */
#ifndef SKV_CLIENT_PREFILL_ATTEND_H
#define SKV_CLIENT_PREFILL_ATTEND_H

struct layer;
struct step;

/* Attend with a batch's prompts, in a layer that does not compress. */
void prefill_attend(const struct layer *l);
/* The rows of the open step had no queries, so nothing is saved for later rows of their prompts. */
void prefill_without_queries(struct step *st);

#endif
