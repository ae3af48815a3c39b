/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/operations/leases.h - gives free pages of a pool to a client or a sequence. See leases.c. */
#ifndef SKV_CORE_LEASES_H
#define SKV_CORE_LEASES_H

#include "daemon/core/state/core-priv.h"

/*
 * Takes free pages for `owner`, a client (LEASE) or a sequence (SEQ), as skv_core_lease_get() does; if `grow` is false,
 * as skv_core_lease_rest() does.
 */
int skv_lease_pages(struct skv_core *, uint32_t pool, skv_owner owner, uint32_t least, uint32_t most, bool grow,
                    struct skv_wire_run *ret_runs, uint32_t max_runs, uint32_t *ret_n);
/* Frees the pages of the runs, up to the first page that does not have this owner. True: all pages were freed. */
bool skv_lease_put_runs(struct skv_core *, uint32_t pool, const struct skv_wire_run *runs, uint32_t n, skv_owner owner);

#endif
