/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/operations/fork.c - forks a sequence.
 *
 * First the parent's tables are checked. Then both sequences get references to all pages that the tables name, and the
 * parent's table entries become SHARED. Last the parent's memory is copied to the child's memory, and the child gets a
 * commit of as many tokens as it is to have. Quotas and names are checked before any page is shared. The work grows
 * with the number of tokens, so it is done in turns; a client that writes to the parent meanwhile harms only its own
 * data.
 */
#include "daemon/core/operations/fork.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/core/memory/charge.h"
#include "daemon/core/sequences/idle.h"
#include "daemon/core/sequences/names.h"
#include "daemon/core/sequences/prefixes.h"
#include "daemon/core/sequences/sequence-file.h"
#include "daemon/core/sequences/sequences.h"
#include "daemon/core/state/refuse.h"
#include "daemon/core/operations/age.h"

int skv_fork_begin(struct skv_core *c, uint32_t parent, struct skv_fork *f)
{
	const struct skv_seq_row *q = skv_seq_row(&c->state, parent);
	const skv_owner own = q->session == SKV_NO_INDEX
	                              ? skv_owner_make(SKV_OWNER_SEQ, parent)
	                              : skv_owner_make(SKV_OWNER_LEASE, skv_session_row(&c->state, q->session)->client);
	uint32_t len = skv_seqfile_len(&c->seqs[parent]);
	uint8_t *marks;

	if (f->n_tokens != SKV_ALL && f->n_tokens > len)
		return skv_core_refuse(c, SKV_CORE_E_INVALID,
		                       "got a fork of %u tokens, expected at most the sequence's %u", f->n_tokens, len);
	marks = skv_marks_new(c, q->pool);
	if (!marks)
		return -ENOMEM;
	f->phase = SKV_FORK_REPLAY;
	f->child = SKV_NO_INDEX;
	skv_walk_begin(c, parent, own, marks, &f->walk);
	return 0;
}

void skv_fork_end(struct skv_fork *f)
{
	skv_marks_free(f->walk.marks);
	free(f->keys);
	f->walk.marks = NULL;
	f->keys = NULL;
}

/*
 * Makes the fork fail: `phase` removes the corrupt parent or the child. If there is no child, the caller ends the fork.
 */
static enum skv_progress give_up(struct skv_core *c, struct skv_fork *f, int result, int phase)
{
	f->result = result;
	snprintf(f->why, sizeof(f->why), "%s", c->why);
	f->phase = phase;
	f->at = 0;
	return SKV_GOES_ON;
}

/* Creates the child, after the parent was checked. SKV_DONE: the fork was refused, and there is no child. */
static enum skv_progress make_child(struct skv_core *c, struct skv_fork *f)
{
	const struct skv_seq_row *q = skv_seq_row(&c->state, f->walk.seq);
	uint64_t bytes;
	int r;

	skv_charge_seq(c, f->walk.seq);
	bytes = q->bytes + skv_block_index_bytes(f->n_keys);
	r = skv_charge_allows(c, q->account, bytes);
	if (r == 0 && f->keys)
		r = skv_seq_quota_allows(c, q->account, true);
	if (r == 0)
		r = skv_room_allows(c, q->account, q->bytes);
	if (r == 0)
		r = f->session == SKV_NO_INDEX
		            ? skv_seq_make(c, q->pool, &q->model, f->name, f->max_tokens, &f->child)
		            : skv_seq_make_held(c, f->session, f->name, f->prefix ? f->max_tokens : q->max_tokens,
		                                &f->child);
	if (r) {
		(void)give_up(c, f, r, SKV_FORK_DROP_CHILD);
		return SKV_DONE;
	}
	/* charges the expected size before it is taken, so that two forks do not rely on the same room */
	skv_charge(c, q->account, &skv_write_seq(&c->state, f->child)->bytes, bytes);
	skv_write_seq(&c->state, f->child)->copied = q->bytes;
	skv_write_account(&c->state, q->account)->copied_bytes += q->bytes;
	skv_walk_begin(c, f->walk.seq, f->walk.own, f->walk.marks, &f->walk);
	if (f->n_tokens < f->walk.len)
		f->walk.len = f->n_tokens;
	if (f->prefix)
		f->walk.made = &f->made;
	f->phase = SKV_FORK_SHARE;
	return SKV_GOES_ON;
}

/* Makes the fork fail because the cgroup has no room left: others took the room since the fork was allowed. */
static enum skv_progress crowded_out(struct skv_core *c, struct skv_fork *f)
{
	return give_up(c, f,
	               skv_core_refuse(c, SKV_CORE_E_NOSPC,
	                               "the daemon's memory cgroup has no room for a copy of %llu bytes",
	                               (unsigned long long)skv_seq_row(&c->state, f->walk.seq)->bytes),
	               SKV_FORK_DROP_CHILD);
}

/* Makes the fork fail for lack of memory. Pages of the parent may then be SHARED with the parent as the only user. */
static enum skv_progress no_memory(struct skv_core *c, struct skv_fork *f, int error)
{
	const int r = skv_core_refuse_system(c, error, "memory for a sequence");

	(void)give_up(c, f, r, SKV_FORK_DROP_CHILD);
	return f->child == SKV_NO_INDEX ? SKV_DONE : SKV_GOES_ON;
}

/*
 * Enters a new sealed prefix into the index. The fork fails if another prefix of the same tokens was sealed meanwhile.
 */
static enum skv_progress seal(struct skv_core *c, struct skv_fork *f)
{
	struct skv_seq_row *q = skv_write_seq(&c->state, f->child);
	uint32_t there;

	if (skv_prefixes_longest(c, q->pool, &q->model, f->keys, f->n_keys, &there) == f->n_keys)
		return give_up(c, f, skv_core_refuse(c, SKV_CORE_E_EXIST, "these tokens are already sealed"),
		               SKV_FORK_DROP_CHILD);
	if (skv_prefixes_add(c, f->child, f->keys, f->n_keys) < 0)
		return no_memory(c, f, -ENOMEM);
	skv_prefix_name(&f->keys[f->n_keys - 1], q->name);
	f->keys = NULL; /* the index owns the keys now */
	skv_names_add(c, f->child);
	q->used = ++skv_write_header(&c->state)->uses;
	skv_idle_update(c, f->child);
	(void)skv_age_trim_prefixes(c, q->account);
	return SKV_DONE;
}

static enum skv_progress finish(struct skv_core *c, struct skv_fork *f)
{
	skv_charge_seq(c, f->walk.seq);
	skv_charge_seq(c, f->child);
	return f->keys ? seal(c, f) : SKV_DONE;
}

/* Copies table entries and token ids; then writes the child's first commit, as if its tokens had come as a prompt. */
static enum skv_progress copy_prefix(struct skv_core *c, struct skv_fork *f, uint32_t *units)
{
	const struct skv_seq_local *child = &c->seqs[f->child];
	const struct skv_model *m = &skv_seq_row(&c->state, f->child)->model;
	int r = skv_seqfile_copy_prefix(child, &c->seqs[f->walk.seq], m, &f->made, f->n_tokens, &f->at, &f->offset,
	                                units);

	if (r == 0 && f->keys)
		r = skv_seqfile_write_state(child, f->origin, sizeof(f->origin));
	if (r < 0)
		return no_memory(c, f, r);
	if (r == 0) {
		skv_seqmem_begin_with(child->mem, f->n_tokens, m->n_layers, &f->made);
		f->phase = SKV_FORK_TRIM;
		f->at = 0;
	}
	return SKV_GOES_ON;
}

/* Works on the current phase as far as *units go. SKV_DONE: the fork has ended. */
static enum skv_progress run(struct skv_core *c, struct skv_fork *f, uint32_t *units)
{
	const struct skv_seq_local *parent = &c->seqs[f->walk.seq];
	enum skv_progress p;
	int r = 0;

	if ((f->phase == SKV_FORK_SHARE || f->phase == SKV_FORK_COPY) && skv_core_room_is_used_up(c))
		return crowded_out(c, f);
	switch (f->phase) {
	case SKV_FORK_REPLAY:
		r = skv_seqfile_replay(parent, &f->at, units);
		if (r == 0)
			f->phase = SKV_FORK_CHECK;
		if (r < 0)
			return no_memory(c, f, r);
		return SKV_GOES_ON;
	case SKV_FORK_CHECK:
		p = skv_walk_check(c, &f->walk, units);
		if (p == SKV_FAILED)
			return no_memory(c, f, c->failed);
		return p == SKV_CORRUPT ? give_up(c, f, SKV_CORE_E_CORRUPT, SKV_FORK_DROP_PARENT)
		       : p == SKV_DONE  ? make_child(c, f)
		                        : SKV_GOES_ON;
	case SKV_FORK_SHARE:
		p = skv_walk_share(c, &f->walk, f->child, units);
		if (p == SKV_FAILED)
			return no_memory(c, f, c->failed);
		if (p == SKV_DONE)
			f->phase = SKV_FORK_COPY;
		return SKV_GOES_ON;
	case SKV_FORK_COPY:
		if (f->prefix)
			return copy_prefix(c, f, units);
		r = skv_seqfile_copy_some(&c->seqs[f->child], parent, &f->offset, units);
		if (r < 0)
			return no_memory(c, f, r);
		if (r == 0) {
			skv_seqmem_cut(c->seqs[f->child].mem, f->n_tokens);
			f->phase = SKV_FORK_TRIM;
			f->offset = 0;
		}
		return SKV_GOES_ON;
	case SKV_FORK_TRIM:
		r = skv_seqfile_trim(&c->seqs[f->child], &f->offset, units);
		return r < 0 ? no_memory(c, f, r) : r > 0 ? SKV_GOES_ON : finish(c, f);
	case SKV_FORK_DROP_PARENT: return skv_seq_remove_some(c, f->walk.seq, &f->at, units);
	case SKV_FORK_DROP_CHILD: return skv_seq_remove_some(c, f->child, &f->at, units);
	}
	return SKV_DONE;
}

enum skv_progress skv_fork_some(struct skv_core *c, struct skv_fork *f, uint32_t *units)
{
	enum skv_progress p = SKV_GOES_ON;

	while (p == SKV_GOES_ON && *units > 0)
		p = run(c, f, units);
	if (p == SKV_DONE)
		skv_fork_end(f);
	return p;
}
