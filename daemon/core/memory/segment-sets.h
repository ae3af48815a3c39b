/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/memory/segment-sets.h - sets of segment numbers, in which segments are found by what they have (struct
 * skv_pool_local).
 */
#ifndef SKV_CORE_SEGMENT_SETS_H
#define SKV_CORE_SEGMENT_SETS_H

#include "daemon/core/state/core-priv.h"

/* Is the pool's memory one memfd, of which segments are ranges? Else each segment has memory of its own. */
bool skv_pool_is_whole(const struct skv_core *, uint32_t pool);
/* Puts the segment into the sets that its row implies; call it after each change of its state, free or longest. */
void skv_segment_file(struct skv_core *, uint32_t pool, uint32_t segment);
/* The segment's number can be used again. */
void skv_segment_vacate(struct skv_core *, uint32_t pool, uint32_t segment);

#endif
