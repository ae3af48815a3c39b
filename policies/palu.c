/* SPDX-License-Identifier: Apache-2.0 */
/*
 * palu - K and V of low rank ("Palu: Compressing KV-Cache with Low-Rank Projection").
 *
 * Of older tokens each layer keeps, in place of K before RoPE and of V, what a linear map makes of both, in `bits` a
 * number, and rebuilds all of them by another linear map to attend to them. Maps are computed from the model's own K and
 * V, those of kv heads together; half of the numbers is what the authors call a rank of 50 %.
 *
 * The last `raw` tokens stay as they are. Nothing is selected, nothing is evicted.
 */
#include <stddef.h>
#include <stdio.h>
#include <sparsekv/policy.h>

struct config {
	uint32_t bits;
	uint32_t group;
	uint32_t raw;
	uint32_t block;
	uint32_t dense;
	struct skv_codec_file file;
	struct skv_prefill_config prefill;
};

static const struct skv_param params[] = {
        {"bits", SKV_PARAM_UINT, offsetof(struct config, bits), "16", "of a number of a code: 16, 8, 4"},
        {"group", SKV_PARAM_UINT, offsetof(struct config, group), "64", "numbers that share a scale: 32 or 64"},
        {"raw", SKV_PARAM_UINT, offsetof(struct config, raw), "128", "last tokens that stay as they are, at least"},
        {"block", SKV_PARAM_UINT, offsetof(struct config, block), "32", "tokens that are packed at a time"},
        {"dense", SKV_PARAM_UINT, offsetof(struct config, dense), "0", "first layers that keep all tokens as they are"},
        {"file", SKV_PARAM_CODEC, offsetof(struct config, file), "auto",
         "the maps; auto: palu.safetensors beside the model"},
        SKV_PREFILL_PARAMS(struct config, prefill, ""),
};

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct config *c = config;

	(void)m;
	if (c->bits != 16 && c->bits != 8 && c->bits != 4)
		snprintf(err, err_len, "bits=%u, expected 16, 8 or 4", c->bits);
	else if (c->group != 32 && c->group != 64)
		snprintf(err, err_len, "group=%u, expected 32 or 64", c->group);
	else if (c->raw == 0)
		snprintf(err, err_len, "raw=0, expected at least 1");
	else if (c->block == 0 || c->block % SKV_PAGE_TOKENS != 0)
		snprintf(err, err_len, "block=%u, expected a multiple of %u", c->block, SKV_PAGE_TOKENS);
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
	        .kind = SKV_COMPRESS_LATENT,
	        .bits = c->bits,
	        .scale_block = c->group,
	        .residual = c->raw,
	        .block = c->block,
	};
}

static const struct skv_policy palu = {
        SKV_POLICY_HEADER,
        .name = "palu",
        .version = "1",
        .summary = "K and V of low rank, rebuilt where layers attend (Palu)",
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
	return &palu;
}
