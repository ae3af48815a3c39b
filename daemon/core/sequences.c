/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences: made, handed on, forked, let go.
 *
 * Held, a sequence's own pages are LEASE(its holder) and the core does not tell them from the holder's
 * stock. Detached, they are SEQ(sequence). References to shared pages are the sequence's in both.
 */
#include "daemon/core/lookup.h"
#include "daemon/core/pages.h"
#include "daemon/core/pools.h"
#include "daemon/core/reclaim.h"
#include "daemon/core/refs.h"
#include "daemon/core/refuse.h"
#include "daemon/core/seqfile.h"
#include "daemon/core/sequences.h"
#include "daemon/core/validate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t find_named(const struct skv_core *c, uint32_t account, const struct skv_model *m,
                           const char *name)
{
	SKV_EACH(i, &c->state, SKV_TABLE_SEQUENCES) {
		const struct skv_seq_row *q = skv_seq_row(&c->state, i);

		if (q->account == account && q->name[0] && !strcmp(q->name, name) &&
		    !strcmp(q->model.name, m->name) && q->model.rank == m->rank &&
		    q->model.n_ranks == m->n_ranks)
			return i;
	}
	return SKV_NO_INDEX;
}

static bool same_shape(const struct skv_model *a, const struct skv_model *b)
{
	return a->n_layers == b->n_layers && a->n_heads == b->n_heads && a->n_kv_heads == b->n_kv_heads &&
	       a->head_dim == b->head_dim && a->kv_dtype == b->kv_dtype;
}

static void hold(struct skv_core *c, uint32_t seq, uint32_t session)
{
	uint32_t client = skv_session_row(&c->state, session)->client;

	skv_seq_row(&c->state, seq)->session = session;
	skv_session_row(&c->state, session)->sequences++;
	atomic_store(&c->seqs[seq].mem->holder, skv_state_id(&c->state, SKV_TABLE_CLIENTS, client));
}

void skv_seq_unhold(struct skv_core *c, uint32_t seq)
{
	struct skv_seq_row *q = skv_seq_row(&c->state, seq);

	skv_session_row(&c->state, q->session)->sequences--;
	q->session = SKV_NO_INDEX;
	atomic_store(&c->seqs[seq].mem->holder, 0);
}

static struct skv_core_seq_info info_of(const struct skv_core *c, uint32_t seq)
{
	return (struct skv_core_seq_info){
		.seq = skv_state_id(&c->state, SKV_TABLE_SEQUENCES, seq),
		.max_tokens = skv_seq_row(&c->state, seq)->max_tokens,
		.bytes = c->seqs[seq].layout.total,
		.fd = c->seqs[seq].fd,
	};
}

static int check_name(struct skv_core *c, uint32_t account, const struct skv_model *m, const char *name)
{
	if (!name[0])
		return 0;
	if (!skv_name_valid(name))
		return skv_core_refuse(c, SKV_CORE_E_INVALID,
		                  "a sequence's name is 1 to %u printable ASCII bytes without space or '/'",
		                  SKV_NAME_MAX - 1);
	if (find_named(c, account, m, name) != SKV_NO_INDEX)
		return skv_core_refuse(c, SKV_CORE_E_EXIST, "model '%s' already has a sequence '%s'", m->name,
		                  name);
	return 0;
}

/* An empty sequence, held by the session. */
static int make(struct skv_core *c, uint32_t session, const char *name, uint32_t max_tokens,
                uint32_t *ret_seq)
{
	const struct skv_session_row *s = skv_session_row(&c->state, session);
	struct skv_pool_row *p = skv_pool_row(&c->state, s->pool);
	struct skv_account_row *a = skv_account_row(&c->state, p->account);
	struct skv_seq_row *q;
	uint32_t seq;
	int r = check_name(c, p->account, &s->model, name);

	if (r)
		return r;
	if (max_tokens > SKV_MAX_TOKENS ||
	    (uint64_t)s->model.n_layers * skv_pages_of(max_tokens) > SKV_CORE_MAX_ENTRIES)
		return skv_core_refuse(c, SKV_CORE_E_INVALID,
		                  "a sequence of %u tokens in %u layers needs more than %u table entries",
		                  max_tokens, s->model.n_layers, SKV_CORE_MAX_ENTRIES);
	if (a->sequences >= c->config.account_sequences)
		return skv_core_refuse(c, SKV_CORE_E_QUOTA,
		                  "UID %u already has %u sequences, the most that are allowed", a->uid,
		                  c->config.account_sequences);
	seq = skv_state_take(&c->state, SKV_TABLE_SEQUENCES);
	if (seq == SKV_NO_INDEX)
		return skv_core_refuse(c, SKV_CORE_E_NOSPC,
		                  "the daemon already has %u sequences, the most that it takes",
		                  c->config.max_sequences);
	r = skv_seqfile_new(&c->seqs[seq], seq, &s->model, max_tokens);
	if (r < 0) {
		skv_state_give(&c->state, SKV_TABLE_SEQUENCES, seq);
		return skv_core_refuse_system(c, r, "memory for a sequence");
	}
	q = skv_seq_row(&c->state, seq);
	q->account = p->account;
	q->pool = s->pool;
	q->max_tokens = max_tokens;
	q->model = s->model;
	snprintf(q->name, sizeof(q->name), "%s", name);
	hold(c, seq, session);
	a->sequences++;
	p->sequences++;
	*ret_seq = seq;
	return 0;
}

/* The sequence and its references; pages on lease to a holder stay there. */
enum skv_progress skv_seq_remove_some(struct skv_core *c, uint32_t seq, uint32_t *at, uint32_t *units)
{
	struct skv_seq_row *q = skv_seq_row(&c->state, seq);
	uint32_t pool = q->pool;

	if (!skv_refs_drop(c, seq, units) ||
	    !skv_pages_hand_over_some(c, pool, skv_owner_make(SKV_OWNER_SEQ, seq), 0, q->pages, at, units))
		return SKV_GOES_ON;
	if (q->session != SKV_NO_INDEX)
		skv_seq_unhold(c, seq);
	skv_seqfile_free(c, &c->seqs[seq]);
	skv_account_row(&c->state, q->account)->sequences--;
	skv_pool_row(&c->state, pool)->sequences--;
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
		                  "a sequence of %u tokens asked for, and the model takes %u", max_tokens,
		                  most);
	r = make(c, session, name ? name : "", max_tokens ? max_tokens : most, &seq);
	if (r)
		return r;
	*ret = info_of(c, seq);
	return 0;
}

static int held(struct skv_core *c, const char *name, uint32_t by)
{
	const struct skv_client_row *holder = skv_client_row(&c->state, by);

	if (skv_reclaims_client(c, by))
		return skv_core_refuse(c, SKV_CORE_E_TURNS, "sequence '%s' is being taken back from process %d, which is gone",
		                       name, (int)holder->pid);
	if (holder->fenced)
		return skv_core_refuse(c, SKV_CORE_E_FENCED,
		                       "sequence '%s' is held by process %d, which is alive, though its connection ended",
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
	seq = find_named(c, skv_client_row(&c->state, client)->account, &s->model, name);
	if (seq == SKV_NO_INDEX)
		return skv_core_refuse(c, SKV_CORE_E_NOENT, "model '%s' has no sequence '%.*s'", s->model.name,
		                  SKV_NAME_MAX, name);
	q = skv_seq_row(&c->state, seq);
	if (q->session != SKV_NO_INDEX)
		return held(c, name, skv_session_row(&c->state, q->session)->client);
	if (q->model.device != s->model.device)
		return skv_core_refuse(c, SKV_CORE_E_INVALID, "sequence '%s' is in %s, and the session is not",
		                  name, q->model.device ? "the memory of another device" : "host memory");
	if (!same_shape(&q->model, &s->model))
		return skv_core_refuse(c, SKV_CORE_E_INVALID,
		                  "sequence '%s' was made with another shape of model '%s'", name,
		                  s->model.name);
	r = skv_validate_header(c, seq);
	if (r) {
		skv_seq_remove(c, seq);
		return r;
	}
	skv_pages_hand_over(c, q->pool, skv_owner_make(SKV_OWNER_SEQ, seq),
	                    skv_owner_make(SKV_OWNER_LEASE, client), q->pages);
	hold(c, seq, session);
	*ret = info_of(c, seq);
	return 0;
}

/* A page of the parent's own becomes one that both refer to. */
static skv_pte share_page(struct skv_core *c, skv_pte entry, void *both)
{
	const uint32_t *seqs = both;

	skv_refs_add(c, seqs[0], skv_pte_id(entry));
	skv_refs_add(c, seqs[1], skv_pte_id(entry));
	return skv_pte_make(SKV_PTE_SHARED, skv_pte_id(entry));
}

/* Both refer to all that the parent's tables name, which say so. */
static void share(struct skv_core *c, uint32_t parent, uint32_t child, const struct skv_walk *w)
{
	SKV_EACH_REF(b, i, &c->state, parent)
		if (w->marks[b->page[i]] == SKV_MARK_NAMED)
			skv_refs_add(c, child, b->page[i]);
	skv_walk_each_own(c, w, share_page, (uint32_t[]){parent, child});
}

/* All that can be refused comes first; the parent and the state change only after it. */
static int fork_checked(struct skv_core *c, uint32_t parent, const char *name, const struct skv_walk *w, uint32_t *ret_child)
{
	const struct skv_seq_row *q = skv_seq_row(&c->state, parent);
	uint64_t blocks = skv_refs_blocks_for(c, parent, w->n_own) +
	                  skv_refs_blocks_for(c, SKV_NO_INDEX, w->n_own + w->n_named);
	uint32_t child, at = 0, units = UINT32_MAX;
	int r;

	if (blocks > skv_refs_blocks_left(c))
		return skv_core_refuse(c, SKV_CORE_E_NOSPC, "the table of references to shared pages is full");
	r = make(c, q->session, name, q->max_tokens, &child);
	if (r)
		return r;
	share(c, parent, child, w);
	r = skv_seqfile_copy(&c->seqs[child], &c->seqs[parent]);
	if (r < 0) {
		skv_seq_remove(c, child); /* the parent's pages are shared, with nobody */
		return skv_core_refuse_system(c, r, "memory for a sequence");
	}
	while (!skv_seqfile_trim(&c->seqs[child], &at, &units))
		units = UINT32_MAX;
	*ret_child = child;
	return 0;
}

/* Check the parent with marks of this fork's alone. */
static int fork_marked(struct skv_core *c, uint32_t parent, uint32_t client, const char *name, uint8_t *marks,
                       uint32_t *ret_child)
{
	uint32_t at = 0, units = UINT32_MAX;
	enum skv_progress checked;
	struct skv_walk w;

	while (!skv_seqfile_replay(&c->seqs[parent], &at, &units))
		units = UINT32_MAX;
	at = skv_seq_row(&c->state, parent)->ref_head;
	while (!skv_refs_mark(c, parent, marks, SKV_MARK_REF, &at, &units))
		units = UINT32_MAX;
	skv_walk_begin(c, parent, client, marks, &w);
	while ((checked = skv_walk_check(c, &w, &units)) == SKV_GOES_ON)
		units = UINT32_MAX;
	return checked == SKV_CORRUPT ? SKV_CORE_E_CORRUPT : fork_checked(c, parent, name, &w, ret_child);
}

int skv_core_seq_fork(struct skv_core *c, uint32_t client_id, uint32_t session_id, uint32_t parent_id,
                      const char *name, struct skv_core_seq_info *ret)
{
	uint32_t client, parent, child;
	const struct skv_pool_row *p;
	uint8_t *marks;
	int r = skv_find_held(c, client_id, session_id, parent_id, &client, &parent);

	if (r)
		return r;
	p = skv_pool_row(&c->state, skv_seq_row(&c->state, parent)->pool);
	marks = calloc((size_t)p->max_segments * p->pages_per_segment, 1);
	if (!marks)
		return -ENOMEM;
	r = skv_validate_header(c, parent);
	if (!r)
		r = fork_marked(c, parent, client, name ? name : "", marks, &child);
	free(marks);
	if (r == SKV_CORE_E_CORRUPT)
		skv_seq_remove(c, parent);
	if (r)
		return r;
	*ret = info_of(c, child);
	return 0;
}

int skv_core_seq_detach(struct skv_core *c, uint32_t client_id, uint32_t session_id, uint32_t seq_id)
{
	uint32_t client, seq;
	int r = skv_find_held(c, client_id, session_id, seq_id, &client, &seq);

	return r ? r : skv_reclaim_seq(c, client, seq);
}

int skv_core_seq_drop(struct skv_core *c, uint32_t client_id, uint32_t session_id, uint32_t seq_id)
{
	uint32_t client, seq;
	int r = skv_find_held(c, client_id, session_id, seq_id, &client, &seq);

	if (r)
		return r;
	skv_seq_remove(c, seq);
	return 0;
}

int skv_core_seq_drop_name(struct skv_core *c, uid_t uid, const char *model, const char *name)
{
	uint32_t found = 0, held = 0;

	for (int removing = 0; removing < 2; removing++) {
		SKV_EACH(i, &c->state, SKV_TABLE_SEQUENCES) {
			const struct skv_seq_row *q = skv_seq_row(&c->state, i);

			if (!q->name[0] || strcmp(q->name, name) || strcmp(q->model.name, model) ||
			    skv_account_row(&c->state, q->account)->uid != uid)
				continue;
			found++;
			held += q->session != SKV_NO_INDEX;
			if (removing)
				skv_seq_remove(c, i);
		}
		if (!found)
			return skv_core_refuse(c, SKV_CORE_E_NOENT,
			                  "UID %u has no sequence '%.*s' of a model '%.*s'", uid,
			                  SKV_NAME_MAX, name, SKV_NAME_MAX, model);
		if (held)
			return skv_core_refuse(c, SKV_CORE_E_BUSY, "sequence '%s' is held by a client", name);
	}
	return 0;
}

static void mark_all(struct skv_core *c, uint32_t seq, uint8_t *marks, uint8_t mark)
{
	uint32_t at = skv_seq_row(&c->state, seq)->ref_head, units = UINT32_MAX;

	while (!skv_refs_mark(c, seq, marks, mark, &at, &units))
		units = UINT32_MAX;
}

int skv_core_seq_release(struct skv_core *c, uint32_t client_id, uint32_t session_id, uint32_t seq_id,
                         const struct skv_wire_run *runs, uint32_t n)
{
	uint32_t client, seq, pool, at, units = UINT32_MAX;
	uint8_t *marks;
	bool good = true;
	int r = skv_find_held(c, client_id, session_id, seq_id, &client, &seq);

	if (r)
		return r;
	pool = skv_seq_row(&c->state, seq)->pool;
	marks = c->pools[pool].marks;
	mark_all(c, seq, marks, SKV_MARK_REF);
	for (uint32_t i = 0; good && i < n; i++)
		for (uint64_t page = runs[i].first; good && page < (uint64_t)runs[i].first + runs[i].count;
		     page++) {
			good = page <= SKV_PTE_ID_MASK && skv_page_exists(c, pool, (uint32_t)page) &&
			       marks[page] == SKV_MARK_REF;
			if (good)
				marks[page] = SKV_MARK_RELEASE;
		}
	at = skv_seq_row(&c->state, seq)->ref_head;
	while (good && !skv_refs_release(c, seq, marks, SKV_MARK_RELEASE, &at, &units))
		units = UINT32_MAX;
	mark_all(c, seq, marks, SKV_MARK_NONE);
	if (!good)
		return skv_core_refuse(c, SKV_CORE_E_INVALID,
		                  "a page released is not shared by this sequence, or named twice");
	skv_pool_shrink(c, pool);
	return 0;
}
