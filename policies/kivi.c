/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kivi - K and V in 4 or 2 bits ("KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache").
 *
 * Of older tokens each layer keeps K and V in `bits` a number: K by channel, over 32 tokens at a time, for some channels
 * of keys are far from all others; V by token, over `group` elements. Attention reads these as they are.
 *
 * The last `raw` tokens stay as they are. The authors keep 128, and 32 tokens to a group. Nothing is selected, nothing is
 * evicted.
 */
#include <stddef.h>
#include <stdio.h>
#include <sparsekv/policy.h>

#define BLOCK 32 /* tokens that K's numbers share a scale over */

struct config {
	uint32_t bits;
	uint32_t group;
	uint32_t raw;
	uint32_t block;
	uint32_t dense;
	struct skv_prefill_config prefill;
};

static const struct skv_param params[] = {
        {"bits", SKV_PARAM_UINT, offsetof(struct config, bits), "4", "of a number of K or V: 4 or 2"},
        {"group", SKV_PARAM_UINT, offsetof(struct config, group), "32", "elements of V that share a scale: 32 or 64"},
        {"raw", SKV_PARAM_UINT, offsetof(struct config, raw), "128", "last tokens that stay as they are, at least"},
        {"block", SKV_PARAM_UINT, offsetof(struct config, block), "32", "tokens that are packed at a time"},
        {"dense", SKV_PARAM_UINT, offsetof(struct config, dense), "0", "first layers that keep all tokens as they are"},
        SKV_PREFILL_PARAMS(struct config, prefill, ""),
};

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct config *c = config;

	(void)m;
	if (c->bits != 4 && c->bits != 2)
		snprintf(err, err_len, "bits=%u, expected 4 or 2", c->bits);
	else if (c->group != 32 && c->group != 64)
		snprintf(err, err_len, "group=%u, expected 32 or 64", c->group);
	else if (c->raw == 0)
		snprintf(err, err_len, "raw=0, expected at least 1");
	else if (c->block == 0 || c->block % BLOCK != 0)
		snprintf(err, err_len, "block=%u, expected a multiple of %u", c->block, BLOCK);
	else
		return skv_prefill_check(&c->prefill, "", err, err_len);
	return -1;
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;

	skv_prefill_plan(&c->prefill, m, layer, plan);
	if (layer < c->dense)
		return;
	plan->compress = (struct skv_compress){
	        .kind = SKV_COMPRESS_QUANT,
	        .bits = c->bits,
	        .scale_block = c->group,
	        .residual = c->raw,
	        .block = c->block,
	};
}

static const struct skv_policy kivi = {
        SKV_POLICY_HEADER,
        .name = "kivi",
        .version = "1",
        .summary = "K and V in 4 or 2 bits, which attention reads as they are (KIVI)",
        .action = SKV_ACT_COMPRESS,
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
	return &kivi;
}
