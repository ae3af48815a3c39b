/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/memory/accounts.h - the accounts of users. */
#ifndef SKV_CORE_ACCOUNTS_H
#define SKV_CORE_ACCOUNTS_H

#include "daemon/core/state/core-priv.h"

uint32_t skv_account_find(const struct skv_core *, uid_t uid); /* SKV_NO_INDEX: the user has none */
uint32_t skv_account_get(struct skv_core *, uid_t uid); /* creates it if it does not exist */
void skv_account_put(struct skv_core *, uint32_t account); /* removes it if nothing is charged to it */

/*
 * Does one more row fit for an account that has `own` rows? Like dbus-broker's quotas: an account may have as many rows
 * of a table as are left for all others, and one in any case. So no account takes the last rows, and a late one gets
 * half of what is left.
 */
bool skv_share_allows(const struct skv_core *, enum skv_table, uint32_t own);

#endif
