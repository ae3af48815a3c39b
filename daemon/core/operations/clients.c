/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients: added and fenced. A client is one connection, and counts in the account of its UID. The sessions of a client
 * end with the client.
 */
#include "daemon/core/memory/accounts.h"
#include "daemon/core/state/fdstore.h"
#include "daemon/core/state/refuse.h"
#include "daemon/core/operations/clients.h"
#include "daemon/core/operations/reconnect.h"

#include <stdio.h>

int skv_core_client_add(struct skv_core *c, uid_t uid, pid_t pid, const char *program, uint32_t *ret_client)
{
	uint32_t account = skv_account_get(c, uid), client;
	struct skv_client_row *row;
	int r;

	if (skv_account_row(&c->state, account)->clients >= c->config.account_clients) {
		skv_account_put(c, account);
		return skv_core_refuse(c, SKV_CORE_E_QUOTA,
		                  "UID %u already has %u clients, the most that are allowed", uid,
		                  c->config.account_clients);
	}
	if (!skv_share_allows(c, SKV_TABLE_CLIENTS, skv_account_row(&c->state, account)->clients)) {
		uint32_t own = skv_account_row(&c->state, account)->clients;

		skv_account_put(c, account);
		return skv_core_refuse(c, SKV_CORE_E_NOSPC,
		                       "UID %u has %u clients; the rest of the daemon's %u is reserved for others",
		                       uid, own, c->config.max_clients);
	}
	r = skv_fdstore_allows(c);
	if (r) {
		skv_account_put(c, account);
		return r;
	}
	client = skv_state_take(&c->state, SKV_TABLE_CLIENTS);
	row = skv_write_client(&c->state, client);
	row->account = account;
	row->pid = pid;
	snprintf(row->program, sizeof(row->program), "%s", program ? program : "");
	skv_write_account(&c->state, account)->clients++;
	*ret_client = skv_state_id(&c->state, SKV_TABLE_CLIENTS, client);
	atomic_store(&c->control->fence[client], *ret_client);
	return 0;
}

void skv_core_client_store(struct skv_core *c, uint32_t client_id, int pidfd)
{
	uint32_t client = skv_state_find(&c->state, SKV_TABLE_CLIENTS, client_id);
	struct skv_client_row *row;
	char name[SKV_FDSTORE_NAME];

	if (client == SKV_NO_INDEX || !c->fdstore.add)
		return;
	row = skv_write_client(&c->state, client);
	row->kept = 1;
	row->file = skv_fdstore_file(pidfd);
	skv_fdstore_name(&c->state, SKV_TABLE_CLIENTS, client, name);
	skv_fdstore_add(c, name, pidfd);
}

bool skv_core_client_fence(struct skv_core *c, uint32_t client_id)
{
	uint32_t client = skv_state_find(&c->state, SKV_TABLE_CLIENTS, client_id);

	if (client == SKV_NO_INDEX)
		return false;
	atomic_store(&c->control->fence[client], 0);
	skv_reconnect_free(skv_reconnect_take(c, client));
	skv_write_client(&c->state, client)->fenced = 1;
	return skv_client_row(&c->state, client)->sessions > 0;
}
