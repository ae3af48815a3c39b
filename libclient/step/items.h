/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/step/items.h - the items of a step: copied from the engine, checked, and cut to the rows that are accepted.
 */
#ifndef SKV_CLIENT_STEP_ITEMS_H
#define SKV_CLIENT_STEP_ITEMS_H

#include <stdbool.h>
#include <stdint.h>

#include "libclient/step.h"

/* Copy the engine's items, which may have another size than this library's struct skv_step_item, to step.items. */
int items_take(struct skv_session *s, const struct skv_step_item *items, uint32_t n);
/* Check that step.items[i] is valid. Returns 0, or a negative errno with the last error set. */
int items_check(const struct skv_session *s, uint32_t i);

/* Check that n_accepted, the engine's array [items] or NULL, is valid for the step. Returns 0, or -EINVAL. */
int items_check_accepted(const struct step *st, const uint32_t *n_accepted);
/*
 * Set the number of new tokens of each sequence in the step to the number of accepted rows; NULL: all rows are
 * accepted. Returns whether any row is rejected.
 */
bool items_accept(struct skv_session *s, const uint32_t *n_accepted);

#endif
