/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passes the rehearsal, which has more than one sequence; of a single one it selects by scores that no plan requests, in
 * the middle of the step.
 */
#include "tests/support/plugins/plugin.h"

static void after(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	if (ctx->n_seqs == 1)
		ctx->prims->select_pages(ctx, &(struct skv_select){.layer = layer, .budget = {.count = 8}});
}

static const struct skv_policy policy = {GOOD_POLICY("early-misuse"), .after = after};

const struct skv_policy *sparsekv_policy(void)
{
	return &policy;
}
