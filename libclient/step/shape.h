/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/step/shape.h - lays steps out for a given batch size and length: skv_set_step_shape(). */
#ifndef SKV_CLIENT_STEP_SHAPE_H
#define SKV_CLIENT_STEP_SHAPE_H

#include <stdint.h>

struct skv_session;

/* Decide whether the step has the shape that is set, once its policy batches are known; takes the memory of such steps. */
void shape_choose(struct skv_session *s);
/* The number of sequences for which memory is needed: the shape's, or `n` in a step without the shape. */
uint32_t shape_seqs(const struct skv_session *s, uint32_t n);

#endif
