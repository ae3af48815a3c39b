/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/step/layout.h - lays out the sequences of a step in batches for the kernels. */
#ifndef SKV_CLIENT_STEP_LAYOUT_H
#define SKV_CLIENT_STEP_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

struct pages;
struct skv_session;
struct skv_step_item;

/* Allocate the arrays of struct step for a step of n items. */
int layout_grow(struct skv_session *s, uint32_t n);
/*
 * Can this step be laid out by updating the layout of the last step, because the same sequences decode one row each
 * again? Sets step.steady.on, and step.steady.due: the indices of sequences that need a page.
 */
bool layout_is_steady(struct skv_session *s, const struct skv_step_item *items, uint32_t n);
/*
 * Lay the items out for the kernels, decoding items first. Sequences in items (in a steady step: in steady.due) must
 * have been made ready. Marks the sequences as in the step, and adds up the pages that they need in *ret.
 */
int layout_step(struct skv_session *s, const struct skv_step_item *items, uint32_t n, struct pages *ret);

#endif
