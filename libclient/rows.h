/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/rows.h - sequences that decode several rows in a step, and which of them count. */
#ifndef SKV_CLIENT_ROWS_H
#define SKV_CLIENT_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "libclient/step.h"

struct policy;

/* Why sequences under the policy decode one row a step, or NULL: they may decode several. */
const char *rows_refused(const struct policy *p);

/* Is n_accepted, the caller's, [items] or NULL, within what the step has? */
int rows_check_accepted(const struct step *st, const uint32_t *n_accepted);
/* From here on the step's sequences have as many new tokens as are accepted. Are there rows that are not? */
bool rows_accept(struct skv_session *s, const uint32_t *n_accepted);

#endif
