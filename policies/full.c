/* SPDX-License-Identifier: Apache-2.0 */
/*
 * full - dense attention: every layer attends to every token.
 *
 * This policy is the baseline for all others. A zeroed plan means dense attention, so plan() sets only how prompts
 * attend, which may be sparse.
 */
#include <sparsekv/policy.h>

struct config {
	struct skv_prefill_config prefill;
};

static const struct skv_param params[] = {
        SKV_PREFILL_PARAMS(struct config, prefill),
};

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	(void)m;
	return skv_prefill_check(&((const struct config *)config)->prefill, err, err_len);
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	skv_prefill_plan(&((const struct config *)config)->prefill, m, layer, plan);
}

SKV_POLICY_DEFINE("full", struct config, params,
                  .summary = "Dense attention over the whole sequence",
                  SKV_TAXONOMY(SKV_ACT_NONE, SKV_GRAN_TOKEN, SKV_EVID_NONE, SKV_SCOPE_REQUEST, SKV_SHARE_ALL_HEADS),
                  .check = check, .plan = plan)
