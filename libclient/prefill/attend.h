/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/prefill/attend.h - attention of prompts. */
#ifndef SKV_CLIENT_PREFILL_ATTEND_H
#define SKV_CLIENT_PREFILL_ATTEND_H

struct layer;

/* Attention of the prompt rows of a policy batch, in a layer that does not compress. */
void prefill_attend(const struct layer *l);

#endif
