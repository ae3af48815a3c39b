/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/operations/joint.c - sequences whose tensor-parallel ranks commit together.
 *
 * Each rank's sequence has its own commits, and the last commit that all ranks have made counts. Commits of two ranks
 * are the same commit if they have the same number of tokens and the same number of tokens compressed by all ranks
 * together. Ranks differ by at most one commit: a rank that has committed begins no step until it knows that all ranks
 * have. When the sequence of a rank that is ahead loses its holder, the commits of the other ranks decide whether the
 * last commit of that sequence counts. A rank that is behind and whose client is gone will never make the commit, so
 * the commit is taken back. A rank that is behind and whose client lives may still make the commit.
 *
 * The commit words are in sequence memory, which clients write. All ranks belong to one user, and only that user is
 * harmed by wrong words.
 */
#include "daemon/core/operations/joint.h"

#include "daemon/core/sequences/names.h"
#include "daemon/core/operations/task.h"

/* For two sequences of the same name: is `other` another rank of the tensor-parallel group of `q`? */
static bool is_rank_of(const struct skv_seq_row *q, const struct skv_seq_row *other)
{
	return other->model.n_ranks == q->model.n_ranks && other->model.rank != q->model.rank;
}

/* The next sequence after `i` with the name of `q`: `q` itself or another rank. */
static uint32_t next_of_name(const struct skv_core *c, const struct skv_seq_row *q, uint32_t i)
{
	return skv_names_next(c, i, q->account, q->model.name, q->name);
}

/* Do the ranks of the sequence's tensor-parallel group commit together? */
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

/* The numbers that are equal in all ranks for the same joint commit. */
struct mark {
	uint32_t len;
	uint64_t compressed; /* number of tokens with latent codes (of all ranks' heads), summed over the layers */
};

/* The mark of a sequence's commit of this epoch, which is the last commit or the one before it. */
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
		return SKV_DONE; /* all ranks have made the commit, or it changed no number on which ranks must agree */
	for (uint32_t i = next_of_name(c, q, SKV_NO_INDEX); i != SKV_NO_INDEX; i = next_of_name(c, q, i)) {
		bool alive;

		if (!is_rank_of(q, skv_seq_row(&c->state, i)) || !is_joint(c, i))
			continue;
		alive = is_alive(c, i); /* checked before the commit is read: a dead client makes no commit later */
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
