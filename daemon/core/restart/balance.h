/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/restart/balance.h - recounts the rows of a state that another process left. See balance.c. */
#ifndef SKV_CORE_BALANCE_H
#define SKV_CORE_BALANCE_H

#include "daemon/core/state/core-priv.h"

/*
 * skv_core_balance() for the rows of the state alone: descriptors and mappings do not exist yet, and the previous
 * process may have died in the middle of work. The numbers in the rows must have been verified (verify.h). After NULL
 * all counts in the state can be trusted.
 */
const char *skv_balance_rows(const struct skv_core *);

#endif
