/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quest - attends to the top-k pages by an upper bound of q·k ("Quest: Query-Aware Sparsity for Efficient Long-Context
 * LLM Inference").
 *
 * For each page and kv head, the minimum and the maximum of every element of the keys are stored (kmin, kmax). No key
 * of the page can score more than
 *
 *   U(page) = Σ_d max(q_d kmin_d, q_d kmax_d)
 *
 * so every layer except the first two attends to the K pages with the largest U. To find these pages a layer reads a
 * sixteenth of the bytes of its keys and values. Nothing is evicted. Variants differ in the heads that share a
 * selection, and in the pages that compete:
 *
 *   paper    one selection for each q head: the last page, and the best K - 1 of the rest
 *   eval     one selection for each q head, as in the authors' evaluation: the best max(3, K/16) pages, K in tokens (a
 *            budget that is a share is still a share of the pages); the last page competes like any other page
 *   shared   one selection for each sequence, by the largest U of any head: the last page, and the best K - 1 of the
 *            rest
 *   sglang   one selection for each sequence, as in SGLang: q is averaged over the GQA group, and U is summed over kv
 *            heads; the last four pages, and the best K - 4 of the rest (SGLang's own budget is 0.7)
 */
#include <sparsekv/policy.h>

enum variant { PAPER, EVAL, SHARED, SGLANG };

struct config {
	uint32_t variant;
	struct skv_budget budget; /* K in pages; with the variant eval, in tokens */
	uint32_t dense;
	struct skv_prefill_config prefill;
};

static const struct skv_param params[] = {
        {"variant", SKV_PARAM_CHOICE, offsetof(struct config, variant), "paper,eval,shared,sglang",
         "a selection a q head, or one for all: by the best head, or by means as in SGLang"},
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, budget), "64",
         "pages selected; below 1 a share of the sequence, at least 8 pages (eval: tokens, at least 3 pages)"},
        {"dense", SKV_PARAM_UINT, offsetof(struct config, dense), "2", "first layers that stay dense"},
        SKV_PREFILL_PARAMS(struct config, prefill),
};

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct config *c = config;

	(void)m;
	return skv_prefill_check(&c->prefill, err, err_len);
}

static void plan(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	const struct config *c = config;

	skv_prefill_plan(&c->prefill, m, layer, plan);
	if (layer < c->dense)
		return;
	plan->attend = SKV_ATTEND_PAGES;
	plan->source = layer;
	plan->scores = SKV_SCORES_PAGE_BOUNDS;
	plan->reduce = c->variant == SGLANG ? SKV_REDUCE_MEAN_Q : SKV_REDUCE_MAX;
	plan->sharing = c->variant == PAPER || c->variant == EVAL ? SKV_SHARE_Q_HEAD : SKV_SHARE_ALL_HEADS;
}

static void before(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;
	struct skv_select select = {
	        .layer = layer,
	        .budget = c->budget,
	        .floor = c->budget.share > 0 ? 8 : 1,
	        .recent = c->variant == SGLANG ? 4 : 1,
	};

	if (layer < c->dense)
		return;
	if (c->variant == EVAL) {
		select.floor = 3;
		select.no_recent = 1;
		if (select.budget.count > 0)
			select.budget.count = select.budget.count < 3 * SKV_PAGE_TOKENS ? 3 : select.budget.count / SKV_PAGE_TOKENS;
	}
	ctx->prims->score_pages(ctx, layer);
	ctx->prims->select_pages(ctx, &select);
}

SKV_POLICY_DEFINE("quest", struct config, params,
                  .summary = "Layers attend to the top-k pages by an upper bound of q.k (Quest)",
                  SKV_TAXONOMY(SKV_ACT_SELECT, SKV_GRAN_PAGE, SKV_EVID_QUERY, SKV_SCOPE_LAYER, SKV_SHARE_Q_HEAD),
                  .check = check, .plan = plan, .before = before)
