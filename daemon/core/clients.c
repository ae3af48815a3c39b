/* SPDX-License-Identifier: Apache-2.0 */
/* Clients: connections, each charged to the account of its UID. The sessions of a client end with it. */
#include "daemon/core/accounts.h"
#include "daemon/core/lookup.h"
#include "daemon/core/refuse.h"
#include "daemon/core/sessions.h"

#include <stdio.h>

int skv_core_client_add(struct skv_core *c, uid_t uid, pid_t pid, const char *program, uint32_t *ret_client)
{
	uint32_t account = skv_account_get(c, uid), client;
	struct skv_client_row *row;

	if (skv_account_row(&c->state, account)->clients >= c->config.account_clients) {
		skv_account_put(c, account);
		return skv_core_refuse(c, SKV_CORE_E_QUOTA,
		                  "UID %u already has %u clients, the most that are allowed", uid,
		                  c->config.account_clients);
	}
	client = skv_state_take(&c->state, SKV_TABLE_CLIENTS);
	if (client == SKV_NO_INDEX) {
		skv_account_put(c, account);
		return skv_core_refuse(c, SKV_CORE_E_NOSPC,
		                  "the daemon already has %u clients, the most that it takes",
		                  c->config.max_clients);
	}
	row = skv_client_row(&c->state, client);
	row->account = account;
	row->pid = pid;
	snprintf(row->program, sizeof(row->program), "%s", program ? program : "");
	skv_account_row(&c->state, account)->clients++;
	*ret_client = skv_state_id(&c->state, SKV_TABLE_CLIENTS, client);
	return 0;
}

int skv_core_client_gone(struct skv_core *c, uint32_t client_id)
{
	uint32_t client, account;
	int r = skv_find_client(c, client_id, &client), worst = 0;

	if (r)
		return r;
	SKV_EACH(i, &c->state, SKV_TABLE_SESSIONS) {
		if (skv_session_row(&c->state, i)->client != client)
			continue;
		r = skv_session_shut(c, i);
		worst = worst ? worst : r;
	}
	account = skv_client_row(&c->state, client)->account;
	skv_state_give(&c->state, SKV_TABLE_CLIENTS, client);
	skv_account_row(&c->state, account)->clients--;
	skv_account_put(c, account);
	return worst;
}
