/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/memory/segments.h - segments of a pool: created, found, withdrawn. */
#ifndef SKV_CORE_SEGMENTS_H
#define SKV_CORE_SEGMENTS_H

#include "daemon/core/state/core-priv.h"

/* Pages that are FREE or could become so, with the memory that is left and the empty segments of other pools. */
uint64_t skv_pool_room(const struct skv_core *, uint32_t pool);
int skv_pool_grow(struct skv_core *, uint32_t pool, uint64_t least, uint64_t want);
/* The segment has memory now: it becomes LIVE and its pages FREE. */
void skv_segment_arrive(struct skv_core *, uint32_t pool, uint32_t segment);
/* Withdraws an empty segment. */
void skv_segment_withdraw(struct skv_core *, uint32_t pool, uint32_t segment);
/*
 * Gives back memory of a pool's memfd where it has no segment; for a pool without sessions. Until that is complete the
 * pool gets no segment.
 */
void skv_segments_sweep(struct skv_core *, uint32_t pool);
/* After the death of a process: cancels pending segments, and gives back again what was being given back. */
void skv_segments_resume(struct skv_core *, uint32_t pool);
/* The segment's memory no longer counts as memory of pools. */
void skv_segment_uncharge(struct skv_core *, uint32_t pool);

#endif
