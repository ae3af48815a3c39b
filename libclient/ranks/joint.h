/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/ranks/joint.h - joint commits of tensor-parallel ranks: a commit counts when all ranks have made it.
 *
 * If session.joint is NULL, the session has no joint commits: each commit counts by itself.
 */
#ifndef SKV_CLIENT_RANKS_JOINT_H
#define SKV_CLIENT_RANKS_JOINT_H

#include <stdbool.h>
#include <stdint.h>

struct device_step;
struct skv_seq;
struct skv_session;

/* 0, or -ECONNABORTED: a commit was not confirmed, or ranks run different policies. After that nothing may begin. */
int joint_state(const struct skv_session *s);
/* Call before the first step: waits until all ranks have begun. Returns as joint_state(). */
int joint_begin(struct skv_session *s);

/*
 * Get the minimum and maximum of all ranks' numbers `own`, which are from -2^24 to 2^24. Waits. All ranks must call the
 * function, in the same order. Returns as joint_state().
 */
int joint_compare(struct skv_session *s, int32_t own, int32_t *ret_least, int32_t *ret_most);

/*
 * Tell the other ranks that this rank has committed, and wait until all ranks have. For host memory, or for a device
 * with nothing queued. Returns false if it is unknown whether all ranks have committed; joint_state() fails from then
 * on.
 */
bool joint_confirm(struct skv_session *s);

/* Queue joint_confirm() at the end of a device's step, behind its commit. joint_confirmed() takes the answer. */
void joint_queue(struct skv_session *s, struct device_step *x);
/* Have all ranks committed this step, which has run? Must be called for each step, in the order of the steps. */
bool joint_confirmed(struct skv_session *s, const struct device_step *x);

/* Record that all ranks have made the sequence's commit of this epoch; without session.joint, that none is joint. */
void joint_know(struct skv_seq *q, uint32_t epoch);

/* The generation of the policy that all ranks are ready to swap to in the step that begins now; 0: none. */
uint32_t joint_agreed_swap(const struct skv_session *s);
/* The number by which ranks exchange the generation of a policy; never 0. */
uint32_t joint_generation(uint64_t generation);

#endif
