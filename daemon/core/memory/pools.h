/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/memory/pools.h - pools come with their first session or sequence and go with the last one. */
#ifndef SKV_CORE_POOLS_H
#define SKV_CORE_POOLS_H

#include "daemon/core/state/core-priv.h"

int skv_pool_get(struct skv_core *, uint32_t account, uint32_t device, uint64_t page_bytes,
                 uint32_t *ret_index);
void skv_pool_shrink(struct skv_core *, uint32_t pool);
/*
 * Gives a live row its companion. In host memory that is `fd` (consumed); if `fd` is -1 or not such memory, an empty
 * memfd, and *lost is set. A device's segments have no handles yet. Negative errno.
 */
int skv_pool_adopt(struct skv_core *, uint32_t pool, int fd, bool *lost);
/* its memory stays with other holders of its descriptors; does nothing without a companion */
void skv_pool_leave(struct skv_core *, uint32_t pool);

#endif
