/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/ranks/ranks.h - tensor-parallel ranks: scores of all heads, of which each rank has some. */
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

/* Does the layer have one row of scores for all heads, those of other ranks included? */
bool ranks_share_scores(const struct skv_session *s, const struct skv_plan *plan);

/*
 * Can ranks run the planned policy with the results of a single rank? 0, -EINVAL (all_reduce_max is missing), -ENOTSUP.
 */
int ranks_check(const struct skv_session *s, const struct policy *p);

/*
 * Call after the layer's scores were made of this rank's heads, for these rows: reduces them over all ranks, if ranks
 * share them. An error becomes the step's: step.ranks_error.
 */
void ranks_reduce_scores(struct skv_session *s, const struct policy_batch *pb, uint32_t layer, const struct skv_batch *rows);

/* data[count], in the model's memory, becomes the maximum of all ranks'. An error becomes the step's, too. */
void ranks_reduce(struct skv_session *s, uint32_t layer, float *data, size_t count);

#endif
