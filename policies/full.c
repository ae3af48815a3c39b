/* SPDX-License-Identifier: Apache-2.0 */
/*
 * full - dense attention: every layer attends to every token.
 *
 * What all other policies are measured against. A plan that comes zeroed is a dense one, so there is
 * nothing to say but how prompts attend, if they are to be sparse all the same.
 */
#include <stddef.h>
#include <sparsekv/policy.h>

struct config {
	struct skv_prefill_config prefill;
};

static const struct skv_param params[] = {
        SKV_PREFILL_PARAMS(struct config, prefill, ""),
};

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct config *c = config;

	(void)m;
	return skv_prefill_check(&c->prefill, "", err, err_len);
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;

	skv_prefill_plan(&c->prefill, m, layer, plan);
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
        .params = params,
        .n_params = sizeof(params) / sizeof(params[0]),
        .config_size = sizeof(struct config),
        .check = check,
        .plan = plan,
};

const struct skv_policy *sparsekv_policy(void)
{
	return &full;
}
