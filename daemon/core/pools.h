/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/pools.h - pools come with their first page and go with their last. */
#ifndef SKV_CORE_POOLS_H
#define SKV_CORE_POOLS_H

#include "daemon/core/core-priv.h"

int skv_pool_get(struct skv_core *, uint32_t account, uint32_t device, uint64_t page_bytes,
                 uint32_t *ret_index);
void skv_pool_shrink(struct skv_core *, uint32_t pool);
/*
 * What belongs to a live row of host memory is `fd` (consumed); if that is none, or not such memory, something empty, and *lost. Handles of
 * a device's are none yet. Negative errno.
 */
int skv_pool_adopt(struct skv_core *, uint32_t pool, int fd, bool *lost);
void skv_pool_leave(struct skv_core *, uint32_t pool); /* its memory stays with who has it; nothing, if there is none */

#endif
