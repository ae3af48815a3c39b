/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences: made, found, held, released, removed.
 *
 * While a sequence is held, its own pages are LEASE(holder), and the core cannot tell them from the holder's stock.
 * When it is detached, they are SEQ(sequence). References to shared pages belong to the sequence in both cases.
 */
#include "daemon/core/memory/accounts.h"
#include "daemon/core/memory/charge.h"
#include "daemon/core/memory/pages.h"
#include "daemon/core/memory/pools.h"
#include "daemon/core/memory/refs.h"
#include "daemon/core/sequences/idle.h"
#include "daemon/core/sequences/names.h"
#include "daemon/core/sequences/park-queue.h"
#include "daemon/core/sequences/prefixes.h"
#include "daemon/core/sequences/sequence-file.h"
#include "daemon/core/sequences/sequences.h"
#include "daemon/core/sequences/validate.h"
#include "daemon/core/state/fdstore.h"
#include "daemon/core/state/refuse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t skv_seq_find(const struct skv_core *c, uint32_t account, const struct skv_model *m, const char *name)
{
	uint32_t i = SKV_NO_INDEX;

	while ((i = skv_names_next(c, i, account, m->name, name)) != SKV_NO_INDEX) {
		const struct skv_model *its = &skv_seq_row(&c->state, i)->model;

		if (its->rank == m->rank && its->n_ranks == m->n_ranks)
			break;
	}
	return i;
}

void skv_seq_hold(struct skv_core *c, uint32_t seq, uint32_t session)
{
	uint32_t client = skv_session_row(&c->state, session)->client;

	skv_write_seq(&c->state, seq)->session = session;
	skv_write_session(&c->state, session)->sequences++;
	skv_idle_update(c, seq);
	atomic_store(&c->seqs[seq].mem->holder, skv_state_id(&c->state, SKV_TABLE_CLIENTS, client));
}

void skv_seq_unhold(struct skv_core *c, uint32_t seq)
{
	struct skv_seq_row *q = skv_write_seq(&c->state, seq);

	skv_write_session(&c->state, q->session)->sequences--;
	q->session = SKV_NO_INDEX;
	q->fresh = 0;
	q->used = ++skv_write_header(&c->state)->uses;
	q->idle_since_ns = 0;
	skv_idle_update(c, seq);
	atomic_store(&c->seqs[seq].mem->holder, 0);
}

struct skv_core_seq_info skv_seq_info(const struct skv_core *c, uint32_t seq)
{
	return (struct skv_core_seq_info){
		.seq = skv_state_id(&c->state, SKV_TABLE_SEQUENCES, seq),
		.max_tokens = skv_seq_row(&c->state, seq)->max_tokens,
		.bytes = c->seqs[seq].layout.total,
		.fd = c->seqs[seq].fd,
	};
}

int skv_seq_check_name(struct skv_core *c, uint32_t account, const struct skv_model *m, const char *name)
{
	if (!name[0])
		return 0;
	if (!skv_name_valid(name))
		return skv_core_refuse(c, SKV_CORE_E_INVALID,
		                  "a sequence's name is 1 to %u printable ASCII bytes without space or '/'",
		                  SKV_NAME_MAX - 1);
	if (skv_seq_find(c, account, m, name) != SKV_NO_INDEX)
		return skv_core_refuse(c, SKV_CORE_E_EXIST, "model '%s' already has a sequence '%s'", m->name,
		                  name);
	return 0;
}

/* Number of the account's sealed prefixes. */
static uint32_t count_prefixes(const struct skv_core *c, uint32_t account)
{
	uint32_t n = 0;

	for (uint32_t i = skv_idle_first(c, account); i != SKV_NO_INDEX; i = skv_idle_after(c, i))
		n += skv_is_prefix(skv_seq_row(&c->state, i));
	return n;
}

int skv_seq_quota_allows(struct skv_core *c, uint32_t account, bool seals)
{
	const struct skv_account_row *a = skv_account_row(&c->state, account);

	if (a->sequences < c->config.account_sequences ||
	    (!seals && a->sequences - count_prefixes(c, account) < c->config.account_sequences))
		return 0;
	return skv_core_refuse(c, SKV_CORE_E_QUOTA, "UID %u already has %u sequences, the most that are allowed",
	                       a->uid, c->config.account_sequences);
}

int skv_seq_make(struct skv_core *c, uint32_t pool, const struct skv_model *m, const char *name, uint32_t max_tokens,
                 uint32_t *ret_seq)
{
	struct skv_pool_row *p = skv_write_pool(&c->state, pool);
	struct skv_account_row *a = skv_write_account(&c->state, p->account);
	char kept[SKV_FDSTORE_NAME];
	struct skv_seq_row *q;
	uint32_t seq;
	int r = skv_seq_check_name(c, p->account, m, name);

	if (!r)
		r = skv_charge_allows(c, p->account, SKV_SEQ_BYTES);
	if (!r)
		r = skv_room_allows(c, p->account, SKV_SEQ_ROOM);
	if (!r)
		r = skv_fdstore_allows(c);
	if (r)
		return r;
	if (max_tokens > SKV_MAX_TOKENS ||
	    (uint64_t)m->n_layers * skv_pages_of(max_tokens) > SKV_SEQ_MAX_ENTRIES)
		return skv_core_refuse(c, SKV_CORE_E_INVALID,
		                  "a sequence of %u tokens in %u layers needs more than %u table entries",
		                  max_tokens, m->n_layers, SKV_SEQ_MAX_ENTRIES);
	r = skv_seq_quota_allows(c, p->account, false);
	if (r)
		return r;
	if (!skv_share_allows(c, SKV_TABLE_SEQUENCES, a->sequences))
		return skv_core_refuse(c, SKV_CORE_E_NOSPC,
		                       "UID %u has %u sequences; the rest of the daemon's %u is reserved for others",
		                       a->uid, a->sequences,
		                       c->config.max_sequences);
	seq = skv_state_take(&c->state, SKV_TABLE_SEQUENCES);
	r = skv_seqfile_new(&c->seqs[seq], seq, m, max_tokens);
	if (r < 0) {
		skv_state_give(&c->state, SKV_TABLE_SEQUENCES, seq);
		return skv_core_refuse_system(c, r, "memory for a sequence");
	}
	q = skv_write_seq(&c->state, seq);
	q->account = p->account;
	q->pool = pool;
	q->session = SKV_NO_INDEX;
	q->max_tokens = max_tokens;
	q->file = skv_fdstore_file(c->seqs[seq].fd);
	q->model = *m;
	snprintf(q->name, sizeof(q->name), "%s", name);
	skv_names_add(c, seq);
	skv_fdstore_name(&c->state, SKV_TABLE_SEQUENCES, seq, kept);
	skv_fdstore_add(c, kept, c->seqs[seq].fd);
	skv_charge_seq(c, seq);
	a->sequences++;
	p->sequences++;
	*ret_seq = seq;
	return 0;
}

int skv_seq_make_held(struct skv_core *c, uint32_t session, const char *name, uint32_t max_tokens, uint32_t *ret_seq)
{
	const struct skv_session_row *s = skv_session_row(&c->state, session);
	int r;

	skv_charge_newest(c, session);
	r = skv_seq_make(c, s->pool, &s->model, name, max_tokens, ret_seq);
	if (r)
		return r;
	c->sessions[session].newest = skv_state_id(&c->state, SKV_TABLE_SEQUENCES, *ret_seq);
	skv_seq_hold(c, *ret_seq, session);
	skv_write_seq(&c->state, *ret_seq)->fresh = 1;
	return 0;
}

/* *at is the next page: first for dropping references, then for freeing pages. The holder keeps its pages on lease. */
enum skv_progress skv_seq_remove_some(struct skv_core *c, uint32_t seq, uint32_t *at, uint32_t *units)
{
	struct skv_seq_row *q = skv_write_seq(&c->state, seq);
	uint32_t pool = q->pool;
	char kept[SKV_FDSTORE_NAME];

	if (q->refs && !skv_refs_drop_some(c, seq, NULL, 0, at, units))
		return SKV_GOES_ON;
	if (q->referred) {
		skv_refs_free(c, seq);
		*at = 0;
	}
	if (!skv_pages_hand_over_some(c, pool, skv_owner_make(SKV_OWNER_SEQ, seq), 0, q->pages, at, units))
		return SKV_GOES_ON;
	if (q->session != SKV_NO_INDEX)
		skv_seq_unhold(c, seq);
	skv_charge(c, q->account, &q->bytes, 0);
	skv_write_account(&c->state, q->account)->copied_bytes -= q->copied;
	skv_fdstore_name(&c->state, SKV_TABLE_SEQUENCES, seq, kept);
	skv_fdstore_remove(c, kept);
	skv_prefixes_remove(c, seq);
	skv_park_set(c, seq, SKV_PARK_NOT);
	skv_idle_remove(c, seq);
	skv_seqfile_free(c, &c->seqs[seq]);
	skv_write_account(&c->state, q->account)->sequences--;
	skv_write_pool(&c->state, pool)->sequences--;
	skv_state_give(&c->state, SKV_TABLE_SEQUENCES, seq);
	skv_pool_shrink(c, pool);
	return SKV_DONE;
}

void skv_seq_remove(struct skv_core *c, uint32_t seq)
{
	uint32_t at = 0, units = UINT32_MAX;

	while (skv_seq_remove_some(c, seq, &at, &units) == SKV_GOES_ON)
		units = UINT32_MAX;
}
