/* SPDX-License-Identifier: Apache-2.0 */
/* Passes the rehearsal; from the third step on it evicts from a layer that does not exist. */
#include "tests/support/plugins/plugin.h"

static int steps;

static void step_end(const struct skv_policy_ctx *ctx)
{
	struct skv_window w = {.budget = {.count = 16}};

	if (++steps >= 3)
		ctx->prims->evict_outside(ctx, ctx->model->n_layers, &w);
}

static const struct skv_policy policy = {GOOD_POLICY("late-misuse"), .step_end = step_end};

const struct skv_policy *sparsekv_policy(void)
{
	return &policy;
}
