/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raas - evicts the page that has not mattered for the longest time ("Efficient Long-Decoding Inference with
 * Reasoning-Aware Attention Sparsity").
 *
 * In a long chain of thought a page, for instance one with a lemma, matters for a while and then never again. So each
 * kv head stamps a page with the length of the sequence whenever the page matters:
 *
 *   U(page)     upper bound of q·k over the page's keys, from the bounds of the keys, as in Quest
 *   w(page)     softmax of U(page) / sqrt(head_dim) over the retained pages, averaged over the GQA group
 *   matters     a page matters in a step if w > alpha, or if it begins in this step
 *   evicted     when there is one page more than the budget: the page with the oldest stamp; ties go to the oldest page
 *
 * Pages of the prompt are never evicted, because they contain the phoenix tokens, which matter again after a long time.
 * They count towards the budget. If pages of the prompt fill the budget, there is still room for two pages: the page
 * that is being filled and the page before it. The kv head attends to every retained page, so time and memory follow
 * the budget. Variants:
 *
 *   :paper     as above
 *   :unscaled  U is not divided by sqrt(head_dim)
 *   :ratio     a page matters if it is among the best half (`ratio`) of the pages by w
 *   :quest     for long prompts, as the paper advises: Quest over the prompt, RaaS over decoded tokens. At most half of
 *              the budget is for pages of the prompt. All pages of the prompt stay in memory, but the kv head attends
 *              only to so many of them, the best by w. The rest of the budget is for pages of decoded tokens.
 */
#include <sparsekv/policy.h>

enum variant { PAPER, UNSCALED, RATIO, QUEST };

struct config {
	uint32_t variant;
	struct skv_budget budget; /* number of pages that a kv head keeps */
	float alpha;
	float ratio;
	uint32_t dense;
	struct skv_prefill_config prefill;
};

static const struct skv_param params[] = {
        {"variant", SKV_PARAM_CHOICE, offsetof(struct config, variant), "paper,unscaled,ratio,quest",
         "what makes a page matter; :quest attends only to the best pages of the prompt"},
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, budget), "64",
         "pages that a kv head keeps; below 1 a share of the sequence, at least 8 pages"},
        {"alpha", SKV_PARAM_FLOAT, offsetof(struct config, alpha), "1e-4", "weight above which a page matters"},
        {"ratio", SKV_PARAM_FLOAT, offsetof(struct config, ratio), "0.5", "ratio: share of the pages that matter"},
        {"dense", SKV_PARAM_UINT, offsetof(struct config, dense), "0", "first layers that stay dense"},
        SKV_PREFILL_PARAMS(struct config, prefill),
};

static int check(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct config *c = config;

	(void)m;
	if (c->budget.share == 0 && c->budget.count < 2)
		snprintf(err, err_len, "budget=%u, expected at least 2 pages", c->budget.count);
	else if (!(c->alpha >= 0 && c->alpha < 1))
		snprintf(err, err_len, "alpha=%g, expected 0 to 1", (double)c->alpha);
	else if (!(c->ratio > 0 && c->ratio <= 1))
		snprintf(err, err_len, "ratio=%g, expected above 0, at most 1", (double)c->ratio);
	else
		return skv_prefill_check(&c->prefill, err, err_len);
	return -1;
}

static struct skv_budget half(struct skv_budget b)
{
	return (struct skv_budget){.share = b.share / 2, .count = b.count / 2};
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
	plan->sharing = SKV_SHARE_Q_HEAD;
	plan->evict = (struct skv_evict){
	        .granularity = SKV_PAGE_TOKENS,
	        .floor = c->budget.share > 0 ? 8 : 0,
	        .budget = c->budget,
	        .slack = 1,
	        .pin_prompt = 1,
	};
	if (c->variant == QUEST) {
		plan->evict.pinned = half(c->budget);
		plan->evict.pinned_floor = plan->evict.floor / 2;
	}
}

static void before(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;

	if (layer < c->dense)
		return;
	ctx->prims->score_pages(ctx, layer);
	ctx->prims->touch_pages(ctx, &(struct skv_touch_pages){
	                                     .layer = layer,
	                                     .scale = c->variant == UNSCALED ? 1 : 0,
	                                     .alpha = c->alpha,
	                                     .ratio = c->variant == RATIO ? c->ratio : 0,
	                             });
}

static void after(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	const struct config *c = ctx->config;

	if (layer >= c->dense)
		ctx->prims->evict_to_budget(ctx, &(struct skv_evict_to_budget){.layer = layer, .evict_older = 1});
}

SKV_POLICY_DEFINE("raas", struct config, params,
                  .summary = "Keeps the prompt and the pages that mattered last, by their keys' bounds (RaaS)",
                  SKV_TAXONOMY(SKV_ACT_EVICT, SKV_GRAN_PAGE, SKV_EVID_QUERY, SKV_SCOPE_LAYER, SKV_SHARE_KV_HEAD),
                  .check = check, .plan = plan, .before = before, .after = after)
