/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/balance.h - a recount of a core that is being made. See balance.c. */
#ifndef SKV_CORE_BALANCE_H
#define SKV_CORE_BALANCE_H

#include "daemon/core/core-priv.h"

/*
 * As skv_core_balance(), of rows alone, which have no companions yet; work may have been under way. Their numbers must have been verified
 * (verify.h). After it no count is trusted that is wrong.
 */
const char *skv_balance_rows(const struct skv_core *);

#endif
