/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/step/padding.h - pads decode steps to a given batch size and length: skv_pad_steps(). */
#ifndef SKV_CLIENT_STEP_PADDING_H
#define SKV_CLIENT_STEP_PADDING_H

#include <stdint.h>

struct skv_session;

/* Decide whether the step is padded, once its policy batches are known; takes the memory of such steps. */
void padding_choose(struct skv_session *s);
/* The number of sequences for which a step of n sequences needs memory. */
uint32_t padding_seqs(const struct skv_session *s, uint32_t n);

#endif
