/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/memory/segments.h - segments of a pool: created, found, withdrawn. */
#ifndef SKV_CORE_SEGMENTS_H
#define SKV_CORE_SEGMENTS_H

#include "daemon/core/state/core-priv.h"

/* Number of pages that are FREE, or would be if the pool took all memory that is left and others' empty segments. */
uint64_t skv_pool_room(const struct skv_core *, uint32_t pool);
/*
 * Creates or requests segments until at least `least` pages are FREE or pending, or changes nothing. Grows the pool
 * further, to about `want` pages, if that takes no segment from another pool. 0, E_NOSPC, E_BACKLOG.
 */
int skv_pool_grow(struct skv_core *, uint32_t pool, uint64_t least, uint64_t want);
/* The segment has memory now: it becomes LIVE and its pages FREE. */
void skv_segment_arrive(struct skv_core *, uint32_t pool, uint32_t segment);
/* Withdraws the pool's last empty segment; there is one. */
void skv_segment_withdraw_last(struct skv_core *, uint32_t pool);
/* Withdraws all empty segments of other pools on the device of pool for_pool. */
void skv_segments_give_up(struct skv_core *, uint32_t for_pool);
/*
 * Frees the memory of a pool's memfd where it has no segment; for a pool without sessions. Until that is complete the
 * pool gets no segment.
 */
void skv_segments_sweep(struct skv_core *, uint32_t pool);
/* After a restart: cancels pending segments, and withdraws again the segments that were LEAVING. */
void skv_segments_resume(struct skv_core *, uint32_t pool);
/* Subtracts the bytes of one of the pool's segments from the bytes of all segments of that memory. */
void skv_segment_uncharge(struct skv_core *, uint32_t pool);

#endif
