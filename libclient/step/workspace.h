/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/step/workspace.h - workspaces of the kernels, and policy batches of a step side by side.
 *
 * A layer of a few sequences does not fill a device, and a step may have a policy batch for each of its sequences. So
 * on a device the work of a layer forks into branches, each with a stream and a workspace, and the branches join behind
 * the layer. Branch 0 is the step's own stream. A recording has the same branches.
 */
#ifndef SKV_CLIENT_STEP_WORKSPACE_H
#define SKV_CLIENT_STEP_WORKSPACE_H

#include "kernels/batch.h"

struct policy_batch;
struct skv_session;

/* Work queued on branches from now on runs after what is on the step's stream. */
int branches_fork(struct skv_session *s);
/* Work queued on the step's stream from now on runs after what is on the branches. */
int branches_join(struct skv_session *s);
/* The workspace and stream of the policy batch's work. */
struct skv_workspace branch_work(const struct skv_session *s, const struct policy_batch *pb);

#endif
