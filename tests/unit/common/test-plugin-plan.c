/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans and requests of hooks, each with one fault: each is refused with a text that names it. Policy blocks are tested
 * in test-plugin.c.
 */
#include "tests/support/policy-file.h"
#include "tests/support/suite.h"

static struct skv_policy block;
static struct skv_plan wanted[4];
static void (*in_before)(const struct skv_policy_ctx *, uint32_t);
static void (*in_after)(const struct skv_policy_ctx *, uint32_t);
static void (*in_end)(const struct skv_policy_ctx *);
static int (*in_adopt)(const struct skv_policy_ctx *, char *, size_t);

static void plan_wanted(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	(void)config;
	(void)m;
	ck_assert_uint_eq(plan->attend + plan->scores + plan->source, 0);
	wanted[layer].size = plan->size;
	*plan = wanted[layer];
}

static void all_good(void)
{
	memset(wanted, 0, sizeof(wanted));
	wanted[0].scores = SKV_SCORES_PAGES | SKV_SCORES_TOKENS;
	wanted[1] = (struct skv_plan){.attend = SKV_ATTEND_PAGES, .source = 0};
	wanted[2] = (struct skv_plan){.attend = SKV_ATTEND_TOKENS, .source = 0};
	wanted[3] = (struct skv_plan){.attend = SKV_ATTEND_WINDOW, .window.budget.count = 64};
	block = (struct skv_policy){
	        SKV_POLICY_HEADER,
	        .name = "block",
	        .version = "1",
	        .summary = "A block",
	        .plan = plan_wanted,
	        .seq_state_bytes = 40,
	};
}

static const char *rehearse(void)
{
	const struct skv_model m = {.n_layers = 4, .n_heads = 6, .n_kv_heads = 3};

	block.before = in_before;
	block.after = in_after;
	block.step_end = in_end;
	block.adopt = in_adopt;
	err[0] = '\0';
	return skv_policy_rehearse(&block, NULL, &m, err, sizeof(err)) == 0 ? "" : err;
}

/* `make` makes the plans, `change` changes them, and the refusal contains `says`. */
#define SPOILED(make, change, says)                                                                         \
	do {                                                                                                \
		make();                                                                                     \
		change;                                                                                     \
		ck_assert_text(rehearse(), says);                                                           \
	} while (0)
#define NO_PLAN(change, says) SPOILED(all_good, change, says)

static void select_both(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	struct skv_select s = {.layer = 0, .budget = {.share = 0.5f}};

	if (layer != 0)
		return;
	ctx->prims->select_pages(ctx, &s);
	ctx->prims->select_tokens(ctx, &s);
}
static void select_early(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	if (layer == 0)
		ctx->prims->select_pages(ctx, &(struct skv_select){.budget = {.count = 8}});
}
static void select_far(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	(void)layer;
	ctx->prims->select_pages(ctx, &(struct skv_select){.layer = 4, .budget = {.count = 8}});
}
static void select_ahead(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	if (layer == 0)
		ctx->prims->select_pages(ctx, &(struct skv_select){.layer = 2, .budget = {.count = 8}});
}
static void select_nothing(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	(void)layer;
	ctx->prims->select_tokens(ctx, &(struct skv_select){.layer = 0});
}
/* a layer's scores may still be used when the next layer begins */
static void select_late(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	if (layer == 1)
		select_both(ctx, 0);
}
static void select_last(const struct skv_policy_ctx *ctx)
{
	select_both(ctx, 0);
}
static void evict_here(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	ctx->prims->evict_outside(ctx, layer, &(struct skv_window){.budget.count = 8});
}
static void evict_far(const struct skv_policy_ctx *ctx)
{
	ctx->prims->evict_outside(ctx, 4, &(struct skv_window){.budget.count = 8});
}
static void evict_all(const struct skv_policy_ctx *ctx)
{
	ctx->prims->evict_outside(ctx, 3, &(struct skv_window){.sinks = 8});
}
static void state_beyond(const struct skv_policy_ctx *ctx)
{
	memset(ctx->prims->seq_state(ctx, ctx->n_seqs), 1, 40);
}
/* each sequence has its own state, and what adopt wrote is still there at the step's end */
static int state_adopt(const struct skv_policy_ctx *ctx, char *text, size_t len)
{
	(void)text;
	(void)len;
	for (uint32_t i = 0; i < ctx->n_seqs; i++)
		memset(ctx->prims->seq_state(ctx, i), (int)i + 1, 40);
	return 0;
}
static void state_end(const struct skv_policy_ctx *ctx)
{
	for (uint32_t i = 0; i < ctx->n_seqs; i++)
		for (uint32_t b = 0; b < 40; b++)
			ck_assert_uint_eq(((uint8_t *)ctx->prims->seq_state(ctx, i))[b], i + 1);
}

START_TEST(rehearsals)
{
	in_after = select_both;
	in_adopt = state_adopt;
	in_end = state_end;
	all_good();
	ck_assert_str_eq(rehearse(), "");

	in_after = NULL;
	all_good();
	ck_assert_str_eq(rehearse(), "block: before of layer 1: the layer attends to a selection of layer 0 "
	                             "that no hook has made");
	in_after = select_both;
	in_before = select_early;
	all_good();
	ck_assert_text(rehearse(), "before of layer 0: selects by layer 0, which has no scores yet");
	in_before = select_late;
	in_after = NULL;
	all_good();
	ck_assert_str_eq(rehearse(), "");
	in_before = NULL;
	in_after = select_both;
	in_end = select_last;
	all_good();
	ck_assert_text(rehearse(), "step_end: selects, expected in before and after only");
	in_end = state_end;
	in_after = select_far;
	all_good();
	ck_assert_text(rehearse(), "a selection of a layer that the model does not have");
	in_after = select_ahead;
	all_good();
	wanted[1] = (struct skv_plan){0};
	wanted[2] = (struct skv_plan){.scores = SKV_SCORES_PAGES};
	ck_assert_text(rehearse(), "selects by layer 2, which has no scores yet");
	in_after = select_nothing;
	all_good();
	ck_assert_text(rehearse(), "a selection without a budget");
	in_after = evict_here;
	all_good();
	ck_assert_text(rehearse(), "after of layer 0: evicts, expected in step_end only");
	in_after = select_both;
	in_end = evict_far;
	all_good();
	ck_assert_text(rehearse(), "step_end: asks for evictions from a layer that the model does not have (layer 4)");
	in_end = evict_all;
	all_good();
	ck_assert_text(rehearse(), "step_end: asks for a window without a budget");
	in_end = state_beyond;
	all_good();
	ck_assert_text(rehearse(), "asks for the state of sequence 2 of 2");
	in_end = NULL;
	all_good();
	block.seq_state_bytes = 0;
	ck_assert_text(rehearse(), "adopt: asks for state, but seq_state_bytes is 0");
}
END_TEST

/* Layer 1 selects its own tokens, layer 2 uses this selection. */
static void one_chooses(void)
{
	all_good();
	wanted[1] = (struct skv_plan){.attend = SKV_ATTEND_TOKENS, .source = 1, .scores = SKV_SCORES_TOKENS};
	wanted[2] = (struct skv_plan){.attend = SKV_ATTEND_TOKENS, .source = 1};
}
static void select_own(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	if (layer == 1)
		ctx->prims->select_tokens(ctx, &(struct skv_select){.layer = 1, .budget = {.count = 8}});
}
static void select_of_before(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	if (layer == 2)
		select_own(ctx, 1);
}

START_TEST(layers_that_choose)
{
	in_end = NULL;
	in_adopt = NULL;
	in_after = NULL;
	in_before = select_own;
	one_chooses();
	ck_assert_str_eq(rehearse(), "");
	in_before = NULL;
	one_chooses();
	ck_assert_text(rehearse(), "before of layer 1: the layer attends to a selection of layer 1 that no hook has made");
	in_before = select_own;
	in_after = select_own;
	one_chooses();
	ck_assert_text(rehearse(), "after of layer 1: selects by layer 1, which selects its own tokens");
	in_after = select_of_before;
	one_chooses();
	ck_assert_text(rehearse(), "after of layer 2: selects by layer 1, which selects its own tokens");
	in_after = NULL;
	one_chooses();
	wanted[1].scores |= SKV_SCORES_PAGES;
	ck_assert_text(rehearse(), "plan of layer 1: a layer that selects its own tokens");
	one_chooses();
	wanted[1].scores = 0;
	ck_assert_text(rehearse(), "plan of layer 1: ");
	one_chooses();
	wanted[1].sharing = SKV_SHARE_Q_HEAD;
	ck_assert_text(rehearse(), "plan of layer 1: a layer that selects its own tokens shares by all heads or by kv");
}
END_TEST

/* Layer 1 attends to pages that it scores by their bounds, layer 2 uses this selection. */
static void one_scores(void)
{
	all_good();
	wanted[1] = (struct skv_plan){.attend = SKV_ATTEND_PAGES, .source = 1, .scores = SKV_SCORES_PAGE_BOUNDS};
	wanted[2] = (struct skv_plan){.attend = SKV_ATTEND_PAGES, .source = 1};
}
static void score_own(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	if (layer == 1)
		ctx->prims->score_pages(ctx, layer);
}
static void select_scored(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	if (layer == 1)
		ctx->prims->select_pages(ctx, &(struct skv_select){.layer = 1, .budget = {.count = 8}});
}
static void score_and_select(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	score_own(ctx, layer);
	select_scored(ctx, layer);
}
static void score_others(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	score_and_select(ctx, layer);
	if (layer == 2)
		ctx->prims->score_pages(ctx, 1);
}
static void score_the_dense(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	score_and_select(ctx, layer);
	if (layer == 0)
		ctx->prims->score_pages(ctx, 0);
}

START_TEST(layers_that_score)
{
	static const struct {
		void (*before)(const struct skv_policy_ctx *, uint32_t), (*after)(const struct skv_policy_ctx *,
				uint32_t);
		const char *says;
	} c[] = {
		{score_and_select, NULL, ""},
		{select_scored, NULL, "before of layer 1: selects by layer 1, which has no scores yet"},
		{score_own, NULL, "before of layer 1: the layer attends to a selection of layer 1 that no hook has made"},
		{score_own, select_scored, "attends to a selection of layer 1 that no hook has made"},
		{score_and_select, score_own, "after of layer 1: scores pages of layer 1, expected in its own before"},
		{score_others, NULL, "before of layer 2: scores pages of layer 1, expected in its own before"},
		{score_the_dense, NULL, "before of layer 0: asks for scores by page bounds that the layer's plan does not request"},
	};

	in_end = NULL;
	in_adopt = NULL;
	for (size_t i = 0; i < sizeof(c) / sizeof(c[0]); i++) {
		in_before = c[i].before;
		in_after = c[i].after;
		one_scores();
		if (*c[i].says)
			ck_assert_text(rehearse(), c[i].says);
		else
			ck_assert_str_eq(rehearse(), "");
	}
	in_before = score_and_select;
	in_after = NULL;
	one_scores();
	wanted[1].reduce = SKV_REDUCE_MEAN_Q;
	ck_assert_str_eq(rehearse(), "");
	one_scores();
	wanted[1].reduce = SKV_REDUCE_MEAN_Q;
	wanted[1].sharing = SKV_SHARE_Q_HEAD;
	ck_assert_text(rehearse(), "plan of layer 1: reduce is the mean of q, which leaves no row a q head");
	one_scores();
	wanted[1].attend = SKV_ATTEND_TOKENS;
	ck_assert_text(rehearse(), "plan of layer 1: a layer that selects its own tokens");
}
END_TEST

static void select_together(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	select_both(ctx, layer);
	if (layer == 0)
		ctx->prims->select_union(ctx, &(struct skv_select){.layer = 0, .budget = {.count = 8}});
}

static void select_united(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	select_both(ctx, layer);
	if (layer == 0)
		ctx->prims->select_tokens(ctx, &(struct skv_select){.layer = 0, .budget = {.count = 8}, .unite = 1});
}

static void select_united_together(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	select_both(ctx, layer);
	if (layer == 0)
		ctx->prims->select_union(ctx, &(struct skv_select){.layer = 0, .budget = {.count = 8}, .unite = 1});
}

START_TEST(unions)
{
	in_before = NULL;
	in_end = NULL;
	in_after = select_together;
	all_good();
	ck_assert_text(rehearse(), "after of layer 0: asks for a union of heads where the layer's plan has no row for each q");
	all_good();
	wanted[0].sharing = SKV_SHARE_KV_HEAD;
	ck_assert_text(rehearse(), "a union of heads");
	all_good();
	wanted[0].sharing = SKV_SHARE_Q_HEAD;
	ck_assert_str_eq(rehearse(), "");
	in_after = select_united;
	ck_assert_str_eq(rehearse(), "");
	all_good();
	ck_assert_text(rehearse(), "after of layer 0: asks for united selections of q heads where the layer's plan has no row for each q");
	all_good();
	wanted[0].sharing = SKV_SHARE_Q_HEAD;
	in_after = select_united_together;
	ck_assert_text(rehearse(), "after of layer 0: asks for a union of all heads that is of each kv head");
}
END_TEST

/* Layer 1 maps its heads to any rows of layer 0's heads. */
START_TEST(mapped_rows)
{
	in_before = NULL;
	in_end = NULL;
	in_after = select_both;
#define MAPPED(change, says)                                                                                \
	NO_PLAN((wanted[0].sharing = SKV_SHARE_KV_HEAD, wanted[1].mapped = 1, wanted[1].map[2] = 2, change), says)
	MAPPED(wanted[1].map[0] = 2, "");
	ck_assert_str_eq(err, "");
	MAPPED(wanted[1].map[2] = 3, "plan of layer 1: a map to a kv head that the model does not have");
	MAPPED(wanted[0].sharing = SKV_SHARE_Q_HEAD, "plan of layer 1: a map of rows, expected a source");
	MAPPED(wanted[0].sharing = SKV_SHARE_ALL_HEADS, "plan of layer 1: a map of rows, expected a source");
	MAPPED(wanted[0].mapped = 1, "plan of layer 0: a map of a layer that attends to no other layer's selection");
	MAPPED(wanted[3].mapped = 1, "plan of layer 3: a map of a layer that attends");
	in_after = NULL;
	in_before = select_own;
	one_chooses();
	wanted[1].sharing = SKV_SHARE_KV_HEAD;
	wanted[1].mapped = 1;
	ck_assert_text(rehearse(), "plan of layer 1: a map of rows, expected a source that is another layer");
}
END_TEST

/* Layer 1 evicts tokens by attention scores, layer 2 evicts pages. */
static void some_keep(void)
{
	all_good();
	wanted[1] = (struct skv_plan){.scores = SKV_SCORES_TOKENS, .reduce = SKV_REDUCE_SUM, .sharing = SKV_SHARE_KV_HEAD,
	                              .evict = {.granularity = 1, .budget = {.count = 64}, .slack = 1, .accumulate = 1}};
	wanted[2] = (struct skv_plan){.attend = SKV_ATTEND_PAGES, .source = 2, .scores = SKV_SCORES_PAGE_BOUNDS,
	                              .sharing = SKV_SHARE_Q_HEAD,
	                              .evict = {.granularity = SKV_PAGE_TOKENS, .budget = {.share = 0.5f}, .floor = 8, .slack = 1}};
}
static uint32_t leave_out; /* 1 to 5: the request below that is left out; above: the one that is added */
static void before_keep(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	if (layer != 2)
		return;
	if (leave_out != 1)
		ctx->prims->score_pages(ctx, layer);
	if (leave_out != 2)
		ctx->prims->touch_pages(ctx, &(struct skv_touch_pages){.layer = layer, .alpha = 1e-4f});
}
static void after_keep(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	if (layer == 0)
		select_both(ctx, layer);
	if (layer == 1 && leave_out != 3)
		ctx->prims->accumulate_scores(ctx, layer);
	if (layer == 1 && leave_out != 4)
		ctx->prims->evict_to_budget(ctx, &(struct skv_evict_to_budget){.layer = layer, .recent = {.share = 0.5f}, .smooth = 5});
	if (layer == 2 && leave_out != 5)
		ctx->prims->evict_to_budget(ctx, &(struct skv_evict_to_budget){.layer = layer, .evict_older = 1});
	if (layer == 1 && leave_out == 6)
		ctx->prims->evict_to_budget(ctx, &(struct skv_evict_to_budget){.layer = layer});
	if (layer == 2 && leave_out == 7)
		ctx->prims->accumulate_scores(ctx, layer);
	if (layer == 3 && leave_out == 8)
		ctx->prims->evict_to_budget(ctx, &(struct skv_evict_to_budget){.layer = 1});
	if (layer == 1 && leave_out == 9)
		ctx->prims->select_tokens(ctx, &(struct skv_select){.layer = 1, .budget = {.count = 8}});
	if (layer == 1 && leave_out == 10)
		ctx->prims->accumulate_scores(ctx, layer);
}
static void evict_kept(const struct skv_policy_ctx *ctx)
{
	ctx->prims->evict_outside(ctx, 1, &(struct skv_window){.budget = {.count = 8}});
}

START_TEST(layers_that_keep)
{
	static const char *const says[] = {
		"",
		"before of layer 2: touches pages that are not scored",
		"before of layer 2: the layer attends to a selection of layer 2 that no hook has made",
		"after of layer 1: the layer evicts by scores that no hook accumulates",
		"after of layer 1: the layer has an eviction plan, but no hook evicts",
		"after of layer 2: the layer has an eviction plan, but no hook evicts",
		"after of layer 1: makes the same call twice",
		"after of layer 2: asks for accumulated scores in a layer whose plan has none",
		"after of layer 3: asks for layer 1, expected in its own after",
		"after of layer 1: asks for a selection by a layer that evicts",
		"after of layer 1: makes the same call twice",
	};

	in_end = NULL;
	in_adopt = NULL;
	in_before = before_keep;
	in_after = after_keep;
	for (leave_out = 0; leave_out < sizeof(says) / sizeof(*says); leave_out++) {
		some_keep();
		if (*says[leave_out])
			ck_assert_text(rehearse(), says[leave_out]);
		else
			ck_assert_str_eq(rehearse(), "");
	}
	leave_out = 0;
	in_end = evict_kept;
	some_keep();
	ck_assert_text(rehearse(), "step_end: asks for evict_outside of a layer with an eviction plan (layer 1)");
	in_end = NULL;
#define NO_KEEP(change, says) SPOILED(some_keep, change, says)
	NO_KEEP(wanted[1].evict.granularity = 2, "plan of layer 1: evict: granularity, expected 1 or a page's tokens");
	NO_KEEP(wanted[1].evict.budget.count = 1, "plan of layer 1: evict: a budget, expected at least 2,");
	NO_KEEP(wanted[2].evict.floor = 1, "plan of layer 2: evict: a budget, expected at least 2,");
	NO_KEEP(wanted[2].evict.slack = 0, "plan of layer 2: evict: slack, expected at least 1");
	NO_KEEP(wanted[2].evict.window = 8, "plan of layer 2: evict: a window without accumulated scores");
	NO_KEEP(wanted[2].evict.accumulate = 1, "plan of layer 2: evict: a layer that evicts pages");
	NO_KEEP(wanted[2].sharing = 0, "plan of layer 2: evict: a layer that evicts pages");
	NO_KEEP(wanted[1].reduce = SKV_REDUCE_MAX, "plan of layer 1: evict: accumulated scores are SKV_SCORES_TOKENS");
	NO_KEEP(wanted[1].evict.accumulate = 0, "plan of layer 1: evict: accumulated scores are SKV_SCORES_TOKENS");
	NO_KEEP(wanted[3].evict = wanted[1].evict, "plan of layer 3: evict: a layer that evicts tokens attends densely");
	NO_KEEP((wanted[3].attend = SKV_ATTEND_TOKENS, wanted[3].source = 1),
	        "plan of layer 3: source has an eviction");
}
END_TEST

/* Layer 1 selects for layer 2. Layers 0, 2 and 3 compress. */
static void some_pack(void)
{
	all_good();
	wanted[0] = (struct skv_plan){.scores = SKV_SCORES_PAGES,
	                              .compress = {.kind = SKV_COMPRESS_QUANT, .bits = 2, .scale_block = 32, .block = 64}};
	wanted[1] = (struct skv_plan){.scores = SKV_SCORES_TOKENS};
	wanted[2] = (struct skv_plan){.attend = SKV_ATTEND_TOKENS, .source = 1,
	                              .compress = {.kind = SKV_COMPRESS_LATENT, .bits = 8, .scale_block = 64, .stride = 10, .n_refs = 4,
	                                       .ref_bits = 16, .sinks = 16, .residual = 128, .block = 16}};
	wanted[3] = (struct skv_plan){.compress = {.kind = SKV_COMPRESS_LATENT, .bits = 16, .scale_block = 64, .block = 48}};
}

static void select_for_next(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	if (layer == 1)
		ctx->prims->select_tokens(ctx, &(struct skv_select){.layer = 1, .budget = {.count = 8}});
}

START_TEST(layers_that_pack)
{
	in_before = NULL;
	in_end = NULL;
	in_adopt = NULL;
	in_after = select_for_next;
	some_pack();
	ck_assert_str_eq(rehearse(), "");
#define NO_PACK(change, says) SPOILED(some_pack, change, says)
	NO_PACK(wanted[2].compress.kind = 3, "plan of layer 2: compress: kind is not one of");
	NO_PACK(wanted[2].compress.block = 0, "plan of layer 2: compress: block, expected whole pages, and");
	NO_PACK(wanted[2].compress.block = 24, "plan of layer 2: compress: block, expected whole pages, and");
	NO_PACK(wanted[2].compress.residual = UINT32_MAX, "plan of layer 2: compress: block, expected whole pages, and");
	NO_PACK(wanted[2].compress.scale_block = 16, "plan of layer 2: compress: scale_block, expected 32");
	NO_PACK(wanted[2].compress.bits = 2, "plan of layer 2: compress: bits of a");
	NO_PACK(wanted[2].compress.bits = 12, "plan of layer 2: compress: bits of a");
	NO_PACK(wanted[3].compress.bits = 0, "plan of layer 3: compress: bits of a");
	NO_PACK(wanted[2].compress.n_refs = 5, "plan of layer 2: compress: stride, expected at");
	NO_PACK(wanted[2].compress.n_refs = 0, "plan of layer 2: compress: stride, expected at");
	NO_PACK(wanted[2].compress.stride = 256, "plan of layer 2: compress: stride, expected at");
	NO_PACK(wanted[2].compress.sinks = 3, "plan of layer 2: compress: stride, expected at");
	NO_PACK(wanted[2].compress.sinks = 241, "plan of layer 2: compress: sinks, expected at");
	NO_PACK(wanted[2].compress.ref_bits = 0, "plan of layer 2: compress: ref_bits, expected 16,");
	NO_PACK(wanted[3].compress.ref_bits = 8, "plan of layer 3: compress: ref_bits, expected 16,");
	NO_PACK(wanted[3].scores = SKV_SCORES_TOKENS, "plan of layer 3: compress: a layer with latents makes no scores");
	NO_PACK(wanted[1].sharing = SKV_SHARE_KV_HEAD, "plan of layer 2: compress: a layer with latents");
	NO_PACK(wanted[2].attend = SKV_ATTEND_PAGES, "plan of layer 2: compress: a layer with latents");
	NO_PACK(wanted[0].compress.bits = 8, "plan of layer 0: compress: bits of quantized K and V, expected 4 or 2");
	NO_PACK(wanted[0].compress.block = 48, "plan of layer 0: compress: block of quantized K and V, expected a multiple");
	NO_PACK(wanted[0].compress.sinks = 16, "plan of layer 0: compress: quantized K and V have neither references nor");
	NO_PACK((wanted[0].compress.stride = 10, wanted[0].compress.n_refs = 4),
	        "plan of layer 0: compress: quantized K and V have neither references nor");
	NO_PACK(wanted[0].compress.ref_bits = 4, "plan of layer 0: compress: quantized K and V have neither references nor");
	NO_PACK(wanted[0].scores = SKV_SCORES_PAGE_BOUNDS, "plan of layer 0: compress: a layer with quantized K and V attends densely, without");
	NO_PACK((wanted[2].compress = wanted[0].compress), "plan of layer 2: compress: a layer with quantized K and V attends densely, without");
	some_keep();
	wanted[1].compress = (struct skv_compress){.kind = SKV_COMPRESS_LATENT, .bits = 4, .scale_block = 32,
	                                           .block = 32};
	in_before = before_keep;
	in_after = after_keep;
	ck_assert_text(rehearse(), "plan of layer 1: compress: a layer with an eviction");
}
END_TEST

START_TEST(spoiled_plans)
{
	in_after = select_both;
	all_good();
	ck_assert_str_eq(rehearse(), "");
	NO_PLAN(wanted[0].attend = 4, "plan of layer 0: attend is not one of");
	NO_PLAN(wanted[0].scores = 16, "plan of layer 0: scores has unknown bits");
	NO_PLAN(wanted[0].scores = SKV_SCORES_SKETCHES, "plan of layer 0: sketches give scores of tokens or of pages");
	NO_PLAN(wanted[0].scores |= SKV_SCORES_SKETCHES | SKV_SCORES_PAGE_BOUNDS, "plan of layer 0: sketches give scores of tokens or of pages, and");
	NO_PLAN(wanted[0].scores |= SKV_SCORES_SKETCHES, "plan of layer 0: sketch_bits, expected 1 to 4");
	NO_PLAN((wanted[0].scores |= SKV_SCORES_SKETCHES, wanted[0].sketch_bits = 5), "plan of layer 0: sketch_bits, expected 1 to 4");
	NO_PLAN(wanted[0].sketch_bits = 2, "plan of layer 0: sketch_bits without SKV_SCORES_SKETCHES");
	NO_PLAN(wanted[0].scores |= SKV_SCORES_PAGE_BOUNDS, "plan of layer 0: page bounds are a layer's only scores");
	NO_PLAN(wanted[3].scores = SKV_SCORES_PAGES, "plan of layer 3: scores come from dense layers, and");
	NO_PLAN(wanted[0].reduce = 3, "reduce is not one of");
	NO_PLAN(wanted[0].reduce = SKV_REDUCE_MEAN_Q, "reduce is the mean of q, expected with page");
	NO_PLAN(wanted[0].sharing = SKV_SHARE_Q_HEAD + 1, "sharing is not one of");
	NO_PLAN(wanted[1].source = 1, "plan of layer 1: source is not an earlier layer");
	NO_PLAN(wanted[1].source = 1000, "plan of layer 1: source is not an earlier layer");
	NO_PLAN(wanted[0].scores = SKV_SCORES_TOKENS,
	        "plan of layer 1: source makes no scores to select by");
	NO_PLAN(wanted[0].scores = SKV_SCORES_PAGES, "plan of layer 2: source makes no scores to select by");
	NO_PLAN(wanted[3].window.budget.count = 0, "plan of layer 3: a window without a budget");
	NO_PLAN(wanted[3].window.budget.share = 0.5f, "plan of layer 3: a window without a budget");
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-plugin-plan");

	add_case(s, "plans", 60, NULL, NULL, layers_that_choose, layers_that_score, layers_that_keep,
	         layers_that_pack, rehearsals, unions, mapped_rows, spoiled_plans, NULL);
	return run_suite(s);
}
