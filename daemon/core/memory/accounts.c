/* SPDX-License-Identifier: Apache-2.0 */
/* Accounts of UIDs. An account is created when it is first needed and removed when it has no objects. */
#include "daemon/core/memory/accounts.h"

uint32_t skv_account_find(const struct skv_core *c, uid_t uid)
{
	SKV_EACH(i, &c->state, SKV_TABLE_ACCOUNTS)
		if (skv_account_row(&c->state, i)->uid == uid)
			return i;
	return SKV_NO_INDEX;
}

uint32_t skv_account_get(struct skv_core *c, uid_t uid)
{
	uint32_t account = skv_account_find(c, uid);

	if (account != SKV_NO_INDEX)
		return account;
	/* the table is never full: it has one row more than there can be clients and sequences (state.c) */
	account = skv_state_take(&c->state, SKV_TABLE_ACCOUNTS);
	skv_write_account(&c->state, account)->uid = uid;
	return account;
}

void skv_account_put(struct skv_core *c, uint32_t account)
{
	const struct skv_account_row *a = skv_account_row(&c->state, account);

	if (!a->clients && !a->sequences && !a->pools)
		skv_state_give(&c->state, SKV_TABLE_ACCOUNTS, account);
}

bool skv_share_allows(const struct skv_core *c, enum skv_table t, uint32_t own)
{
	const struct skv_state_header *h = c->state.header;
	uint64_t left = h->elements[t] - h->live[t];

	return left > 0 && (own == 0 || own + 1 <= left - 1);
}
