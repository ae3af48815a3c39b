/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/segments.h - segments of a pool: made, found, withdrawn. */
#ifndef SKV_CORE_SEGMENTS_H
#define SKV_CORE_SEGMENTS_H

#include "daemon/core/core-priv.h"

/* Pages that it could make free or has so, with the memory that is left and what other pools have in empty segments. */
uint64_t skv_pool_room(const struct skv_core *, uint32_t pool);
int skv_pool_grow(struct skv_core *, uint32_t pool, uint64_t least, uint64_t want);
/* It has memory: LIVE, its pages FREE. */
void skv_segment_arrive(struct skv_core *, uint32_t pool, uint32_t segment);
/* An empty one has none any more. */
void skv_segment_withdraw(struct skv_core *, uint32_t pool, uint32_t segment);
/* Memory of host memory where no segment is goes; for a pool that has no session. Until then it gets no segment. */
void skv_segments_sweep(struct skv_core *, uint32_t pool);
/* After the end of a process: what was being made is not waited for, what was being given back is given back again. */
void skv_segments_resume(struct skv_core *, uint32_t pool);
/* Its memory is not charged to the account and the pool any more. */
void skv_segment_uncharge(struct skv_core *, uint32_t pool);

#endif
