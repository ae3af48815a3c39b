/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/step/steady.h - a step of the same sequences as the last one, all of which decode. */
#ifndef SKV_CLIENT_STEP_STEADY_H
#define SKV_CLIENT_STEP_STEADY_H

#include <stdbool.h>
#include <stdint.h>

struct pages;
struct skv_session;
struct skv_step_item;

/* A step was laid out in full: mark whether the next one can be laid out from it. */
void steady_mark(struct skv_session *s);
/*
 * Can this step be laid out from the last one? Sets step.steady.on, and step.steady.due: the sequences that need more than a row.
 */
bool steady_fits(struct skv_session *s, const struct skv_step_item *items, uint32_t n);
/* Lay it out, with the result of layout_step(), after steady_fits(); the due sequences must be ready. */
int steady_lay_out(struct skv_session *s, struct pages *ret);

#endif
