/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/ranks.h - tensor-parallel ranks: what they agree on. */
#ifndef SKV_CLIENT_RANKS_H
#define SKV_CLIENT_RANKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct device_step;
struct policy;
struct policy_batch;
struct skv_batch;
struct skv_plan;
struct skv_seq;
struct skv_session;

/* ---- selection ------------------------------------------------------------------------------- */

/* Has the layer one row of scores for all heads, of this rank and of others? */
bool ranks_share_scores(const struct skv_session *s, const struct skv_plan *plan);

/* Can ranks run the policy, which has been planned, and select what one would? 0, -EINVAL (no all_reduce_max), -ENOTSUP. */
int ranks_check(const struct skv_session *s, const struct policy *p);

/*
 * The layer's scores have just been made of this rank's heads, for these rows: if ranks share them, make them those of all. An
 * error is the step's: ranks_failed().
 */
void ranks_reduce_scores(struct skv_session *s, const struct policy_batch *pb, uint32_t layer, const struct skv_batch *rows);

/* 0, or what all_reduce_max() answered in the open step. */
int ranks_failed(const struct skv_session *s);

/* ---- joint commits --------------------------------------------------------------------------- */

/* What ranks tell each other when they commit: numbers of which each gets the largest. */
#define RANKS_WORDS 6u

/* Does a commit of the session's count only when all ranks have made it? */
bool ranks_joint(const struct skv_session *s);

int ranks_open(struct skv_session *s);
void ranks_close(struct skv_session *s);

/* 0, or -ECONNABORTED: a commit was not confirmed, or ranks run different policies. Then nothing may begin any more. */
int ranks_state(const struct skv_session *s);
/* Before the first step all ranks meet. As ranks_state(). */
int ranks_begin(struct skv_session *s);

/*
 * Tell the others that this rank has committed, and wait until all have: in host memory, or with nothing of a device under way.
 * False: it is not known whether all have; ranks_state() says so from then on.
 */
bool ranks_confirm(struct skv_session *s);

/* The same at the end of a step on a device, queued behind its commit; its answer is taken when it has run. */
void ranks_queue_confirm(struct skv_session *s, struct device_step *x);
/* Have all ranks committed this step, which has run? For each step, in their order. */
bool ranks_confirmed(struct skv_session *s, const struct device_step *x);

/* The sequence's commit of this epoch is one that all ranks have; or, to begin with, each commits for itself. */
void ranks_know(struct skv_seq *q, uint32_t epoch);

/* The generation of the policy that all ranks are ready to swap to in the step that begins now, or 0. */
uint32_t ranks_agreed_swap(const struct skv_session *s);
/* Of a generation, what ranks tell each other; never 0. */
uint32_t ranks_generation(uint64_t generation);

#endif
