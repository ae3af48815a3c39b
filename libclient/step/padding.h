/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/step/padding.h - pads decode steps to a given batch size and length: skv_pad_steps(). */
#ifndef SKV_CLIENT_STEP_PADDING_H
#define SKV_CLIENT_STEP_PADDING_H

#include <stdint.h>

struct skv_session;

/* Decide whether the step is padded, and select the memory that its kind of step uses. Call after find_batches(). */
void padding_choose(struct skv_session *s);
/* Returns how many sequences the step needs memory for: n, or the padded batch size if the step is padded. */
uint32_t padding_seqs(const struct skv_session *s, uint32_t n);

#endif
