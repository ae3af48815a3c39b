/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/rank-group.h - tensor-parallel ranks as threads of a test: the all-reduce between them.
 *
 * Each rank's session has a member as its all_reduce_ctx. An all-reduce ends when all ranks of the group have called
 * it.
 */
#ifndef SKV_RANK_GROUP_H
#define SKV_RANK_GROUP_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include <sparsekv/types.h>

#define RANK_GROUP_MAX 4u

struct rank_group {
	uint32_t n;
	pthread_barrier_t all;
	struct rank_member {
		struct rank_group *group;
		const float *data; /* of the current all-reduce, in host memory */
		size_t count;
		uint64_t scores, confirmed; /* number of calls so far: of more than 16 numbers, and of at most 16 */
		/* if not 0, the next calls of that kind return this at once, without the other ranks */
		int fail_scores, fail_confirm;
	} member[RANK_GROUP_MAX];
};

void rank_group_begin(struct rank_group *, uint32_t n);
void rank_group_end(struct rank_group *);
/* Makes `model` that of rank `rank` of the group, with its share of the heads. */
void rank_group_join(struct rank_group *, uint32_t rank, struct skv_model *model);

/* Runs fn(ctx, rank) on a thread for each rank. */
void rank_group_run(const struct rank_group *, void (*fn)(void *ctx, uint32_t rank), void *ctx);

#endif
