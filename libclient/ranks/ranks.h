/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/ranks/ranks.h - reduces scores of all heads over tensor-parallel ranks, each of which has some heads. */
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

/* Does the layer have one row of scores for all heads, including the heads of other ranks? */
bool ranks_share_scores(const struct skv_session *s, const struct skv_plan *plan);

/*
 * Can ranks run the planned policy with a single rank's results? 0, -EINVAL (all_reduce_max is missing), or -ENOTSUP.
 */
int ranks_check(const struct skv_session *s, const struct policy *p);

/*
 * Call when the layer's scores of these rows were made from this rank's heads: reduces the scores over all ranks, if
 * ranks share them. An error is recorded as the step's: step.ranks_error.
 */
void ranks_reduce_scores(struct skv_session *s, const struct policy_batch *pb, uint32_t layer, const struct skv_batch *rows);

/*
 * Replace data[count], in the model's memory, by the maximum over all ranks. An error is recorded in step.ranks_error.
 */
void ranks_reduce(struct skv_session *s, uint32_t layer, float *data, size_t count);

#endif
