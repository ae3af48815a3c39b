/* SPDX-License-Identifier: Apache-2.0 */
/* The struct is valid, but a hook selects by scores that no plan requests. */
#include "tests/support/plugins/plugin.h"

static void after(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	if (layer == 1)
		ctx->prims->select_pages(ctx, &(struct skv_select){.layer = layer, .budget = {.count = 8}});
}

static const struct skv_policy policy = {GOOD_POLICY("bad-hooks"), .after = after};

const struct skv_policy *sparsekv_policy(void)
{
	return &policy;
}
