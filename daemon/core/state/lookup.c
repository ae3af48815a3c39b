/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the rows for ids in a client's request. The ids of another client's sessions and sequences are not accepted. */
#include "daemon/core/state/lookup.h"
#include "daemon/core/state/refuse.h"

int skv_find_client(struct skv_core *c, uint32_t id, uint32_t *ret_index)
{
	uint32_t client = skv_state_find(&c->state, SKV_TABLE_CLIENTS, id);

	if (client == SKV_NO_INDEX)
		return skv_core_refuse(c, SKV_CORE_E_NOENT, "no client has the id %#x", id);
	*ret_index = client;
	return 0;
}

int skv_find_session(struct skv_core *c, uint32_t client_id, uint32_t session_id, uint32_t *ret_client,
                     uint32_t *ret_session)
{
	uint32_t client, session;
	int r = skv_find_client(c, client_id, &client);

	if (r)
		return r;
	session = skv_state_find(&c->state, SKV_TABLE_SESSIONS, session_id);
	if (session == SKV_NO_INDEX || skv_session_row(&c->state, session)->client != client)
		return skv_core_refuse(c, SKV_CORE_E_NOENT, "this client has no session with the id %#x",
		                  session_id);
	*ret_client = client;
	*ret_session = session;
	return 0;
}

int skv_find_held(struct skv_core *c, uint32_t client_id, uint32_t session_id, uint32_t seq_id,
                  uint32_t *ret_client, uint32_t *ret_seq)
{
	uint32_t client, session, seq;
	int r = skv_find_session(c, client_id, session_id, &client, &session);

	if (r)
		return r;
	seq = skv_state_find(&c->state, SKV_TABLE_SEQUENCES, seq_id);
	if (seq == SKV_NO_INDEX || skv_seq_row(&c->state, seq)->session != session)
		return skv_core_refuse(c, SKV_CORE_E_NOENT, "this session holds no sequence with the id %#x",
		                  seq_id);
	*ret_client = client;
	*ret_seq = seq;
	return 0;
}

int skv_check_runs(struct skv_core *c, const struct skv_wire_run *runs, uint32_t n)
{
	uint64_t pages = 0;

	for (uint32_t i = 0; i < n; i++)
		pages += runs[i].count;
	if (pages > SKV_CALL_PAGES)
		return skv_core_refuse(c, SKV_CORE_E_INVALID, "got %llu pages in one request, expected at most %u",
		                       (unsigned long long)pages, SKV_CALL_PAGES);
	return 0;
}

int skv_check_segment(struct skv_core *c, uint32_t pool, uint32_t segment)
{
	const struct skv_geometry *g = &c->state.header->geometry;

	if (pool >= g->max_pools || segment >= g->max_segments)
		return skv_core_refuse(c, SKV_CORE_E_INVALID, "there is no segment %u of a pool %u", segment, pool);
	return 0;
}
