/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/memory/pending.h - pending segments: device memory that is requested or being created. */
#ifndef SKV_CORE_PENDING_H
#define SKV_CORE_PENDING_H

#include "daemon/core/state/core-priv.h"

void skv_segment_request(struct skv_core *, uint32_t pool, uint32_t segment);
void skv_segment_cancel(struct skv_core *, uint32_t pool, uint32_t segment); /* the segment is WANTED or STARTED */
void skv_pool_cancel_all(struct skv_core *, uint32_t pool);

#endif
