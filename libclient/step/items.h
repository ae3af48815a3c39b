/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/step/items.h - the items of a step, as the engine gives them; and how many of their rows count. */
#ifndef SKV_CLIENT_STEP_ITEMS_H
#define SKV_CLIENT_STEP_ITEMS_H

#include <stdbool.h>
#include <stdint.h>

#include "libclient/step.h"

/* Copy the caller's items to step.items, in this library's own declaration. */
int items_take(struct skv_session *s, const struct skv_step_item *items, uint32_t n);
/* Is step.items[i] valid? */
int items_check(const struct skv_session *s, uint32_t i);

/* Is n_accepted (the caller's, [items] or NULL) valid for the step? */
int items_check_accepted(const struct step *st, const uint32_t *n_accepted);
/* From here on the step's sequences have as many new tokens as are accepted. Returns whether any row is rejected. */
bool items_accept(struct skv_session *s, const uint32_t *n_accepted);

#endif
