/* SPDX-License-Identifier: Apache-2.0 */
/* A policy that attends to twice its budget. */
#include <sparsekv/policy.h>

struct config {
	struct skv_budget budget;
};

static const struct skv_param params[] = {
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, budget), "200", "tokens that should be looked at"},
};

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;

	(void)m;
	(void)layer;
	plan->attend = SKV_ATTEND_WINDOW;
	plan->window.budget = (struct skv_budget){.share = 2 * c->budget.share, .count = 2 * c->budget.count};
}

SKV_POLICY_DEFINE("greedy", struct config, params, .summary = "A test", .plan = plan)
