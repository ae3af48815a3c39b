/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/accounts.h - the accounts of users. */
#ifndef SKV_CORE_ACCOUNTS_H
#define SKV_CORE_ACCOUNTS_H

#include "daemon/core/core-priv.h"

uint32_t skv_account_find(const struct skv_core *, uid_t uid); /* SKV_NO_INDEX: the user has none */
uint32_t skv_account_get(struct skv_core *, uid_t uid); /* made when it is not there */
void skv_account_put(struct skv_core *, uint32_t account); /* removed when nothing is charged to it */

/*
 * Of the rows of a table a user may have as many as are left for all others, and one in any case (as of dbus-broker's
 * quotas): so none takes the last ones, and who comes late gets half of what is left. Does one more fit, besides `own`?
 */
bool skv_share_allows(const struct skv_core *, enum skv_table, uint32_t own);

#endif
