/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/operations/prefix.c - makes, finds and forks sealed prefixes.
 *
 * Sealing forks a sequence that a client holds into a prefix, which has no holder. Opening forks a prefix into a
 * sequence that a client holds. Both forks (fork.c) copy only pages and records that hold tokens. A prefix that is
 * being made has no name, so it cannot be found; if the daemon dies meanwhile, the next daemon removes the row.
 */
#include "daemon/core/operations/prefix.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/core/memory/accounts.h"
#include "daemon/core/memory/charge.h"
#include "daemon/core/sequences/idle.h"
#include "daemon/core/sequences/names.h"
#include "daemon/core/sequences/park-queue.h"
#include "daemon/core/sequences/prefixes.h"
#include "daemon/core/sequences/sequence-file.h"
#include "daemon/core/sequences/sequences.h"
#include "daemon/core/sequences/validate.h"
#include "daemon/core/state/lookup.h"
#include "daemon/core/state/refuse.h"
#include "daemon/core/operations/age.h"
#include "daemon/core/operations/leases.h"
#include "daemon/core/operations/parking.h"
#include "daemon/core/operations/requests.h"
#include "daemon/core/operations/task.h"

/* Marks the prefix as used now: of its user's sequences without a holder it becomes the last one to make room. */
static void use(struct skv_core *c, uint32_t seq)
{
	skv_write_seq(&c->state, seq)->used = ++skv_write_header(&c->state)->uses;
	skv_write_seq(&c->state, seq)->idle_since_ns = 0;
	skv_idle_update(c, seq);
}

int skv_core_prefix_ids(struct skv_core *c, uint32_t client_id, uint32_t session_id, uint32_t seq_id, bool committed,
                        uint32_t first, uint32_t n, int32_t *ret)
{
	uint32_t client, seq, len;
	int r = skv_find_held(c, client_id, session_id, seq_id, &client, &seq);

	if (r)
		return r;
	len = committed ? skv_seqfile_len(&c->seqs[seq]) : skv_seq_row(&c->state, seq)->max_tokens;
	if (n > len || first > len - n)
		return skv_core_refuse(c, SKV_CORE_E_INVALID,
		                       "got the first %llu tokens, expected at most the sequence's %u",
		                       (unsigned long long)first + n, len);
	return skv_seqfile_read_ids(&c->seqs[seq], first, n, ret);
}

/*
 * Reads the form of a sequence's tokens from its memory. A client may have written that memory, so the form is checked
 * against the sequence's model.
 */
static int made_of(struct skv_core *c, uint32_t seq, struct skv_made *ret)
{
	const struct skv_seq_row *q = skv_seq_row(&c->state, seq);
	const char *wrong;

	skv_seqmem_made(c->seqs[seq].mem, q->model.n_layers, ret);
	wrong = skv_made_check(ret, &q->model);
	return wrong ? skv_core_refuse(c, SKV_CORE_E_INVALID,
	                               "the sequence memory's description of compressed tokens is not valid: %s", wrong)
	             : 0;
}

int skv_core_prefix_made(struct skv_core *c, uint32_t client_id, uint32_t session_id, uint32_t seq_id,
                         struct skv_made *ret)
{
	uint32_t client, seq;
	int r = skv_find_held(c, client_id, session_id, seq_id, &client, &seq);

	return r ? r : made_of(c, seq, ret);
}

int skv_core_prefix_seal(struct skv_core *c, uint32_t client_id, uint32_t session_id, uint32_t seq_id,
                         const uint8_t origin[SKV_PREFIX_ORIGIN], const struct skv_made *made,
                         const struct skv_block_key *keys, uint32_t n)
{
	struct skv_fork what = {.session = SKV_NO_INDEX,
	                        .n_tokens = n * SKV_BLOCK_TOKENS,
	                        .max_tokens = n * SKV_BLOCK_TOKENS,
	                        .prefix = true,
	                        .made = *made};
	const struct skv_seq_row *q;
	uint32_t client, seq, there;
	int r = skv_find_held(c, client_id, session_id, seq_id, &client, &seq);

	if (r)
		return r;
	if (n == 0 || n > SKV_MAX_TOKENS / SKV_BLOCK_TOKENS)
		return skv_core_refuse(c, SKV_CORE_E_INVALID, "got a prefix of %u blocks, expected 1 to %u", n,
		                       SKV_MAX_TOKENS / SKV_BLOCK_TOKENS);
	if (made->n_compressed < n * SKV_BLOCK_TOKENS)
		return skv_core_refuse(c, SKV_CORE_E_INVALID,
		                       "got %u tokens to seal in compressed form, expected at most the compressed %u",
		                       n * SKV_BLOCK_TOKENS, made->n_compressed);
	q = skv_seq_row(&c->state, seq);
	if (skv_prefixes_longest(c, q->pool, &q->model, keys, n, &there) == n) {
		use(c, there);
		return skv_core_refuse(c, SKV_CORE_E_EXIST, "these tokens are already sealed");
	}
	r = skv_validate_header(c, seq);
	if (r)
		return skv_task_drop(c, seq, client, r);
	what.keys = malloc(n * sizeof(*keys));
	if (!what.keys)
		return -ENOMEM;
	memcpy(what.keys, keys, n * sizeof(*keys));
	what.n_keys = n;
	memcpy(what.origin, origin, sizeof(what.origin));
	return skv_task_fork(c, client, seq, &what, NULL);
}

int skv_core_prefix_find(struct skv_core *c, uint32_t client_id, uint32_t session_id, const struct skv_block_key *keys,
                         uint32_t n, uint32_t *ret)
{
	uint32_t client, session, seq;
	int r = skv_find_session(c, client_id, session_id, &client, &session);

	if (r == 0)
		*ret = skv_prefixes_longest(c, skv_session_row(&c->state, session)->pool,
		                            &skv_session_row(&c->state, session)->model, keys, n, &seq);
	return r;
}

int skv_core_prefix_open(struct skv_core *c, uint32_t client_id, uint32_t session_id, const char *name,
                         uint32_t max_tokens, const struct skv_block_key *keys, uint32_t n,
                         struct skv_core_seq_info *ret, uint32_t *ret_blocks)
{
	struct skv_fork what = {.prefix = true};
	const struct skv_session_row *s;
	uint32_t client, session, seq;
	int r = skv_find_session(c, client_id, session_id, &client, &session);

	*ret_blocks = 0;
	if (r)
		return r;
	s = skv_session_row(&c->state, session);
	max_tokens = max_tokens ? max_tokens : s->model.max_tokens;
	n = skv_prefixes_longest(c, s->pool, &s->model, keys,
	                         n < max_tokens / SKV_BLOCK_TOKENS ? n : max_tokens / SKV_BLOCK_TOKENS, &seq);
	if (n == 0)
		return skv_core_seq_new(c, client_id, session_id, name, max_tokens, ret);
	if (max_tokens > s->model.max_tokens)
		return skv_core_refuse(c, SKV_CORE_E_INVALID,
		                       "got a sequence of %u tokens, expected at most the model's %u", max_tokens,
		                       s->model.max_tokens);
	r = skv_seq_check_name(c, skv_seq_row(&c->state, seq)->account, &s->model, name ? name : "");
	if (r)
		return r;
	r = made_of(c, seq, &what.made);
	if (r)
		return r;
	use(c, seq);
	what.session = session;
	what.n_tokens = n * SKV_BLOCK_TOKENS;
	what.max_tokens = max_tokens;
	snprintf(what.name, sizeof(what.name), "%s", name ? name : "");
	*ret_blocks = n;
	return skv_task_fork(c, client, seq, &what, ret);
}

/* ---- import and export ----------------------------------------------------------------------- */

/* Finds the prefix that consists of exactly these blocks, by its name, which is made of the last block's key. */
static uint32_t find_exactly(const struct skv_core *c, uint32_t account, const char *model, uint32_t rank,
                             uint32_t n_ranks, const struct skv_block_key *keys, uint32_t n)
{
	char name[SKV_NAME_MAX];
	uint32_t seq = SKV_NO_INDEX;

	if (n == 0 || account == SKV_NO_INDEX)
		return SKV_NO_INDEX;
	skv_prefix_name(&keys[n - 1], name);
	while ((seq = skv_names_next(c, seq, account, model, name)) != SKV_NO_INDEX) {
		const struct skv_model *m = &skv_seq_row(&c->state, seq)->model;

		if (m->rank == rank && m->n_ranks == n_ranks && c->seqs[seq].n_blocks == n)
			break;
	}
	return seq;
}

int skv_core_prefix_seq(struct skv_core *c, uint32_t client_id, uint32_t session_id, const struct skv_block_key *keys,
                        uint32_t n, uint32_t *ret_seq)
{
	const struct skv_session_row *s;
	uint32_t client, session, seq;
	int r = skv_find_session(c, client_id, session_id, &client, &session);

	if (r)
		return r;
	s = skv_session_row(&c->state, session);
	seq = find_exactly(c, skv_client_row(&c->state, client)->account, s->model.name, s->model.rank,
	                   s->model.n_ranks, keys, n);
	if (seq == SKV_NO_INDEX)
		return skv_core_refuse(c, SKV_CORE_E_NOENT, "these tokens are not sealed");
	*ret_seq = skv_state_id(&c->state, SKV_TABLE_SEQUENCES, seq);
	return 0;
}

int skv_core_prefix_read(struct skv_core *c, uint32_t seq_id)
{
	uint32_t seq = skv_state_find(&c->state, SKV_TABLE_SEQUENCES, seq_id);

	if (seq == SKV_NO_INDEX || !skv_is_prefix(skv_seq_row(&c->state, seq)))
		return skv_core_refuse(c, SKV_CORE_E_NOENT, "the sealed prefix was dropped");
	if (c->seqs[seq].parking != SKV_PARK_NOT && c->seqs[seq].parking != SKV_PARK_FAILED)
		return skv_core_refuse(c, SKV_CORE_E_BUSY, "the prefix is being read, or is leaving memory");
	skv_park_set(c, seq, SKV_PARK_READ);
	c->seqs[seq].wanted = false;
	return 0;
}

bool skv_core_prefix_is_wanted(const struct skv_core *c, uint32_t seq_id)
{
	uint32_t seq = skv_state_find(&c->state, SKV_TABLE_SEQUENCES, seq_id);

	return seq != SKV_NO_INDEX && c->seqs[seq].wanted;
}

void skv_core_prefix_read_end(struct skv_core *c, uint32_t seq_id)
{
	uint32_t seq = skv_state_find(&c->state, SKV_TABLE_SEQUENCES, seq_id);

	if (seq != SKV_NO_INDEX)
		skv_park_set(c, seq, SKV_PARK_NOT);
}

int skv_core_prefix_put_back(struct skv_core *c, uint32_t seq_id, const struct skv_wire_run *runs, uint32_t n)
{
	uint32_t seq = skv_state_find(&c->state, SKV_TABLE_SEQUENCES, seq_id);

	if (seq == SKV_NO_INDEX ||
	    !skv_lease_put_runs(c, skv_seq_row(&c->state, seq)->pool, runs, n, skv_owner_make(SKV_OWNER_SEQ, seq)))
		return skv_core_refuse(c, SKV_CORE_E_NOENT, "got pages that the sequence does not own");
	return 0;
}

static int add_copy(struct skv_core *c, uint32_t seq, const struct skv_block_key *keys, uint32_t n)
{
	struct skv_block_key *own = malloc(n * sizeof(*own) + 1);
	int r = -ENOMEM;

	if (own) {
		memcpy(own, keys, n * sizeof(*own));
		r = skv_prefixes_add(c, seq, own, n);
	}
	if (r < 0)
		free(own);
	return r;
}

int skv_core_prefix_restored(struct skv_core *c, uint32_t seq_id, const uint8_t origin[SKV_PREFIX_ORIGIN],
                             const struct skv_block_key *keys, uint32_t n)
{
	const struct skv_seq_row *q;
	uint32_t seq = skv_state_find(&c->state, SKV_TABLE_SEQUENCES, seq_id), there;
	int r;

	if (seq == SKV_NO_INDEX)
		return skv_core_refuse(c, SKV_CORE_E_NOENT, "the memory that the prefix was read into is lost");
	q = skv_seq_row(&c->state, seq);
	if (skv_prefixes_longest(c, q->pool, &q->model, keys, n, &there) == n)
		return skv_core_refuse(c, SKV_CORE_E_EXIST, "these tokens are already sealed");
	r = skv_charge_allows(c, q->account, skv_block_index_bytes(n));
	if (r == 0 && origin)
		r = skv_seqfile_write_state(&c->seqs[seq], origin, SKV_PREFIX_ORIGIN);
	if (r == 0)
		r = skv_core_restore_done(c, seq_id, "");
	if (r == 0)
		r = add_copy(c, seq, keys, n);
	if (r == 0) {
		skv_prefix_name(&keys[n - 1], skv_write_seq(&c->state, seq)->name);
		skv_names_add(c, seq);
		skv_idle_update(c, seq);
	}
	if (r == 0)
		(void)skv_age_trim_prefixes(c, q->account);
	return r;
}

int skv_core_prefix_keys(struct skv_core *c, uint32_t seq_id, const struct skv_block_key **ret, uint32_t *ret_n)
{
	uint32_t seq = skv_state_find(&c->state, SKV_TABLE_SEQUENCES, seq_id);

	if (seq == SKV_NO_INDEX || c->seqs[seq].n_blocks == 0)
		return skv_core_refuse(c, SKV_CORE_E_NOENT, "the sequence is not a sealed prefix, or was dropped");
	*ret = c->seqs[seq].blocks;
	*ret_n = c->seqs[seq].n_blocks;
	return 0;
}

bool skv_core_prefix_exists(const struct skv_core *c, uid_t uid, const struct skv_wire_model *m,
                            const struct skv_block_key *keys, uint32_t n)
{
	return find_exactly(c, skv_account_find(c, uid), m->name, m->rank, m->n_ranks, keys, n) != SKV_NO_INDEX;
}

/* ---- after a start --------------------------------------------------------------------------- */

bool skv_core_prefix_next(struct skv_core *c, uint32_t *row, uint32_t *ret_seq, uid_t *ret_uid, uint32_t *ret_blocks)
{
	for (; (*row = skv_state_next(&c->state, SKV_TABLE_SEQUENCES, *row)) != SKV_NO_INDEX; ++*row) {
		const struct skv_seq_row *q = skv_seq_row(&c->state, *row);

		if (!skv_is_prefix(q) || c->seqs[*row].n_blocks)
			continue;
		*ret_seq = skv_state_id(&c->state, SKV_TABLE_SEQUENCES, *row);
		*ret_uid = skv_account_row(&c->state, q->account)->uid;
		*ret_blocks = skv_seqfile_len(&c->seqs[*row]) / SKV_BLOCK_TOKENS;
		++*row;
		return true;
	}
	return false;
}

int skv_core_prefix_origin(struct skv_core *c, uint32_t seq_id, uint8_t ret[SKV_PREFIX_ORIGIN])
{
	uint32_t seq = skv_state_find(&c->state, SKV_TABLE_SEQUENCES, seq_id);

	return seq == SKV_NO_INDEX ? -ENOENT : skv_seqfile_read_state(&c->seqs[seq], ret, SKV_PREFIX_ORIGIN);
}

int skv_core_prefix_sealed_ids(struct skv_core *c, uint32_t seq_id, uint32_t first, uint32_t n, int32_t *ret)
{
	uint32_t seq = skv_state_find(&c->state, SKV_TABLE_SEQUENCES, seq_id);

	return seq == SKV_NO_INDEX ? -ENOENT : skv_seqfile_read_ids(&c->seqs[seq], first, n, ret);
}

int skv_core_prefix_add(struct skv_core *c, uint32_t seq_id, const struct skv_block_key *keys, uint32_t n)
{
	uint32_t seq = skv_state_find(&c->state, SKV_TABLE_SEQUENCES, seq_id);
	char name[SKV_NAME_MAX] = "";
	int r;

	if (n > 0)
		skv_prefix_name(&keys[n - 1], name);
	if (seq == SKV_NO_INDEX || strcmp(name, skv_seq_row(&c->state, seq)->name))
		return seq == SKV_NO_INDEX || skv_task_drop(c, seq, SKV_NO_INDEX, 0) == 0 ? 0 : -ENOMEM;
	r = add_copy(c, seq, keys, n);
	return r < 0 ? r : 1;
}
