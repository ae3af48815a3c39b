/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/operations/detach.c - detaches a sequence from its holder.
 *
 * A named sequence is recovered to its last commit and its tables are checked. The private pages that the tables name
 * become the sequence's own, and references to pages that the tables do not name are dropped. An anonymous sequence is
 * removed. The work grows with the number of tokens, so it is done in turns. The progress of a detach is in struct
 * skv_detach and in the owner words: a page is LEASE(old holder) until it is SEQ(sequence). Until the end the sequence
 * is held by its old holder.
 *
 * Each detach has an array of marks of its own, since several clients may die at the same time.
 */
#include "daemon/core/operations/detach.h"

#include <errno.h>
#include <stdio.h>
#include "daemon/core/memory/pools.h"
#include "daemon/core/memory/refs.h"
#include "daemon/core/sequences/sequence-file.h"
#include "daemon/core/sequences/sequences.h"
#include "daemon/core/operations/joint.h"

static void say_corrupt(const struct skv_core *c, struct skv_detach *s)
{
	s->corrupt = true;
	snprintf(s->why, sizeof(s->why), "%s", c->why);
}

int skv_detach_begin(struct skv_core *c, uint32_t seq, uint32_t client, struct skv_detach *s)
{
	uint8_t *marks = skv_marks_new(c, skv_seq_row(&c->state, seq)->pool);

	if (!marks)
		return -ENOMEM;
	*s = (struct skv_detach){.phase = SKV_DETACH_JOINT};
	skv_walk_begin(c, seq, skv_owner_make(SKV_OWNER_LEASE, client), marks, &s->walk);
	if (skv_seq_row(&c->state, seq)->name[0] && skv_validate_header(c, seq) != 0)
		say_corrupt(c, s);
	if (!skv_seq_row(&c->state, seq)->name[0] || s->corrupt)
		s->phase = SKV_DETACH_REMOVE;
	return 0;
}

void skv_detach_end(struct skv_detach *s)
{
	skv_marks_free(s->walk.marks);
	s->walk.marks = NULL;
}

static void enter(struct skv_core *c, struct skv_detach *s, int phase)
{
	uint32_t seq = s->walk.seq;

	s->phase = phase;
	s->at = 0;
	if (phase == SKV_DETACH_CHECK || phase == SKV_DETACH_TAKE)
		skv_walk_begin(c, seq, s->walk.own, s->walk.marks, &s->walk);
}

/* Works on the current phase as far as *units go. SKV_DONE: the phase is complete. */
static enum skv_progress run(struct skv_core *c, struct skv_detach *s, uint32_t *units)
{
	const struct skv_seq_local *l = &c->seqs[s->walk.seq];
	enum skv_progress p = SKV_DONE;

	switch (s->phase) {
	case SKV_DETACH_JOINT: return skv_joint_settle(c, s->walk.seq, s->gone);
	case SKV_DETACH_REPLAY: return skv_progress_of(c, skv_seqfile_replay(l, &s->at, units));
	case SKV_DETACH_CHECK: return skv_walk_check(c, &s->walk, units);
	case SKV_DETACH_TAKE: return skv_walk_take(c, &s->walk, units);
	case SKV_DETACH_RELEASE:
		return skv_refs_drop_some(c, s->walk.seq, s->walk.marks, SKV_MARK_NAMED, &s->at, units) ? SKV_DONE
		                                                                                        : SKV_GOES_ON;
	case SKV_DETACH_TRIM:
		p = skv_progress_of(c, skv_seqfile_trim(l, &s->offset, units));
		return p == SKV_DONE && skv_validate_memory(c, s->walk.seq) ? SKV_CORRUPT : p;
	case SKV_DETACH_REMOVE: return skv_seq_remove_some(c, s->walk.seq, &s->at, units);
	}
	return p;
}

enum skv_progress skv_detach_some(struct skv_core *c, struct skv_detach *s, uint32_t *units)
{
	for (;;) {
		enum skv_progress r = run(c, s, units);

		if (r == SKV_GOES_ON || r == SKV_FAILED || r == SKV_WAITS)
			return r;
		if (r == SKV_CORRUPT) {
			say_corrupt(c, s);
			enter(c, s, SKV_DETACH_REMOVE);
		} else if (s->phase < SKV_DETACH_TRIM) {
			enter(c, s, (int)s->phase + 1);
		} else {
			break;
		}
	}
	if (s->phase == SKV_DETACH_TRIM) {
		skv_seq_unhold(c, s->walk.seq);
		skv_pool_shrink(c, skv_seq_row(&c->state, s->walk.seq)->pool);
	}
	skv_detach_end(s);
	return SKV_DONE;
}
