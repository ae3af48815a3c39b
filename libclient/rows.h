/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/rows.h - sequences that decode several rows in a step, and which of them count. */
#ifndef SKV_CLIENT_ROWS_H
#define SKV_CLIENT_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "libclient/step.h"

struct policy;

/* Why sequences under the policy must decode one row a step, or NULL if they may decode several. */
const char *rows_refused(const struct policy *p);

/* Is n_accepted (the caller's, [items] or NULL) valid for the step? */
int rows_check_accepted(const struct step *st, const uint32_t *n_accepted);
/* From here on the step's sequences have as many new tokens as are accepted. Returns whether any row is rejected. */
bool rows_accept(struct skv_session *s, const uint32_t *n_accepted);

#endif
