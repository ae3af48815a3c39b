/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/memory/accounts.h - the accounts of users (UIDs): found, created, removed, and their share of tables. */
#ifndef SKV_CORE_ACCOUNTS_H
#define SKV_CORE_ACCOUNTS_H

#include "daemon/core/state/core-priv.h"

uint32_t skv_account_find(const struct skv_core *, uid_t uid); /* SKV_NO_INDEX: the user has no account */
uint32_t skv_account_get(struct skv_core *, uid_t uid); /* creates the account if it does not exist */
void skv_account_put(struct skv_core *, uint32_t account); /* removes the account if it has no objects */

/*
 * May an account that has `own` rows of a table take one more? The rule is that of dbus-broker's quotas: an account may
 * have as many rows as it leaves free for all other accounts, and one row in any case. So no account can take the last
 * rows, and an account that comes late can still take half of the free rows.
 */
bool skv_share_allows(const struct skv_core *, enum skv_table, uint32_t own);

#endif
