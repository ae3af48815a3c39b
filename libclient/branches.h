/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/branches.h - policy batches of a step side by side.
 *
 * A layer of a few sequences does not fill a device, and a step may have a policy batch for each of its sequences. So on a device
 * the work of a layer forks into branches, which join behind it: a stream, and a workspace, for each. Branch 0 is
 * the step's own stream. A recording has the same branches.
 */
#ifndef SKV_CLIENT_BRANCHES_H
#define SKV_CLIENT_BRANCHES_H

#include <stdint.h>

#include "kernels/batch.h"

struct policy_batch;
struct skv_session;

#define BRANCHES 16u /* of a step at most; what more policy batches there are share them */

struct branch {
	struct skv_workspace work; /* its stream is the branch's */
	void *end;                 /* an event */
};

/* A branch for each policy batch of the step that is laid out, and room for its kernels. 0, or a negative errno. */
int branches_prepare(struct skv_session *s);
/* What is queued on the branches from now on comes behind what is on the step's stream. */
int branches_fork(struct skv_session *s);
/* What is queued on the step's stream from now on comes behind what is on the branches. */
int branches_join(struct skv_session *s);
/* Where the work of the policy batch is queued. */
struct skv_workspace branch_work(const struct skv_session *s, const struct policy_batch *pb);
void branches_close(struct skv_session *s);

#endif
