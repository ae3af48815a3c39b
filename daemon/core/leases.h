/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/leases.h - pages that clients name in requests. */
#ifndef SKV_CORE_LEASES_H
#define SKV_CORE_LEASES_H

#include "daemon/core/core-priv.h"

/* 0, or E_INVALID: they are more than SKV_CALL_PAGES. */
int skv_check_runs(struct skv_core *, const struct skv_wire_run *, uint32_t n);

#endif
