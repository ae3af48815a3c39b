/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/operations/leases.h - free pages of a pool get an owner. See leases.c. */
#ifndef SKV_CORE_LEASES_H
#define SKV_CORE_LEASES_H

#include "daemon/core/state/core-priv.h"

/*
 * Like skv_core_lease_get(), or without `grow` like skv_core_lease_rest(), for any owner that pages of the pool can
 * have.
 */
int skv_lease_pages(struct skv_core *, uint32_t pool, skv_owner owner, uint32_t least, uint32_t most, bool grow,
                    struct skv_wire_run *ret_runs, uint32_t max_runs, uint32_t *ret_n);
/* Frees pages up to the first that does not have this owner. False: there is such a page. */
bool skv_lease_put_runs(struct skv_core *, uint32_t pool, const struct skv_wire_run *runs, uint32_t n, skv_owner owner);

#endif
