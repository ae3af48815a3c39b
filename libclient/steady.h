/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/steady.h - a step of the same sequences as the last one, all of which decode on. */
#ifndef SKV_CLIENT_STEADY_H
#define SKV_CLIENT_STEADY_H

#include <stdbool.h>
#include <stdint.h>

struct pages;
struct skv_session;
struct skv_step_item;

/* A step was laid out in full: may one like it be laid out from it? */
void steady_mark(struct skv_session *s);
/* Is this such a step? Sets step.steady, and step.due: those of its sequences that need a look. */
bool steady_fits(struct skv_session *s, const struct skv_step_item *items, uint32_t n);
/* Lay it out, as layout_step() would; steady_fits(), and those that are due are ready. */
int steady_lay_out(struct skv_session *s, struct pages *ret);

#endif
