/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/segments.h - segments of a pool, and the clients to which they are announced. */
#ifndef SKV_CORE_SEGMENTS_H
#define SKV_CORE_SEGMENTS_H

#include "daemon/core/core-priv.h"

int skv_pool_grow(struct skv_core *, uint32_t pool, uint64_t least, uint64_t want);
/* It has memory: LIVE, its pages FREE, to be announced to the pool's members. The handle is consumed. */
void skv_segment_arrive(struct skv_core *, uint32_t pool, uint32_t segment, const struct skv_mem_handle *);
void skv_segment_withdraw(struct skv_core *, uint32_t pool, uint32_t segment);
/* Its memory is not charged to the account and the pool any more. */
void skv_segment_uncharge(struct skv_core *, uint32_t pool);

void skv_member_join(struct skv_core *, uint32_t pool, uint32_t client);
void skv_member_leave(struct skv_core *, uint32_t pool, uint32_t client); /* leases go with the last one */

#endif
