/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/pools.h - pools come with their first page and go with their last. */
#ifndef SKV_CORE_POOLS_H
#define SKV_CORE_POOLS_H

#include "daemon/core/core-priv.h"

int skv_pool_get(struct skv_core *, uint32_t account, uint32_t device, uint64_t page_bytes,
                 uint32_t *ret_index);
void skv_pool_shrink(struct skv_core *, uint32_t pool);

#endif
