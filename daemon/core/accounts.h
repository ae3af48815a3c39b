/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/accounts.h - the accounts of users. */
#ifndef SKV_CORE_ACCOUNTS_H
#define SKV_CORE_ACCOUNTS_H

#include "daemon/core/core-priv.h"

uint32_t skv_account_get(struct skv_core *, uid_t uid); /* made when it is not there */
void skv_account_put(struct skv_core *, uint32_t account); /* removed when nothing is charged to it */

#endif
