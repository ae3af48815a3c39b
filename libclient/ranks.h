/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/ranks.h - tensor-parallel ranks: scores of all heads, of which each rank has some. */
#ifndef SKV_CLIENT_RANKS_H
#define SKV_CLIENT_RANKS_H

#include <stdbool.h>
#include <stdint.h>

struct policy;
struct policy_batch;
struct skv_batch;
struct skv_plan;
struct skv_session;

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

#endif
