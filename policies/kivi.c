/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kivi - K and V quantized to 4 or 2 bits ("KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache").
 *
 * Tokens older than the residual window are quantized. K is quantized per channel, over 32 tokens at a time, because
 * some channels of keys are outliers; V is quantized per token, over `scale_block` elements. Attention reads the codes
 * directly.
 *
 * At least the last `residual` tokens stay unquantized. The authors use a residual window of 128 tokens, and groups of
 * 32 tokens. Nothing is selected or evicted.
 */
#include <sparsekv/policy.h>

struct config {
	struct skv_compress_config quant;
	uint32_t dense;
	struct skv_prefill_config prefill;
};

static const struct skv_param params[] = {
        {"bits", SKV_PARAM_UINT, offsetof(struct config, quant.bits), "4", "of an element of K or V: 4 or 2"},
        SKV_COMPRESS_SCALE_PARAM(struct config, quant, "32"),
        SKV_COMPRESS_WINDOW_PARAMS(struct config, quant),
        {"dense", SKV_PARAM_UINT, offsetof(struct config, dense), "0", "first layers that stay uncompressed"},
        SKV_PREFILL_PARAMS(struct config, prefill),
};

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct config *c = config;

	(void)m;
	if (c->quant.bits == 4 || c->quant.bits == 2)
		return skv_compress_config_check(&c->quant, &c->prefill, SKV_QUANT_BLOCK, err, err_len);
	snprintf(err, err_len, "bits=%u, expected 4 or 2", c->quant.bits);
	return -1;
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;

	skv_prefill_plan(&c->prefill, m, layer, plan);
	if (layer >= c->dense)
		skv_compress_plan(&c->quant, SKV_COMPRESS_QUANT, &plan->compress);
}

SKV_POLICY_DEFINE("kivi", struct config, params,
                  .summary = "KV quantization to 4 or 2 bits, which attention reads as they are (KIVI)",
                  SKV_TAXONOMY(SKV_ACT_COMPRESS, SKV_GRAN_TOKEN, SKV_EVID_NONE, SKV_SCOPE_REQUEST, SKV_SHARE_ALL_HEADS),
                  .check = check, .plan = plan)
