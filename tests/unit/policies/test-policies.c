/* SPDX-License-Identifier: Apache-2.0 */
/* The built policies: their plans, the requests of their hooks, and the parameters that they refuse. */
#include <math.h>

#include "tests/support/policy-file.h"
#include "tests/support/suite.h"

/* The smallest and the largest limits of a model. */
static const struct skv_model smallest = {
        .size = sizeof(smallest), .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 16,
        .max_tokens = 1, .n_ranks = 1, .name = "smallest",
};
static const struct skv_model deepest = {
        .size = sizeof(deepest), .n_layers = SKV_MAX_LAYERS, .n_heads = 8, .n_kv_heads = 8, .head_dim = 128,
        .max_tokens = SKV_MAX_TOKENS, .n_ranks = 1, .name = "deepest",
};

/* ---- the policies ---------------------------------------------------------------------------- */

START_TEST(loads_with_its_name)
{
	const struct skv_policy *p = policy_of(policy_names[_i]);

	ck_assert_str_eq(p->name, policy_names[_i]);
	ck_assert_int_eq(skv_policy_check(p, err, sizeof(err)), 0);
	ck_assert_int_eq(skv_policy_rehearse(p, NULL, &reference, err, sizeof(err)), 0);
	ck_assert_int_eq(skv_policy_rehearse(p, NULL, &deepest, err, sizeof(err)), 0);
}
END_TEST

static const struct {
	const char *spec;
	const struct skv_model *model;
	const char *plans;
} planned[] = {
	{"full", &reference, "d d d d d d d d d d d d d d d d"},
	{"streaming?budget=0.25&dense=2", &reference, "d d w w w w w w w w w w w w w w"},
	{"streaming", &reference, "w w w w w w w w w w w w w w w w"},
	{"delta?budget=0.25&layers=2,7,12", &reference, "d d s p2 p2 p2 p2 s p7 p7 p7 p7 s p12 p12 p12"},
	{"delta?layers=4,5&dense=3", &reference, "d d d d s s p5 p5 p5 p5 p5 p5 p5 p5 p5 p5"},
	{"delta?layers=0&dense=2", &reference, "s d p0 p0 p0 p0 p0 p0 p0 p0 p0 p0 p0 p0 p0 p0"},
	{"delta", &reference, "d d s p2 p2 p2 s p6 p6 p6 s p10 p10 p10 p10 p10"},
	{"delta?dense=16", &reference, "d d d d d d d d d d d d d d d d"},
	{"delta?dense=14", &reference, "d d d d d d d d d d d d d d s p14"},
	{"delta?dense=6", &reference, "d d d d d d s p6 p6 p6 s p10 p10 p10 p10 p10"},
	{"delta?dense=0", &smallest, "s"},
	{"delta", &smallest, "d"},
	{"omnikv?layers=2,7,12&more=0", &reference, "d d s t2 t2 t2 t2 s t7 t7 t7 t7 s t12 t12 t12"},
	{"omnikv", &reference, "d d s d t2 t2 s d t6 t6 s d t10 t10 t10 t10"},
	{"omnikv?layers=0,1&dense=3&more=2", &reference, "s s d d t1 t1 t1 t1 t1 t1 t1 t1 t1 t1 t1 t1"},
	{"omnikv?dense=0", &smallest, "s"},
	{"deltakv?layers=2,7,12", &reference, "d d s t2z t2z t2z t2z s t7z t7z t7z t7z s t12z t12z t12z"},
	{"deltakv?layers=4&dense=3&stride=0&n_refs=0&bits=4", &reference,
	 "d d d d s t4z t4z t4z t4z t4z t4z t4z t4z t4z t4z t4z"},
	{"deltakv?layers=4&dense=3&full_bits=2&block=16", &reference,
	 "dz dz dz dz sz t4z t4z t4z t4z t4z t4z t4z t4z t4z t4z t4z"},
	{"deltakv", &smallest, "d"},
	{"kivi?dense=2&bits=2", &reference, "d d dz dz dz dz dz dz dz dz dz dz dz dz dz dz"},
	{"kivi", &smallest, "dz"},
	{"palu?dense=2&bits=4", &reference, "d d dz dz dz dz dz dz dz dz dz dz dz dz dz dz"},
	{"palu", &smallest, "dz"},
	{"kascade?layers=0,1,2,7,12", &reference, "sk t1k t2k t2 t2 t2 t2 t7k t7 t7 t7 t7 t12k t12 t12 t12"},
	{"kascade:dense-anchors?layers=0,2,7,12", &reference,
	 "sk t0 sk t2 t2 t2 t2 sk t7 t7 t7 t7 sk t12 t12 t12"},
	{"kascade:shared?layers=3", &reference, "d d d t3 t3 t3 t3 t3 t3 t3 t3 t3 t3 t3 t3 t3"},
	{"kascade:shared-dense-anchors", &reference, "s t0 s t2 t2 t2 s t6 s t8 s t10 t10 t10 t10 t10"},
	{"kascade", &smallest, "sk"},
	{"tidal", &reference, "d d sq t2 t2 t2 sq t6 t6 t6 t6 t6 t6 t6 t6 t6"},
	{"tidal?layers=1&dense=4", &reference, "d sq d d t1 t1 t1 t1 t1 t1 t1 t1 t1 t1 t1 t1"},
	{"tidal?dense=9", &reference, "d d d d d d d d d sq t9 t9 t9 t9 t9 t9"},
	{"tidal", &smallest, "d"},
	{"lessismore", &reference, "d d sq t2 t2 t2 sq t6 t6 t6 t6 t6 t6 t6 t6 t6"},
	{"lessismore?layers=5&dense=1", &reference, "d d d d d sq t5 t5 t5 t5 t5 t5 t5 t5 t5 t5"},
	{"quest:shared?dense=13", &reference, "d d d d d d d d d d d d d p13 p14 p15"},
	{"quest:sglang?budget=0.7&dense=15", &reference, "d d d d d d d d d d d d d d d p15"},
	{"quest", &reference, "d d p2q p3q p4q p5q p6q p7q p8q p9q p10q p11q p12q p13q p14q p15q"},
	{"quest", &smallest, "d"},
	{"quest?dense=0", &smallest, "p0q"},
	{"sketch", &reference, "t0k t1k t2k t3k t4k t5k t6k t7k t8k t9k t10k t11k t12k t13k t14k t15k"},
	{"sketch?dense=14", &reference, "d d d d d d d d d d d d d d t14k t15k"},
	{"sketch:q?dense=14", &reference, "d d d d d d d d d d d d d d t14q t15q"},
	{"kascade?layers=0,2,7&scores=sketch", &reference, "t0k t0 t2k t2 t2 t2 t2 t7k t7 t7 t7 t7 t7 t7 t7 t7"},
	{"omnikv?layers=1,2,7&more=0&scores=sketch", &reference, "d s t2 t2 t2 t2 t2 t7 t7 t7 t7 t7 t7 t7 t7 t7"},
	{"omnikv?dense=0&layers=0,7&scores=sketch", &reference, "t0 d t0 t0 t0 t0 t0 t7 d t7 t7 t7 t7 t7 t7 t7"},
	{"delta?layers=2,7&scores=sketch", &reference, "d d p2 p2 p2 p2 p2 p7 p7 p7 p7 p7 p7 p7 p7 p7"},
	{"h2o?dense=13", &reference, "d d d d d d d d d d d d d sk sk sk"},
	{"h2o", &smallest, "sk"},
	{"snapkv?dense=15", &reference, "d d d d d d d d d d d d d d d sk"},
	{"pyramidkv", &smallest, "sk"},
	{"rkv?dense=15", &reference, "d d d d d d d d d d d d d d d sk"},
	{"raas?dense=14", &reference, "d d d d d d d d d d d d d d p14q p15q"},
	{"raas:quest", &smallest, "p0q"},
	{"template?dense=1", &reference, "s t0 t0 t0 t0 t0 t0 t0 t0 t0 t0 t0 t0 t0 t0 t0"},
	{"template", &reference, "d d s t2 t2 t2 t2 t2 t2 t2 t2 t2 t2 t2 t2 t2"},
	{"template?dense=1", &smallest, "s"},
};

START_TEST(plans)
{
	const char *is = plans_of(planned[_i].spec, planned[_i].model);

	ck_assert_msg(!strcmp(is, planned[_i].plans), "%s: %s, expected %s", planned[_i].spec, is, planned[_i].plans);
}
END_TEST

/* The requests of the hooks in one step, recorded by primitives that do nothing else. */
static struct {
	struct skv_select pages[SKV_MAX_LAYERS], tokens[SKV_MAX_LAYERS], unions[SKV_MAX_LAYERS];
	struct skv_window evicted[SKV_MAX_LAYERS];
	uint32_t n_pages, n_tokens, n_unions, n_evicted, n_scored;
} asked;

static void slot_meta_pages(const struct skv_policy_ctx *ctx, const struct skv_select *s)
{
	(void)ctx;
	asked.pages[asked.n_pages++] = *s;
}
static void slot_meta_tokens(const struct skv_policy_ctx *ctx, const struct skv_select *s)
{
	(void)ctx;
	asked.tokens[asked.n_tokens++] = *s;
}
static void slot_meta_union(const struct skv_policy_ctx *ctx, const struct skv_select *s)
{
	(void)ctx;
	asked.unions[asked.n_unions++] = *s;
}
static void slot_meta_evict(const struct skv_policy_ctx *ctx, uint32_t layer, const struct skv_window *w)
{
	(void)ctx;
	ck_assert_uint_eq(asked.evicted[layer].budget.count, 0);
	asked.evicted[layer] = *w;
	asked.n_evicted++;
}

static void slot_meta_score(const struct skv_policy_ctx *ctx, uint32_t layer)
{
	(void)ctx;
	ck_assert_uint_eq(asked.n_pages, asked.n_scored);
	ck_assert_uint_eq(layer, asked.n_scored + 2);
	asked.n_scored++;
}

static void run_step(const char *spec)
{
	static const struct skv_prims prims = {
	        .size = sizeof(prims),
	        .select_pages = slot_meta_pages,
	        .select_tokens = slot_meta_tokens,
	        .select_union = slot_meta_union,
	        .evict_outside = slot_meta_evict,
	        .score_pages = slot_meta_score,
	};
	const struct skv_policy *p = policy_of(spec);
	static _Alignas(16) char config[131072];
	struct skv_policy_ctx ctx = {
	        .size = sizeof(ctx), .n_seqs = 1, .prims = &prims, .model = &reference, .config = config};

	memset(&asked, 0, sizeof(asked));
	ck_assert_msg(skv_spec_parse(p, spec, &reference, config, err, sizeof(err)) == 0, "%s", err);
	for (uint32_t l = 0; l < reference.n_layers; l++) {
		if (p->before)
			p->before(&ctx, l);
		if (p->after)
			p->after(&ctx, l);
	}
	if (p->step_end)
		p->step_end(&ctx);
}

/* The sizes of a selection, as policy.h describes them at struct skv_select. */
static void sizes(const struct skv_select *s, uint32_t n, uint32_t *ret_k, uint32_t *ret_r)
{
	uint32_t k = skv_budget_of(s->budget, n, s->floor);
	uint32_t r = s->recent ? s->recent : k / 8;

	r = r > s->recent_floor ? r : s->recent_floor;
	*ret_k = k;
	*ret_r = s->no_recent ? 0 : r < k ? r : k;
}

/* Calibrated layers are used where the spec leaves the layers open. */
START_TEST(profiles)
{
	const struct {
		const char *name, *open, *named; /* plans with open layers, and with layers=3 */
	} cases[] = {
		{"delta", "d d s p2 p2 s p5 p5 p5 p5 p5 p5 p5 p5 p5 p5",
		 "d d d s p3 p3 p3 p3 p3 p3 p3 p3 p3 p3 p3 p3"},
		{"omnikv", "d d d d s d t4 t4 s d t8 t8 t8 t8 t8 t8",
		 "d d d s d t3 t3 t3 t3 t3 t3 t3 t3 t3 t3 t3"},
		{"tidal", "d d d d sq t4 t4 t4 sq t8 t8 t8 t8 t8 t8 t8",
		 "d d d sq t3 t3 t3 t3 t3 t3 t3 t3 t3 t3 t3 t3"},
		{"lessismore", "d d d d sq t4 t4 t4 sq t8 t8 t8 t8 t8 t8 t8",
		 "d d d sq t3 t3 t3 t3 t3 t3 t3 t3 t3 t3 t3 t3"},
	};
	char path[] = "/tmp/test-policies-XXXXXX", spec[128];

	profile_write(path, "\"delta\": [2, 5], \"filters\": [4, 8]");
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		snprintf(spec, sizeof(spec), "%s?profile=%s", cases[i].name, path);
		ck_assert_str_eq(plans_of(spec, &reference), cases[i].open);
		snprintf(spec, sizeof(spec), "%s?layers=3&profile=%s", cases[i].name, path);
		ck_assert_str_eq(plans_of(spec, &reference), cases[i].named);
	}
	unlink(path);
}
END_TEST

/*
 * Anchors and head maps of the profile. The maps also apply to layers that the spec names, if a layer has the same
 * anchor as in the profile; not to a list that all heads share, nor after another anchor.
 */
START_TEST(kascade_profile)
{
	char path[] = "/tmp/test-policies-XXXXXX", spec[128];
	struct skv_plan got[SKV_MAX_LAYERS];

	profile_write_anchors(path);
	for (int i = 0; i < 4; i++) {
		static const char *const spec_of[] = {"kascade?", "kascade:shared?", "kascade?layers=0,2&", "kascade?layers=0,1&"};
		bool mapped = i == 0 || i == 2;

		snprintf(spec, sizeof(spec), "%sprofile=%s", spec_of[i], path);
		policy_plans(spec, &reference, got);
		ck_assert_uint_eq(got[3].source, i == 3 ? 1 : 2);
		ck_assert_uint_eq(got[3].mapped, mapped);
		ck_assert_uint_eq(got[3].map[0], mapped);
		ck_assert_uint_eq(got[2].mapped, 0);
	}
	unlink(path);
}
END_TEST

/* A share as in the reference simulation: K = max(8, ceil(f·pages)), L = max(2, K/8). */
START_TEST(delta_selects)
{
	static const double shares[] = {0.05, 0.1, 0.125, 0.25, 0.5, 0.9};
	uint32_t k, r;

	for (size_t i = 0; i < sizeof(shares) / sizeof(shares[0]); i++) {
		char spec[64];

		snprintf(spec, sizeof(spec), "delta?budget=%g&layers=2,7,12", shares[i]);
		run_step(spec);
		ck_assert_uint_eq(asked.n_pages, 3);
		ck_assert_uint_eq(asked.n_tokens + asked.n_evicted, 0);
		ck_assert_uint_eq(asked.pages[0].layer, 2);
		ck_assert_uint_eq(asked.pages[1].layer, 7);
		ck_assert_uint_eq(asked.pages[2].layer, 12);
		ck_assert_uint_eq(asked.pages[1].pin, 0);
		for (uint32_t n = 1; n < 5000; n++) {
			uint32_t want = (uint32_t)fmax(8, ceil(shares[i] * n - 1e-9));
			uint32_t want_r = want / 8 > 2 ? want / 8 : 2;

			sizes(&asked.pages[1], n, &k, &r);
			ck_assert_uint_eq(k, want < n ? want : n);
			ck_assert_uint_eq(r, want_r < k ? want_r : k);
		}
	}

	/* A count is used as it is; the paper's K = 64, L = 8 is the default. */
	run_step("delta");
	sizes(&asked.pages[0], 1000, &k, &r);
	ck_assert_uint_eq(k, 64);
	ck_assert_uint_eq(r, 8);
	run_step("delta?budget=1");
	sizes(&asked.pages[0], 1000, &k, &r);
	ck_assert_uint_eq(k, 1);
	ck_assert_uint_eq(r, 1);
	run_step("delta?budget=0.5&recent=1&pin=4");
	sizes(&asked.pages[0], 1000, &k, &r);
	ck_assert_uint_eq(k, 500);
	ck_assert_uint_eq(r, 1);
	ck_assert_uint_eq(asked.pages[0].pin, 4);
}
END_TEST

START_TEST(streaming_evicts)
{
	run_step("streaming?budget=0.25&dense=2");
	ck_assert_uint_eq(asked.n_pages + asked.n_tokens, 0);
	ck_assert_uint_eq(asked.n_evicted, 14);
	for (uint32_t l = 2; l < 16; l++) {
		ck_assert_uint_eq(asked.evicted[l].sinks, 4);
		ck_assert_uint_eq(asked.evicted[l].floor, 128);
		ck_assert_float_eq(asked.evicted[l].budget.share, 0.25f);
	}
	/* no evicted token is needed by a later step: the beginning of the window does not move back */
	for (uint32_t n = 1, start = 0; n < 20000; n++) {
		uint32_t w = skv_budget_of(asked.evicted[2].budget, n, 128), s = n - (w > 4 ? w - 4 : 1);

		ck_assert_uint_ge(s, start);
		start = s;
	}

	run_step("streaming?budget=64&sinks=0");
	ck_assert_uint_eq(asked.n_evicted, 16);
	ck_assert_uint_eq(asked.evicted[0].budget.count, 64);
	ck_assert_uint_eq(asked.evicted[0].floor, 0);
	ck_assert_uint_eq(asked.evicted[0].sinks, 0);
}
END_TEST

/* K = max(8, ceil(f·pages)), including the last page, or SGLang's last four; eval: at least 3, none of them recent. */
START_TEST(quest_selects)
{
	static const char *const specs[] = {"quest", "quest:eval", "quest:shared", "quest:sglang"};
	static const uint32_t recent[] = {1, 0, 1, 4};
	char spec[64];
	uint32_t k, r;

	snprintf(spec, sizeof(spec), "%s?budget=0.25", specs[_i]);
	run_step(spec);
	ck_assert_uint_eq(asked.n_scored, 14);
	ck_assert_uint_eq(asked.n_pages, 14);
	ck_assert_uint_eq(asked.n_tokens + asked.n_evicted, 0);
	for (uint32_t l = 0; l < 14; l++) {
		ck_assert_uint_eq(asked.pages[l].layer, l + 2);
		ck_assert_uint_eq(asked.pages[l].pin, 0);
		sizes(&asked.pages[l], 1001, &k, &r);
		ck_assert_uint_eq(k, 251);
		ck_assert_uint_eq(r, recent[_i]);
		sizes(&asked.pages[l], 10, &k, &r);
		ck_assert_uint_eq(k, _i == 1 ? 3 : 8);
	}
	run_step("quest?budget=3");
	sizes(&asked.pages[0], 1001, &k, &r);
	ck_assert_uint_eq(k, 3);
	ck_assert_uint_eq(r, 1);
	run_step("quest:eval?budget=1030");
	sizes(&asked.pages[0], 1001, &k, &r);
	ck_assert_uint_eq(k, 64);
	ck_assert_uint_eq(r, 0);
	run_step("quest:eval?budget=10");
	sizes(&asked.pages[0], 1001, &k, &r);
	ck_assert_uint_eq(k, 3);
}
END_TEST

/* Returns the layers' eviction plans. */
static const struct skv_evict *evicts(const char *spec)
{
	static struct skv_plan all[SKV_MAX_LAYERS];
	static struct skv_evict evict[SKV_MAX_LAYERS];

	policy_plans(spec, &reference, all);
	for (uint32_t l = 0; l < reference.n_layers; l++)
		evict[l] = all[l].evict;
	return evict;
}

START_TEST(budgets_that_are_kept)
{
	const struct skv_evict *k = evicts("h2o?budget=0.25&dense=2");

	ck_assert_uint_eq(k[1].granularity, 0);
	ck_assert_uint_eq(k[2].granularity, 1);
	ck_assert_uint_eq(skv_budget_of(k[2].budget, 1000, k[2].floor), 250);
	ck_assert_uint_eq(skv_budget_of(k[2].budget, 200, k[2].floor), 128);
	ck_assert_uint_eq(k[2].slack, 1);
	ck_assert_uint_eq(k[2].window, 0);

	k = evicts("snapkv?budget=256&window=8");
	ck_assert_uint_eq(skv_budget_of(k[0].budget, 1000, k[0].floor), 256);
	ck_assert_uint_eq(k[0].window, 8);
	ck_assert_uint_eq(k[0].slack, 128);
	ck_assert_uint_eq(k[0].at_prompt_end, 1);
	ck_assert_uint_ge(evicts("snapkv?interval=0")[0].slack, SKV_MAX_TOKENS); /* no second eviction */
	ck_assert_uint_eq(evicts("rkv")[0].slack, 128);
	ck_assert_float_eq_tol(evicts("adakv")[0].max_head_ratio, 1.8f, 1e-6f); /* 2 kv heads, one of which keeps 0.2 */
	ck_assert_float_eq(evicts("adakv?max_head_ratio=1.5")[0].max_head_ratio, 1.5f);

	k = evicts("raas?budget=0.25");
	ck_assert_uint_eq(k[0].granularity, SKV_PAGE_TOKENS);
	ck_assert_uint_eq(skv_budget_of(k[0].budget, 100, k[0].floor), 25);
	ck_assert_uint_eq(skv_budget_of(k[0].budget, 10, k[0].floor), 8);
	ck_assert_uint_eq(k[0].pin_prompt, 1);
	ck_assert(k[0].pinned.share == 0 && k[0].pinned.count == 0);
	k = evicts("raas:quest?budget=0.25");
	ck_assert_uint_eq(skv_budget_of(k[0].pinned, 100, k[0].pinned_floor), 13);
	ck_assert_uint_eq(skv_budget_of(k[0].pinned, 10, k[0].pinned_floor), 4);
}
END_TEST

/* The tokens of all layers add up to what equal budgets would give. */
START_TEST(a_pyramid_adds_up)
{
	static const struct {
		const char *spec;
		uint32_t n, all, first, last;
	} c[] = {
		{"pyramidkv?budget=1024", 16384, 16 * 1024, 1965, 82},
		{"pyramidkv?budget=0.25", 16384, 16 * 4096, 7988, 205},
		{"pyramidkv?budget=0.125", 256, 16 * 128, 218, 37}, /* the floors */
		{"pyramidkv:sparse-vllm?budget=0.492", 16384, 16 * 4096, 8061, 135},
	};

	for (size_t i = 0; i < sizeof(c) / sizeof(c[0]); i++) {
		const struct skv_evict *k = evicts(c[i].spec);
		uint32_t sum = 0, before = UINT32_MAX;

		for (uint32_t l = 0; l < reference.n_layers; l++) {
			uint32_t most = skv_budget_of(k[l].budget, c[i].n, k[l].floor);

			ck_assert_uint_lt(most, before);
			before = most;
			sum += most;
		}
		ck_assert_msg(sum + 16 >= c[i].all && sum <= c[i].all + c[i].all / 50, "%s: %u tokens", c[i].spec, sum);
		ck_assert_uint_eq(skv_budget_of(k[0].budget, c[i].n, k[0].floor), c[i].first);
		ck_assert_uint_eq(before, c[i].last);
	}
}
END_TEST

START_TEST(template_selects)
{
	run_step("template?budget=0.1&recent=32&dense=2");
	ck_assert_uint_eq(asked.n_tokens, 1);
	ck_assert_uint_eq(asked.n_pages + asked.n_evicted, 0);
	ck_assert_uint_eq(asked.tokens[0].layer, 1);
	ck_assert_uint_eq(asked.tokens[0].recent, 32);
	ck_assert_uint_eq(asked.tokens[0].floor, 128);
}
END_TEST

/* Checks the sizes of a token selection among n tokens: k in total, of which r are recent. */
static void expect_sizes(const struct skv_select *s, uint32_t n, uint32_t k, uint32_t r)
{
	uint32_t is_k, is_r;

	sizes(s, n, &is_k, &is_r);
	ck_assert_uint_eq(is_k, k);
	ck_assert_uint_eq(is_r, r);
}

START_TEST(token_policies_select)
{
	run_step("omnikv?budget=0.25&layers=2,7,12");
	ck_assert_uint_eq(asked.n_tokens, 3);
	ck_assert_uint_eq(asked.tokens[2].layer, 12);
	expect_sizes(&asked.tokens[0], 1000, 250, 32);
	expect_sizes(&asked.tokens[0], 200, 128, 32);
	run_step("omnikv?budget=64&recent=0");
	expect_sizes(&asked.tokens[0], 1000, 64, 8);

	/* k = min(max(0.1 n, 128), n), of which none need be recent; the same in before() and after() */
	run_step("kascade?layers=0,2,7");
	ck_assert_uint_eq(asked.n_tokens, 3);
	ck_assert_uint_eq(asked.tokens[1].layer, 2);
	expect_sizes(&asked.tokens[1], 5000, 500, 0);
	expect_sizes(&asked.tokens[1], 1000, 128, 0);
	expect_sizes(&asked.tokens[1], 100, 100, 0);

	run_step("tidal");
	ck_assert_uint_eq(asked.n_tokens, 2);
	expect_sizes(&asked.tokens[1], 5000, 512, 0);

	run_step("lessismore?budget=0.25&sinks=7");
	ck_assert_uint_eq(asked.n_unions, 2);
	ck_assert_uint_eq(asked.n_tokens + asked.n_pages, 0);
	expect_sizes(&asked.unions[0], 1000, 250, 31);
	ck_assert_uint_eq(asked.unions[0].pin, 7);
	ck_assert_uint_eq(asked.unions[0].pin_counts, 1);
}
END_TEST

START_TEST(parameters_that_make_no_sense)
{
	static const struct {
		const char *spec, *says;
	} c[] = {
		{"streaming?budget=4", "sinks=4 leaves no room for recent tokens, expected below 4"},
		{"streaming?budget=0.5&sinks=128", "sinks=128"},
		{"delta?budget=8&recent=9", "recent=9, expected at most the budget of 8 pages"},
		{"delta?layers=2,16", "layers names layer 16, but the model's layers are 0 to 15"},
		{"sketch?budget=8", "a budget of at least 8 tokens, expected at least 16"},
		{"omnikv?scores=sketch&bits=5", "bits=5, expected 1 to 4"},
		{"delta?scores=sketch&bits=0", "bits=0, expected 1 to 4"},
		{"kascade?scores=sketch&budget=15", "a budget of at least 15 tokens, expected at least 16"},
		{"kascade:dense-anchors?scores=sketch", "scores=sketch, expected a variant whose anchors do not attend densely"},
		{"omnikv?budget=31", "recent=32, expected at most the budget of 31 tokens"},
		{"deltakv?budget=31", "recent=32, expected at most the budget of 31 tokens"},
		{"deltakv?bits=2", "bits=2, expected 16, 8, 4 or 0"},
		{"deltakv?scale_block=16", "scale_block=16, expected 32 or 64"},
		{"deltakv?ref_bits=0", "ref_bits=0, expected 16, 8 or 4"},
		{"deltakv?stride=0", "stride=0 and n_refs=4, expected 1 to 255 and 1 to 4, or 0 and 0"},
		{"deltakv?full_bits=8", "full_bits=8, expected 16, 4 or 2"},
		{"deltakv?residual=0", "residual=0, expected at least 1"},
		{"deltakv?block=8", "block=8, expected a multiple of 16"},
		{"deltakv?file=deltakv.safetensors", "file=deltakv.safetensors: expected the absolute path"},
		{"lessismore?budget=16&recent=13", "expected together at most the 16 tokens"},
		{"lessismore?budget=0.5&sinks=128", "sinks=128 and recent=0"},
		{"kascade:dense", "variant=dense: expected one of paper,dense-anchors,shared,"},
		{"kivi?bits=8", "bits=8, expected 4 or 2"},
		{"kivi?scale_block=16", "scale_block=16, expected 32 or 64"},
		{"kivi?residual=0", "residual=0, expected at least 1"},
		{"kivi?block=48", "block=48, expected a multiple of 32"},
		{"h2o?budget=3", "budget=3, expected at least 4 tokens"},
		{"snapkv?budget=32", "window=32, expected 1 to 31: less than the budget"},
		{"snapkv?pool=4", "pool=4, expected an odd number"},
		{"snapkv?interval=8", "interval=8, expected 0 or at least the window of 32"},
		{"adakv?safeguard=1.5", "safeguard=1.5, expected 0 to 1"},
		{"adakv?max_head_ratio=0.5", "max_head_ratio=0.5, expected 1 to 256"},
		{"palu?bits=0", "bits=0, expected 16, 8 or 4"},
		{"palu?scale_block=128", "scale_block=128, expected 32 or 64"},
		{"palu?residual=0", "residual=0, expected at least 1"},
		{"palu?block=0", "block=0, expected a multiple of 16"},
		{"pyramidkv?beta=0.5", "beta=0.5, expected at least 1"},
		{"pyramidkv?budget=0.5&window=128", "window=128, expected 1 to 127"},
		{"rkv?lambda=0", "lambda=0, expected above 0"},
		{"rkv?interval=0", "interval=0, expected at least the window of 8"},
		{"raas?budget=1", "budget=1, expected at least 2 pages"},
		{"raas?alpha=1", "alpha=1, expected 0 to 1"},
		{"raas?ratio=0", "ratio=0, expected above 0"},
		{"template?dense=0", "dense=0, expected 1 to 16"},
		{"template?dense=17", "dense=17, expected 1 to 16"},
		{"full?budget=1", "unknown parameter \"budget\", known are prefill, prefill_sinks"},
	};
	static _Alignas(16) char config[131072];

	for (size_t i = 0; i < sizeof(c) / sizeof(c[0]); i++) {
		int r = skv_spec_parse(policy_of(c[i].spec), c[i].spec, &reference, config, err, sizeof(err));

		ck_assert_int_eq(r, -EINVAL);
		ck_assert_text(err, c[i].says);
	}
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-policies");
	TCase *t = add_case(s, "built", 60, NULL, NULL, profiles, kascade_profile, delta_selects,
	                    streaming_evicts, budgets_that_are_kept, a_pyramid_adds_up, template_selects,
	                    token_policies_select, parameters_that_make_no_sense, NULL);

	tcase_add_loop_test(t, loads_with_its_name, 0, POLICY_NAMES);
	tcase_add_loop_test(t, plans, 0, sizeof(planned) / sizeof(*planned));
	tcase_add_loop_test(t, quest_selects, 0, 4);
	return run_suite(s);
}
