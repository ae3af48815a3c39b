/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deltakv - OmniKV's selection over a cache that consists mostly of residuals ("DeltaKV: Residual-Based KV Cache
 * Compression via Long-Range Similarity").
 *
 * Filter layers and the first layers keep all tokens uncompressed, or, with full_bits=4 or 2, quantize older tokens to
 * so many bits as in KIVI. A filter layer attends densely and selects tokens, one selection for all heads, as in
 * OmniKV. The layers after a filter, up to the next one, attend to the selected tokens. For most tokens these layers
 * store a code:
 *
 *   x             [K before RoPE, V] of all kv heads
 *   b             the mean of the `n_refs` references nearest to x, among those at or before the token
 *   code          E(x) - E(b), with `bits` bits an element
 *
 * and decompress x as Dec(code) + b when they attend to the token. Every stride-th token is a reference, whose elements
 * are stored in 16 bits (ref_bits=16), or in 8 or 4 bits. The tokens of the first page and the last `residual` tokens
 * stay uncompressed.
 *
 * The authors keep layers 0, 1, 2, 8 and 18 of 32 uncompressed. Nothing is evicted.
 */
#include <sparsekv/policy.h>

struct config {
	struct skv_select_config select;
	struct skv_compress_config latent;
	uint32_t ref_bits;
	uint32_t stride;
	uint32_t n_refs;
	uint32_t full_bits;
	struct skv_codec_file file;
};

static const struct skv_param params[] = {
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, select.budget), "0.3",
         "tokens selected; below 1 a share of the sequence, at least 128 tokens"},
        SKV_SELECT_RECENT_PARAM(struct config, select, "32", "tokens"),
        SKV_SELECT_LAYERS_PARAM(struct config, select, SKV_SELECT_FILTERS_HELP),
        SKV_SELECT_DENSE_PARAM(struct config, select),
        {"bits", SKV_PARAM_UINT, offsetof(struct config, latent.bits), "16",
         "of an element of a code: 16, 8, 4; 0: no code, references alone"},
        SKV_COMPRESS_SCALE_PARAM(struct config, latent, "64"),
        {"ref_bits", SKV_PARAM_UINT, offsetof(struct config, ref_bits), "16", "of an element of a reference: 16, 8, 4"},
        {"stride", SKV_PARAM_UINT, offsetof(struct config, stride), "10",
         "tokens from one reference to the next; 0, with n_refs=0: no references"},
        {"n_refs", SKV_PARAM_UINT, offsetof(struct config, n_refs), "4", "references whose mean a token is the residual to"},
        SKV_COMPRESS_WINDOW_PARAMS(struct config, latent),
        {"full_bits", SKV_PARAM_UINT, offsetof(struct config, full_bits), "16",
         "of an element of K or V in the layers that are not compressed by the codec: 16, 4, 2"},
        {"file", SKV_PARAM_CODEC, offsetof(struct config, file), "auto",
         "the codec; auto: deltakv.safetensors beside the model"},
        SKV_SELECT_PROFILE_PARAMS(struct config, select),
};

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct config *c = config;
	uint32_t bits = c->latent.bits;

	(void)m;
	if (bits != 16 && bits != 8 && bits != 4 && bits != 0)
		snprintf(err, err_len, "bits=%u, expected 16, 8, 4 or 0", bits);
	else if (c->ref_bits != 16 && c->ref_bits != 8 && c->ref_bits != 4)
		snprintf(err, err_len, "ref_bits=%u, expected 16, 8 or 4", c->ref_bits);
	else if (c->stride > 255 || c->n_refs > 4 || (c->stride > 0) != (c->n_refs > 0) ||
	         (c->stride == 0 && bits == 0))
		snprintf(err, err_len, "stride=%u and n_refs=%u, expected 1 to 255 and 1 to 4, or 0 and 0 with bits above 0",
		         c->stride, c->n_refs);
	else if (c->full_bits != 16 && c->full_bits != 4 && c->full_bits != 2)
		snprintf(err, err_len, "full_bits=%u, expected 16, 4 or 2", c->full_bits);
	else if (!skv_select_config_check(&c->select, "tokens", err, err_len))
		return skv_compress_config_check(&c->latent, &c->select.prefill, SKV_PAGE_TOKENS, err, err_len);
	return -1;
}

/*
 * Plan a filter layer or one of the first layers: with full_bits below 16, its tokens are quantized as in KIVI;
 * otherwise the layer compresses nothing.
 */
static void plan_full(const struct config *c, const struct skv_model *m, struct skv_compress *compress)
{
	const struct skv_compress_config quant = {
	        .bits = c->full_bits,
	        .scale_block = m->head_dim % 128 == 0 ? 64 : 32,
	        .residual = c->latent.residual,
	        .block = (c->latent.block + SKV_QUANT_BLOCK - 1) / SKV_QUANT_BLOCK * SKV_QUANT_BLOCK,
	};

	if (c->full_bits < 16)
		skv_compress_plan(&quant, SKV_COMPRESS_QUANT, compress);
}

static void plan_latent(const struct config *c, struct skv_compress *compress)
{
	skv_compress_plan(&c->latent, SKV_COMPRESS_LATENT, compress);
	compress->stride = c->stride;
	compress->n_refs = c->n_refs;
	if (c->stride > 0) {
		compress->ref_bits = c->ref_bits;
		compress->sinks = SKV_PAGE_TOKENS;
	}
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;
	struct skv_layer_set filters = skv_select_filters(&c->select, m);

	skv_select_plan(&c->select, &filters, SKV_ATTEND_TOKENS, SKV_SHARE_ALL_HEADS, m, layer, plan);
	if (plan->attend == SKV_ATTEND_TOKENS)
		plan_latent(c, &plan->compress);
	else
		plan_full(c, m, &plan->compress);
}

static void after(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct skv_select_config *c = &((const struct config *)ctx->config)->select;
	struct skv_layer_set filters = skv_select_filters(c, ctx->model);

	skv_select_after(ctx, c, &filters, layer);
}

SKV_POLICY_DEFINE("deltakv", struct config, params,
                  .summary = "Tokens compressed as residuals to earlier ones, decompressed where filter layers select them (DeltaKV)",
                  SKV_TAXONOMY(SKV_ACT_COMPRESS, SKV_GRAN_TOKEN, SKV_EVID_WEIGHTS, SKV_SCOPE_STEP, SKV_SHARE_ALL_HEADS),
                  .check = check, .plan = plan, .after = after)
