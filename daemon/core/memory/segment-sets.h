/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/memory/segment-sets.h - sets of segment numbers (in struct skv_pool_local): segments with runs of free
 * pages of some length, empty segments, numbers that can be used.
 */
#ifndef SKV_CORE_SEGMENT_SETS_H
#define SKV_CORE_SEGMENT_SETS_H

#include "daemon/core/state/core-priv.h"

/* True: the pool's memory is one memfd, and segments are ranges of it. False: each segment has memory of its own. */
bool skv_pool_is_whole(const struct skv_core *, uint32_t pool);
/* Updates the sets for a segment; call it after each change of `state`, `free` or `longest` in the segment's row. */
void skv_segment_file(struct skv_core *, uint32_t pool, uint32_t segment);
/* Sets the segment's state to NONE: its number can be used again. */
void skv_segment_vacate(struct skv_core *, uint32_t pool, uint32_t segment);

#endif
