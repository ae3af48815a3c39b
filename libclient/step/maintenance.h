/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/step/maintenance.h - maintenance transactions: steps without tokens, after which a sequence has the same
 * tokens in another layout.
 */
#ifndef SKV_CLIENT_STEP_MAINTENANCE_H
#define SKV_CLIENT_STEP_MAINTENANCE_H

#include <stdbool.h>
#include <stdint.h>

#include "libclient/seq.h"

/* Run one of this kind; waits for the device. 0, or a negative errno with the last error set. */
int maintenance_run(struct skv_session *s, struct skv_seq *q, enum maintenance kind);
/* Is the layer's partial page among its full ones? MAINTENANCE_MOVE_PARTIAL and a compaction make it the last. */
bool partial_page_inside(const struct skv_seq *q, uint32_t layer);

#endif
