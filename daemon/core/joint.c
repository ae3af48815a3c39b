/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/joint.c - sequences whose tensor-parallel ranks commit together.
 *
 * Each rank's sequence has commits of its own, and what counts is the last one that all have: of so many tokens, of which so many are
 * compressed together with other ranks'. Ranks are apart by one at most, and only while one has committed and does not know that all
 * have. When such a one loses its holder, the others' commits tell: one that is behind, and whose client is gone, will not follow. While
 * a client lives it may.
 *
 * All words are in clients' memory: of one user, who alone is hurt if they lie.
 */
#include "daemon/core/joint.h"

#include "daemon/core/names.h"
#include "daemon/core/task.h"

/* Of sequences of one name: is the other one another rank of the same group? */
static bool is_rank_of(const struct skv_seq_row *q, const struct skv_seq_row *other)
{
	return other->model.n_ranks == q->model.n_ranks && other->model.rank != q->model.rank;
}

/* The next sequence behind `i` of the group, itself among them. */
static uint32_t next_of_name(const struct skv_core *c, const struct skv_seq_row *q, uint32_t i)
{
	return skv_names_next(c, i, q->account, q->model.name, q->name);
}

/* Do ranks of it commit together? */
static bool is_joint(const struct skv_core *c, uint32_t seq)
{
	const struct skv_seq_row *q = skv_seq_row(&c->state, seq);

	return q->model.n_ranks > 1 && q->name[0] && atomic_load_explicit(&c->seqs[seq].mem->joint, memory_order_acquire);
}

static uint64_t commit_of(const struct skv_core *c, uint32_t seq)
{
	return atomic_load_explicit(&c->seqs[seq].mem->commit, memory_order_acquire);
}

/* What ranks commit together. */
struct mark {
	uint32_t len;
	uint64_t compressed; /* tokens, of all layers: codes of all heads */
};

/* Of a commit: the last one, or the one before. */
static struct mark mark_of(const struct skv_core *c, uint32_t seq, uint32_t epoch)
{
	const struct skv_seqmem *m = c->seqs[seq].mem;

	return (struct mark){
		.len = __atomic_load_n(&m->len[epoch & 1], __ATOMIC_RELAXED),
		.compressed = skv_seqmem_compressed(m, epoch, skv_seq_row(&c->state, seq)->model.n_layers),
	};
}

static bool same(struct mark a, struct mark b)
{
	return a.len == b.len && a.compressed == b.compressed;
}

/* May the client that has the sequence still commit? */
static bool is_alive(const struct skv_core *c, uint32_t seq)
{
	uint32_t session = skv_seq_row(&c->state, seq)->session;

	return session != SKV_NO_INDEX && !skv_task_ends(c, skv_session_row(&c->state, session)->client);
}

enum skv_progress skv_joint_settle(struct skv_core *c, uint32_t seq, bool gone)
{
	const struct skv_seq_row *q = skv_seq_row(&c->state, seq);
	struct skv_seqmem *m = c->seqs[seq].mem;
	bool behind = false, waits = false;
	struct mark before;
	uint32_t epoch;

	if (!is_joint(c, seq))
		return SKV_DONE;
	epoch = skv_commit_epoch(commit_of(c, seq));
	before = mark_of(c, seq, epoch - 1);
	if (atomic_load_explicit(&m->joint, memory_order_acquire) == epoch + 1 || same(mark_of(c, seq, epoch), before))
		return SKV_DONE; /* all have it, or it was this rank's own affair */
	for (uint32_t i = next_of_name(c, q, SKV_NO_INDEX); i != SKV_NO_INDEX; i = next_of_name(c, q, i)) {
		bool alive;

		if (!is_rank_of(q, skv_seq_row(&c->state, i)) || !is_joint(c, i))
			continue;
		alive = is_alive(c, i); /* before its word is read: nobody commits after its end */
		if (!same(mark_of(c, i, skv_commit_epoch(commit_of(c, i))), before))
			continue;
		behind = true;
		waits |= alive;
	}
	if (waits && gone)
		return SKV_WAITS;
	if (behind)
		(void)skv_seqmem_rewind(m);
	return SKV_DONE;
}

bool skv_joint_held(const struct skv_core *c, uint32_t seq)
{
	const struct skv_seq_row *q = skv_seq_row(&c->state, seq);

	if (!is_joint(c, seq))
		return false;
	for (uint32_t i = next_of_name(c, q, SKV_NO_INDEX); i != SKV_NO_INDEX; i = next_of_name(c, q, i)) {
		const struct skv_seq_row *other = skv_seq_row(&c->state, i);

		if (is_rank_of(q, other) && other->session != SKV_NO_INDEX)
			return true;
	}
	return false;
}
