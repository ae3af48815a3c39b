/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/step/maintenance.h - maintenance transactions: steps without tokens, which change only how a sequence's
 * tokens are stored.
 */
#ifndef SKV_CLIENT_STEP_MAINTENANCE_H
#define SKV_CLIENT_STEP_MAINTENANCE_H

#include <stdbool.h>
#include <stdint.h>

#include "libclient/seq.h"

/*
 * Run a maintenance transaction of this kind; waits for the device. Returns 0, or a negative errno with the last error
 * set.
 */
int maintenance_run(struct skv_session *s, struct skv_seq *q, enum maintenance kind);
/*
 * Is the layer's partly filled page among its full pages, instead of last? MAINTENANCE_MOVE_PARTIAL, followed by a
 * compaction, puts the partial page last.
 */
bool partial_page_inside(const struct skv_seq *q, uint32_t layer);

#endif
