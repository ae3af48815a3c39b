/* SPDX-License-Identifier: Apache-2.0 */
/* Has the usual prefill variants, but HiP with so few tokens that it has to select in short prompts, too. */
#include <stddef.h>
#include <sparsekv/policy.h>

struct config {
	struct skv_prefill_config prefill;
};

static const struct skv_param params[] = {
        SKV_PREFILL_PARAMS(struct config, prefill),
};

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;

	skv_prefill_plan(&c->prefill, m, layer, plan);
	for (int stage = 0; stage < 3 && plan->prefill.how == SKV_PREFILL_HIP; stage++)
		plan->prefill.keep[stage] = 64u >> stage;
}

SKV_POLICY_DEFINE("few", struct config, params, .summary = "A test", .plan = plan)
