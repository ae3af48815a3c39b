/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deltakv - OmniKV's selection over a cache that is mostly residuals ("DeltaKV: Residual-Based KV Cache Compression via
 * Long-Range Similarity").
 *
 * Filter layers, and the first ones, keep all tokens as they are, or with full_bits older ones in 4 or 2 bits, as kivi
 * does. A filter attends densely and selects tokens, one set for
 * all heads, as in omnikv; the layers after it attend to these until the next filter. They keep of most tokens
 *
 *   x             [K before RoPE, V] of all kv heads
 *   b             the mean of the `near` references nearest to x, of those at or before the token
 *   code          E(x) - E(b), in `bits` a number
 *
 * and rebuild x as Dec(code) + b where they attend to it. Every stride-th token is a reference, kept whole (ref_bits=16) or
 * in 8 or 4 bits. The first page and the last `raw` tokens stay as they are.
 *
 * The authors keep layers 0, 1, 2, 8 and 18 of 32. Nothing is evicted.
 */
#include <stddef.h>
#include <stdio.h>
#include <sparsekv/policy.h>

#define LOW_BLOCK 32 /* what tokens in few bits come in */

struct config {
	struct skv_budget budget; /* tokens */
	uint32_t recent;          /* tokens */
	struct skv_layer_set layers;
	uint32_t dense;
	uint32_t bits;
	uint32_t group;
	uint32_t ref_bits;
	uint32_t stride;
	uint32_t near;
	uint32_t raw;
	uint32_t block;
	uint32_t full_bits;
	struct skv_codec_file file;
	struct skv_profile profile;
	struct skv_prefill_config prefill;
};

static const struct skv_param params[] = {
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, budget), "0.3",
         "tokens selected; below 1 a share of the sequence, at least 128 tokens"},
        {"recent", SKV_PARAM_UINT, offsetof(struct config, recent), "32",
         "last tokens, always among the selected; 0: an eighth of the budget"},
        {"layers", SKV_PARAM_LAYERS, offsetof(struct config, layers), "auto",
         "filter layers; auto: the profile's, without one three, evenly spaced from the first that is not dense"},
        {"dense", SKV_PARAM_UINT, offsetof(struct config, dense), "2", "first layers that stay dense"},
        {"bits", SKV_PARAM_UINT, offsetof(struct config, bits), "16", "of a number of a code: 16, 8, 4; 0: references alone"},
        {"group", SKV_PARAM_UINT, offsetof(struct config, group), "64", "numbers that share a scale: 32 or 64"},
        {"ref_bits", SKV_PARAM_UINT, offsetof(struct config, ref_bits), "16", "of a number of a reference: 16, 8, 4"},
        {"stride", SKV_PARAM_UINT, offsetof(struct config, stride), "10",
         "tokens from one reference to the next; 0, with near=0: no references"},
        {"near", SKV_PARAM_UINT, offsetof(struct config, near), "4", "references that a token is the residual to"},
        {"raw", SKV_PARAM_UINT, offsetof(struct config, raw), "128", "last tokens that stay as they are, at least"},
        {"block", SKV_PARAM_UINT, offsetof(struct config, block), "32", "tokens that are packed at a time"},
        {"full_bits", SKV_PARAM_UINT, offsetof(struct config, full_bits), "16",
         "of a number of K or V in the layers that keep all tokens: 16, 4, 2"},
        {"file", SKV_PARAM_CODEC, offsetof(struct config, file), "auto",
         "the compressor; auto: deltakv.safetensors beside the model"},
        {"profile", SKV_PARAM_PROFILE, offsetof(struct config, profile), "none",
         "what sparsekv-calibrate has written about the model"},
        SKV_PREFILL_PARAMS(struct config, prefill, ""),
};

static int filters(const struct config *c, const struct skv_model *m, uint32_t layer)
{
	if (!skv_layer_set_empty(&c->layers))
		return skv_layer_in(&c->layers, layer);
	if (!skv_layer_set_empty(&c->profile.filters))
		return skv_layer_in(&c->profile.filters, layer);
	return skv_layer_even(m, c->dense, 3, layer);
}

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct config *c = config;

	(void)m;
	if (c->budget.count && c->recent > c->budget.count)
		snprintf(err, err_len, "recent=%u, expected at most the budget of %u tokens", c->recent, c->budget.count);
	else if (c->bits != 16 && c->bits != 8 && c->bits != 4 && c->bits != 0)
		snprintf(err, err_len, "bits=%u, expected 16, 8, 4 or 0", c->bits);
	else if (c->group != 32 && c->group != 64)
		snprintf(err, err_len, "group=%u, expected 32 or 64", c->group);
	else if (c->ref_bits != 16 && c->ref_bits != 8 && c->ref_bits != 4)
		snprintf(err, err_len, "ref_bits=%u, expected 16, 8 or 4", c->ref_bits);
	else if (c->stride > 255 || c->near > 4 || (c->stride > 0) != (c->near > 0) || (c->stride == 0 && c->bits == 0))
		snprintf(err, err_len, "stride=%u and near=%u, expected 1 to 255 and 1 to 4, or 0 and 0 with bits above 0",
		         c->stride, c->near);
	else if (c->full_bits != 16 && c->full_bits != 4 && c->full_bits != 2)
		snprintf(err, err_len, "full_bits=%u, expected 16, 4 or 2", c->full_bits);
	else if (c->raw == 0)
		snprintf(err, err_len, "raw=0, expected at least 1");
	else if (c->block == 0 || c->block % SKV_PAGE_TOKENS != 0)
		snprintf(err, err_len, "block=%u, expected a multiple of %u", c->block, SKV_PAGE_TOKENS);
	else
		return skv_prefill_check(&c->prefill, "", err, err_len);
	return -1;
}

/* As it is, or in few bits. */
static void keep_all(const struct config *c, const struct skv_model *m, struct skv_plan *plan)
{
	if (c->full_bits < 16)
		plan->compress = (struct skv_compress){
		        .kind = SKV_COMPRESS_QUANT,
		        .bits = c->full_bits,
		        .scale_block = m->head_dim % 128 == 0 ? 64 : 32,
		        .residual = c->raw,
		        .block = (c->block + LOW_BLOCK - 1) / LOW_BLOCK * LOW_BLOCK,
		};
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;
	uint32_t filter = layer;

	skv_prefill_plan(&c->prefill, m, layer, plan);
	if (filters(c, m, layer)) {
		keep_all(c, m, plan);
		plan->scores = SKV_SCORES_TOKENS;
		plan->reduce = SKV_REDUCE_MAX;
		plan->sharing = SKV_SHARE_ALL_HEADS;
		return;
	}
	while (filter > 0 && !filters(c, m, filter))
		filter--;
	if (layer < c->dense || !filters(c, m, filter)) {
		keep_all(c, m, plan);
		return;
	}
	plan->attend = SKV_ATTEND_TOKENS;
	plan->source = filter;
	plan->compress = (struct skv_compress){
	        .kind = SKV_COMPRESS_LATENT,
	        .bits = c->bits,
	        .scale_block = c->group,
	        .ref_bits = c->stride > 0 ? c->ref_bits : 0,
	        .stride = c->stride,
	        .n_refs = c->near,
	        .sinks = c->stride > 0 ? SKV_PAGE_TOKENS : 0,
	        .residual = c->raw,
	        .block = c->block,
	};
}

static void after(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;

	if (filters(c, ctx->model, layer))
		ctx->prims->select_tokens(ctx, &(struct skv_select){
		                                       .layer = layer,
		                                       .budget = c->budget,
		                                       .floor = c->budget.share > 0 ? 128 : 1,
		                                       .recent = c->recent,
		                                       .recent_floor = 1,
		                               });
}

static const struct skv_policy deltakv = {
        SKV_POLICY_HEADER,
        .name = "deltakv",
        .version = "1",
        .summary = "Tokens kept as residuals to earlier ones, rebuilt where filter layers select them (DeltaKV)",
        .action = SKV_ACT_COMPRESS,
        .granularity = SKV_GRAN_TOKEN,
        .evidence = SKV_EVID_WEIGHTS,
        .scope = SKV_SCOPE_STEP,
        .sharing = SKV_SHARE_ALL_HEADS,
        .params = params,
        .n_params = sizeof(params) / sizeof(params[0]),
        .config_size = sizeof(struct config),
        .check = check,
        .plan = plan,
        .after = after,
};

const struct skv_policy *sparsekv_policy(void)
{
	return &deltakv;
}
