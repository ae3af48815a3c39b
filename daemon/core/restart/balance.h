/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/restart/balance.h - a recount of a core that is being created. See balance.c. */
#ifndef SKV_CORE_BALANCE_H
#define SKV_CORE_BALANCE_H

#include "daemon/core/state/core-priv.h"

/*
 * Like skv_core_balance(), of rows alone, which have no companions yet; work may have been in progress. The numbers in
 * the rows must have been verified (verify.h). After success all counts can be trusted.
 */
const char *skv_balance_rows(const struct skv_core *);

#endif
