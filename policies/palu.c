/* SPDX-License-Identifier: Apache-2.0 */
/*
 * palu - low-rank K and V ("Palu: Compressing KV-Cache with Low-Rank Projection").
 *
 * For tokens older than the residual window, each layer stores the product of K (before RoPE) and V with a low-rank
 * projection, in `bits` bits an element. Before a layer attends, all of its compressed tokens are decompressed with a
 * second projection. The projections were computed from the model's own K and V, for several kv heads together. A
 * projection to half as many elements has what the authors call a rank of 50 %.
 *
 * At least the last `residual` tokens stay uncompressed. Nothing is selected or evicted.
 */
#include <sparsekv/policy.h>

struct config {
	struct skv_compress_config latent;
	uint32_t dense;
	struct skv_codec_file file;
	struct skv_prefill_config prefill;
};

static const struct skv_param params[] = {
        {"bits", SKV_PARAM_UINT, offsetof(struct config, latent.bits), "16", "of an element of a code: 16, 8, 4"},
        SKV_COMPRESS_SCALE_PARAM(struct config, latent, "64"),
        SKV_COMPRESS_WINDOW_PARAMS(struct config, latent),
        {"dense", SKV_PARAM_UINT, offsetof(struct config, dense), "0", "first layers that stay uncompressed"},
        {"file", SKV_PARAM_CODEC, offsetof(struct config, file), "auto",
         "the projections; auto: palu.safetensors beside the model"},
        SKV_PREFILL_PARAMS(struct config, prefill),
};

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct config *c = config;

	(void)m;
	if (c->latent.bits == 16 || c->latent.bits == 8 || c->latent.bits == 4)
		return skv_compress_config_check(&c->latent, &c->prefill, SKV_PAGE_TOKENS, err, err_len);
	snprintf(err, err_len, "bits=%u, expected 16, 8 or 4", c->latent.bits);
	return -1;
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;

	skv_prefill_plan(&c->prefill, m, layer, plan);
	if (layer >= c->dense)
		skv_compress_plan(&c->latent, SKV_COMPRESS_LATENT, &plan->compress);
}

SKV_POLICY_DEFINE("palu", struct config, params,
                  .summary = "Low-rank K and V, decompressed where layers attend (Palu)",
                  SKV_TAXONOMY(SKV_ACT_COMPRESS, SKV_GRAN_TOKEN, SKV_EVID_NONE, SKV_SCOPE_REQUEST, SKV_SHARE_ALL_HEADS),
                  .check = check, .plan = plan)
