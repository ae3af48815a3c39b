/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/ranks/joint.h - commits of tensor-parallel ranks, which count when all ranks have committed.
 *
 * If session.joint is NULL, each commit counts by itself.
 */
#ifndef SKV_CLIENT_RANKS_JOINT_H
#define SKV_CLIENT_RANKS_JOINT_H

#include <stdbool.h>
#include <stdint.h>

struct device_step;
struct skv_seq;
struct skv_session;

/* 0, or -ECONNABORTED: a commit was not confirmed, or ranks run different policies. Then nothing may begin any more. */
int joint_state(const struct skv_session *s);
/* Before the first step: wait until all ranks have begun. Returns as joint_state(). */
int joint_begin(struct skv_session *s);

/*
 * Get the minimum and maximum of all ranks' numbers, from -2^24 to 2^24; waits. All ranks call it, in the same order.
 * Returns as joint_state().
 */
int joint_compare(struct skv_session *s, int32_t own, int32_t *ret_least, int32_t *ret_most);

/*
 * Tell the others that this rank has committed, and wait until all have. In host memory, or with nothing queued on the
 * device. False: it is not known whether all have; joint_state() fails from then on.
 */
bool joint_confirm(struct skv_session *s);

/* The same at the end of a step on a device, queued behind its commit. joint_confirmed() takes the answer. */
void joint_queue(struct skv_session *s, struct device_step *x);
/* Have all ranks committed this step, which has run? Called for each step, in their order. */
bool joint_confirmed(struct skv_session *s, const struct device_step *x);

/*
 * Record that all ranks have the sequence's commit of this epoch; without session.joint, that each commits for itself.
 */
void joint_know(struct skv_seq *q, uint32_t epoch);

/* The generation of the policy that all ranks are ready to swap to in the step that begins now, or 0. */
uint32_t joint_agreed_swap(const struct skv_session *s);
/* A policy's generation as ranks exchange it; never 0. */
uint32_t joint_generation(uint64_t generation);

#endif
