/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/operations/requests.c - requests of clients. Attaching, forking, detaching and dropping sequences,
 * closing sessions and reconnecting take turns; creating sequences and releasing references do not.
 *
 * This file decides whether a request is refused; task.c does the work that takes turns.
 */
#include "daemon/core/memory/accounts.h"
#include "daemon/core/memory/announce.h"
#include "daemon/core/memory/pools.h"
#include "daemon/core/memory/refs.h"
#include "daemon/core/sequences/names.h"
#include "daemon/core/sequences/prefixes.h"
#include "daemon/core/sequences/sequences.h"
#include "daemon/core/sequences/validate.h"
#include "daemon/core/state/lookup.h"
#include "daemon/core/state/refuse.h"
#include "daemon/core/operations/clients.h"
#include "daemon/core/operations/requests.h"
#include "daemon/core/operations/task.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool same_shape(const struct skv_model *a, const struct skv_model *b)
{
	return a->n_layers == b->n_layers && a->n_heads == b->n_heads && a->n_kv_heads == b->n_kv_heads &&
	       a->head_dim == b->head_dim && a->kv_dtype == b->kv_dtype;
}

static int refuse_held(struct skv_core *c, const char *name, uint32_t by)
{
	const struct skv_client_row *holder = skv_client_row(&c->state, by);

	if (skv_task_ends(c, by))
		return skv_core_refuse(c, SKV_CORE_E_LEAVING,
		                       "sequence '%s' is still being reclaimed from process %d, which has ended", name,
		                       (int)holder->pid);
	if (holder->fenced)
		return skv_core_refuse(c, SKV_CORE_E_FENCED,
		                       "sequence '%s' is held by process %d, which is alive, though its connection "
		                       "ended",
		                       name, (int)holder->pid);
	return skv_core_refuse(c, SKV_CORE_E_BUSY, "sequence '%s' is held by client %#x", name,
	                       skv_state_id(&c->state, SKV_TABLE_CLIENTS, by));
}

int skv_core_seq_attach(struct skv_core *c, uint32_t client_id, uint32_t session_id, const char *name,
                        struct skv_core_seq_info *ret)
{
	uint32_t client, session, seq;
	const struct skv_session_row *s;
	const struct skv_seq_row *q;
	int r = skv_find_session(c, client_id, session_id, &client, &session);

	if (r)
		return r;
	s = skv_session_row(&c->state, session);
	seq = skv_seq_find(c, skv_client_row(&c->state, client)->account, &s->model, name);
	if (seq == SKV_NO_INDEX || skv_is_prefix(skv_seq_row(&c->state, seq)))
		return skv_core_refuse(c, SKV_CORE_E_NOENT, "model '%s' has no sequence '%.*s'", s->model.name,
		                  SKV_NAME_MAX, name);
	q = skv_seq_row(&c->state, seq);
	if (q->session != SKV_NO_INDEX)
		return refuse_held(c, name, skv_session_row(&c->state, q->session)->client);
	if (q->model.device != s->model.device)
		return skv_core_refuse(c, SKV_CORE_E_INVALID,
		                       "sequence '%s' is in %s, expected the memory of the session's device",
		                  name, q->model.device ? "the memory of another device" : "host memory");
	if (!same_shape(&q->model, &s->model))
		return skv_core_refuse(c, SKV_CORE_E_INVALID,
		                  "sequence '%s' was made with another shape of model '%s'", name,
		                  s->model.name);
	r = skv_validate_header(c, seq);
	if (r)
		return skv_task_drop(c, seq, client, r);
	skv_seq_hold(c, seq, session);
	return skv_task_begin(c, SKV_TASK_ATTACH, client, seq, ret);
}

int skv_core_seq_fork(struct skv_core *c, uint32_t client_id, uint32_t session_id, uint32_t parent_id,
                      const char *name, uint32_t n_tokens, struct skv_core_seq_info *ret)
{
	struct skv_fork what = {.n_tokens = n_tokens};
	uint32_t client, parent;
	int r = skv_find_held(c, client_id, session_id, parent_id, &client, &parent);

	if (r)
		return r;
	r = skv_validate_header(c, parent);
	if (r)
		return skv_task_drop(c, parent, client, r);
	what.session = skv_seq_row(&c->state, parent)->session;
	snprintf(what.name, sizeof(what.name), "%s", name ? name : "");
	return skv_task_fork(c, client, parent, &what, ret);
}

int skv_core_seq_detach(struct skv_core *c, uint32_t client_id, uint32_t session_id, uint32_t seq_id)
{
	uint32_t client, seq;
	int r = skv_find_held(c, client_id, session_id, seq_id, &client, &seq);

	return r ? r : skv_task_begin(c, SKV_TASK_DETACH, client, seq, NULL);
}

int skv_core_seq_drop(struct skv_core *c, uint32_t client_id, uint32_t session_id, uint32_t seq_id)
{
	uint32_t client, seq;
	int r = skv_find_held(c, client_id, session_id, seq_id, &client, &seq);

	return r ? r : skv_task_begin(c, SKV_TASK_DROP, client, seq, NULL);
}

bool skv_core_seq_held_name(struct skv_core *c, uint32_t client_id, uint32_t session_id, uint32_t seq_id,
                            const struct skv_model **ret_model, const char **ret_name)
{
	uint32_t client, seq;

	if (skv_find_held(c, client_id, session_id, seq_id, &client, &seq))
		return false;
	*ret_model = &skv_seq_row(&c->state, seq)->model;
	*ret_name = skv_seq_row(&c->state, seq)->name;
	return true;
}

int skv_core_seq_drop_name(struct skv_core *c, uid_t uid, const char *model, const char *name)
{
	const uint32_t account = skv_account_find(c, uid);
	uint32_t found = 0, held = 0;
	int r;

	for (int removing = 0; removing < 2; removing++) {
		uint32_t i = SKV_NO_INDEX;

		while (account != SKV_NO_INDEX && (i = skv_names_next(c, i, account, model, name)) != SKV_NO_INDEX) {
			found++;
			held += skv_seq_row(&c->state, i)->session != SKV_NO_INDEX || skv_task_forks(c, i) ||
			        c->seqs[i].parking == SKV_PARK_READ;
			r = removing ? skv_task_drop(c, i, SKV_NO_INDEX, 0) : 0;
			if (r < 0)
				return r;
		}
		if (!found)
			return skv_core_refuse(c, SKV_CORE_E_NOENT,
			                  "UID %u has no sequence '%.*s' of a model '%.*s'", uid,
			                  SKV_NAME_MAX, name, SKV_NAME_MAX, model);
		if (held)
			return skv_core_refuse(c, SKV_CORE_E_BUSY,
			                       "sequence '%s' is held by a client, or is being sent to the prefix "
			                       "store",
			                       name);
	}
	return 0;
}

bool skv_core_seq_exists(const struct skv_core *c, uid_t uid, const struct skv_model *m, const char *name)
{
	const uint32_t account = skv_account_find(c, uid);

	return account != SKV_NO_INDEX && skv_seq_find(c, account, m, name) != SKV_NO_INDEX;
}

int skv_core_session_close(struct skv_core *c, uint32_t client_id, uint32_t session_id)
{
	uint32_t client, session;
	int r = skv_find_session(c, client_id, session_id, &client, &session);

	return r ? r : skv_task_begin(c, SKV_TASK_SESSION, client, session, NULL);
}

int skv_core_reconnect(struct skv_core *c, uint32_t client_id)
{
	uint32_t client;
	int r = skv_find_client(c, client_id, &client);

	if (r)
		return r;
	if (!skv_client_row(&c->state, client)->fenced || skv_task_is_of(c, client))
		return skv_core_refuse(c, SKV_CORE_E_NOENT, "client %#x is connected, or is being removed", client_id);
	r = skv_reconnect_begin(c, client);
	if (r)
		return r;
	skv_announce_anew(c, client);
	skv_write_client(&c->state, client)->fenced = 0;
	atomic_store(&c->control->fence[client], client_id);
	return 0;
}

int skv_core_reconnect_done(struct skv_core *c, uint32_t client_id)
{
	uint32_t client;
	int r = skv_find_client(c, client_id, &client);

	if (r)
		return r;
	if (!skv_core_is_reconnecting(c, client_id))
		return skv_core_refuse(c, SKV_CORE_E_INVALID,
		                       "this client does not reconnect: expected RECONNECT first");
	return skv_task_begin(c, SKV_TASK_RECONNECT, client, SKV_NO_INDEX, NULL);
}

/* ---- without turns ---------------------------------------------------------------------------- */

int skv_core_seq_new(struct skv_core *c, uint32_t client_id, uint32_t session_id, const char *name,
                     uint32_t max_tokens, struct skv_core_seq_info *ret)
{
	uint32_t client, session, seq, most;
	int r = skv_find_session(c, client_id, session_id, &client, &session);

	if (r)
		return r;
	most = skv_session_row(&c->state, session)->model.max_tokens;
	if (max_tokens > most)
		return skv_core_refuse(c, SKV_CORE_E_INVALID,
		                  "got a sequence of %u tokens, expected at most the model's %u", max_tokens,
		                  most);
	r = skv_seq_make_held(c, session, name ? name : "", max_tokens ? max_tokens : most, &seq);
	if (r)
		return r;
	*ret = skv_seq_info(c, seq);
	return 0;
}

static bool is_releasable(const struct skv_core *c, uint32_t seq, const struct skv_wire_run *run)
{
	for (uint64_t page = run->first; page < (uint64_t)run->first + run->count; page++)
		if (page > SKV_PTE_ID_MASK || !skv_ref_held(c, seq, (uint32_t)page))
			return false;
	return true;
}

static int run_order(const void *a, const void *b)
{
	uint32_t x = ((const struct skv_wire_run *)a)->first, y = ((const struct skv_wire_run *)b)->first;

	return (x > y) - (x < y);
}

/* Does the sequence refer to all pages of the runs, and do the runs name each page once? */
static bool are_releasable(const struct skv_core *c, uint32_t seq, const struct skv_wire_run *runs, uint32_t n)
{
	struct skv_wire_run sorted[SKV_WIRE_MAX_RUNS];
	uint64_t end = 0;

	if (n > SKV_WIRE_MAX_RUNS)
		return false;
	memcpy(sorted, runs, n * sizeof(*runs));
	qsort(sorted, n, sizeof(*sorted), run_order);
	for (uint32_t i = 0; i < n; i++) {
		if (sorted[i].first < end || !is_releasable(c, seq, &sorted[i]))
			return false;
		end = (uint64_t)sorted[i].first + sorted[i].count;
	}
	return true;
}

static void release(struct skv_core *c, uint32_t seq, const struct skv_wire_run *runs, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		for (uint64_t page = runs[i].first; page < (uint64_t)runs[i].first + runs[i].count; page++)
			if (page <= SKV_PTE_ID_MASK && skv_ref_held(c, seq, (uint32_t)page))
				skv_ref_drop(c, seq, (uint32_t)page);
	skv_pool_shrink(c, skv_seq_row(&c->state, seq)->pool);
}

int skv_core_seq_release(struct skv_core *c, uint32_t client_id, uint32_t session_id, uint32_t seq_id,
                         const struct skv_wire_run *runs, uint32_t n)
{
	uint32_t client, seq;
	int r = skv_find_held(c, client_id, session_id, seq_id, &client, &seq);

	if (!r)
		r = skv_check_runs(c, runs, n);
	if (r)
		return r;
	if (!are_releasable(c, seq, runs, n))
		return skv_core_refuse(c, SKV_CORE_E_INVALID,
		                  "a page that is released is not shared by this sequence, or is named twice");
	release(c, seq, runs, n);
	return 0;
}

int skv_core_seq_release_again(struct skv_core *c, uint32_t client_id, uint32_t session_id, uint32_t seq_id,
                               const struct skv_wire_run *runs, uint32_t n)
{
	uint32_t client, seq;
	int r = skv_find_held(c, client_id, session_id, seq_id, &client, &seq);

	if (!r)
		r = skv_check_runs(c, runs, n);
	if (r == 0)
		release(c, seq, runs, n);
	return r;
}
