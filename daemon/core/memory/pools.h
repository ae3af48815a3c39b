/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/memory/pools.h - a pool is created for its first session or sequence and removed after the last one. */
#ifndef SKV_CORE_POOLS_H
#define SKV_CORE_POOLS_H

#include "daemon/core/state/core-priv.h"

int skv_pool_get(struct skv_core *, uint32_t account, uint32_t device, uint64_t page_bytes,
                 uint32_t *ret_index);
void skv_pool_shrink(struct skv_core *, uint32_t pool);
/*
 * After a restart: makes the process's data of a pool whose row is live. A pool of host memory gets `fd` (consumed) as
 * its memory; if `fd` is -1 or is not a memfd of the pool's size, the pool gets an empty memfd and *lost is set. In a
 * pool of a device no segment has a handle yet. Negative errno.
 */
int skv_pool_adopt(struct skv_core *, uint32_t pool, int fd, bool *lost);
/*
 * Frees the process's data of a pool, if there is any. The pool's row is not changed, and the pool's memory lives on
 * with other holders of its descriptors.
 */
void skv_pool_leave(struct skv_core *, uint32_t pool);

#endif
