/* SPDX-License-Identifier: Apache-2.0 */
/* Built for a later ABI version. */
#include "tests/support/plugins/plugin.h"

static const struct skv_policy policy = {
        .size = sizeof(struct skv_policy),
        .abi = SKV_POLICY_ABI + 1,
        .page_tokens = SKV_PAGE_TOKENS,
        .param_size = sizeof(struct skv_param),
        .plan_size = sizeof(struct skv_plan),
        .prims_size = sizeof(struct skv_prims),
        .name = "bad-abi",
        .version = "1",
        .summary = "A policy of the tests",
        .plan = plan_dense,
};

const struct skv_policy *sparsekv_policy(void)
{
	return &policy;
}
