/* SPDX-License-Identifier: Apache-2.0 */
/*
 * full - dense attention: every layer attends to every token.
 *
 * What all other policies are measured against. A plan that comes zeroed is a dense one, so there is
 * nothing to say.
 */
#include <sparsekv/policy.h>

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	(void)config;
	(void)m;
	(void)layer;
	(void)plan;
}

static const struct skv_policy full = {
        SKV_POLICY_HEADER,
        .name = "full",
        .version = "1",
        .summary = "Dense attention over the whole sequence",
        .action = SKV_ACT_NONE,
        .granularity = SKV_GRAN_TOKEN,
        .evidence = SKV_EVID_NONE,
        .scope = SKV_SCOPE_REQUEST,
        .sharing = SKV_SHARE_ALL_HEADS,
        .plan = plan,
};

const struct skv_policy *sparsekv_policy(void)
{
	return &full;
}
