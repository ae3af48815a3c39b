/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/ranks.h - tensor-parallel ranks: what is of all heads, of which each rank has some. */
#ifndef SKV_CLIENT_RANKS_H
#define SKV_CLIENT_RANKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct policy;
struct policy_batch;
struct skv_batch;
struct skv_plan;
struct skv_session;

/* Has the layer one row of scores for all heads, of this rank and of others? */
bool ranks_share_scores(const struct skv_session *s, const struct skv_plan *plan);

/* Can ranks run the policy, which has been planned, and select and compress what one would? 0, -EINVAL (no all_reduce_max), -ENOTSUP. */
int ranks_check(const struct skv_session *s, const struct policy *p);

/*
 * The layer's scores have just been made of this rank's heads, for these rows: if ranks share them, make them those of all. An
 * error is the step's: ranks_failed().
 */
void ranks_reduce_scores(struct skv_session *s, const struct policy_batch *pb, uint32_t layer, const struct skv_batch *rows);

/* data[count] in the model's memory becomes the maximum of all ranks'. An error is the step's, as well. */
void ranks_reduce(struct skv_session *s, uint32_t layer, float *data, size_t count);

/* 0, or what all_reduce_max() answered in the open step. */
int ranks_failed(const struct skv_session *s);

#endif
