/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapkv - the last queries of a prompt show what the answer will attend to ("SnapKV: LLM Knows What You are Looking
 * for Before Generation").
 *
 * At the end of the prompt each kv head keeps its observation window, the last `window` tokens, and of the rest those
 * that the queries of this window attend to most:
 *
 *   weight(t)   sum over the window's queries of the softmax weight of t, averaged over the GQA group (as in kvpress;
 *               the authors' code keeps a set for each q head)
 *   score(t)    mean of the weights of the `pool` positions around t, so that the neighbours of a kept token are kept,
 *               too; positions beyond the sequence's ends count as 0
 *   kept        budget - window tokens with the best scores, and the window
 *
 * The first decode step attends to the whole prompt, and its query counts, too. The layer evicts at the end of this
 * step. A prompt that fits into the budget is not evicted. With interval=0 the layer never evicts again, as in the
 * paper: tokens decoded later are kept in addition to the budget. With another interval the layer evicts again each
 * time that `interval` tokens were added, by the queries of the window at that time. So with a budget that is a count,
 * memory stays below budget + interval tokens.
 */
#include <sparsekv/policy.h>

struct config {
	struct skv_evict_config evict;
};

static const struct skv_param params[] = {
        SKV_EVICT_BUDGET_PARAM(struct config, evict, SKV_EVICT_WINDOW_BUDGET_HELP),
        SKV_EVICT_WINDOW_PARAMS(struct config, evict, "32", "5"),
        SKV_PREFILL_PARAMS(struct config, evict.prefill),
};

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	(void)m;
	return skv_evict_config_check(&((const struct config *)config)->evict, err, err_len);
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	skv_evict_window_plan(&((const struct config *)config)->evict, m, layer, plan);
}

static void after(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;

	skv_evict_after(ctx, &c->evict, skv_evict_pooled(&c->evict, layer));
}

SKV_POLICY_DEFINE("snapkv", struct config, params,
                  .summary = "Keeps the tokens that the last queries of the prompt attend to, and those queries' own (SnapKV)",
                  SKV_TAXONOMY(SKV_ACT_EVICT, SKV_GRAN_TOKEN, SKV_EVID_WEIGHTS, SKV_SCOPE_LAYER, SKV_SHARE_KV_HEAD),
                  .check = check, .plan = plan, .after = after)
