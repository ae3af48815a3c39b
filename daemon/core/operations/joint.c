/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/operations/joint.c - sequences whose tensor-parallel ranks commit together.
 *
 * Each rank's sequence has its own commits, and the last commit that all ranks have made counts. Commits of two ranks
 * are the same if they have equally many tokens, and equally many that ranks compressed together. Ranks differ by at
 * most one commit, and only while one has committed and does not know yet that all have. When the sequence of such a
 * rank loses its holder, the commits of the other ranks decide: a rank that is behind and whose client is gone will not
 * follow. A rank whose client lives may still follow.
 *
 * All these words are in clients' memory, all of one user; only that user is harmed if they are wrong.
 */
#include "daemon/core/operations/joint.h"

#include "daemon/core/sequences/names.h"
#include "daemon/core/operations/task.h"

/* For two sequences of one name: is the other one another rank of the same group? */
static bool is_rank_of(const struct skv_seq_row *q, const struct skv_seq_row *other)
{
	return other->model.n_ranks == q->model.n_ranks && other->model.rank != q->model.rank;
}

/* The next sequence of the group after `i`, `q` itself included. */
static uint32_t next_of_name(const struct skv_core *c, const struct skv_seq_row *q, uint32_t i)
{
	return skv_names_next(c, i, q->account, q->model.name, q->name);
}

/* Do the ranks of its group commit together? */
static bool is_joint(const struct skv_core *c, uint32_t seq)
{
	const struct skv_seq_row *q = skv_seq_row(&c->state, seq);

	return q->model.n_ranks > 1 && q->name[0] &&
	       atomic_load_explicit(&c->seqs[seq].mem->joint, memory_order_acquire);
}

static uint64_t commit_of(const struct skv_core *c, uint32_t seq)
{
	return atomic_load_explicit(&c->seqs[seq].mem->commit, memory_order_acquire);
}

/* What a joint commit must agree on. */
struct mark {
	uint32_t len;
	uint64_t compressed; /* tokens with latent codes, which are of all ranks' heads; summed over the layers */
};

/* Of the last commit or the one before. */
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

/* May the client that holds the sequence still commit? */
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
		return SKV_DONE; /* all ranks have the commit, or it changed nothing that ranks commit together */
	for (uint32_t i = next_of_name(c, q, SKV_NO_INDEX); i != SKV_NO_INDEX; i = next_of_name(c, q, i)) {
		bool alive;

		if (!is_rank_of(q, skv_seq_row(&c->state, i)) || !is_joint(c, i))
			continue;
		alive = is_alive(c, i); /* before its commit is read: a client does not commit after its end */
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
