/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/step/layout.h - a step as the kernels see it. */
#ifndef SKV_CLIENT_STEP_LAYOUT_H
#define SKV_CLIENT_STEP_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

struct pages;
struct skv_session;
struct skv_step_item;

/* Make room for a step of n items. */
int layout_grow(struct skv_session *s, uint32_t n);
/*
 * Can this step be laid out from the last one, because all of the same sequences decode one row again? Sets
 * step.steady.on, and step.steady.due: the sequences that need more than a row.
 */
bool layout_is_steady(struct skv_session *s, const struct skv_step_item *items, uint32_t n);
/*
 * Lay the items out for the kernels, decoding ones first; those that are due must be ready. Marks sequences as in the
 * step; adds up pages in *ret.
 */
int layout_step(struct skv_session *s, const struct skv_step_item *items, uint32_t n, struct pages *ret);

#endif
