/* SPDX-License-Identifier: Apache-2.0 */
/* How prompts attend: the parameters of every policy for this, the resulting plans, and plans that are refused. */
#include "tests/support/policies.h"
#include "tests/support/policy-file.h"
#include "tests/support/suite.h"

static int plan(const struct skv_policy *p, const char *spec, struct skv_plan plans[SKV_MAX_LAYERS])
{
	static _Alignas(16) char config[131072];
	int r;

	ck_assert_uint_le(p->config_size, sizeof(config));
	r = skv_spec_parse(p, spec, &reference, config, err, sizeof(err));
	return r < 0 ? r : skv_policy_plan(p, config, &reference, plans, err, sizeof(err));
}

/* Returns a spec of the policy; each `@` is replaced by the common prefix of the parameters of prompts. */
static const char *spec_of(const struct skv_policy *p, const char *parameters)
{
	static char spec[512];
	char letter[2] = "";

	snprintf(spec, sizeof(spec), "%s?", p->name);
	for (; *parameters; parameters++) {
		letter[0] = *parameters;
		strcat(spec, *parameters == '@' ? "prefill_" : letter);
	}
	return spec;
}

static const struct skv_prefill *prefills(const struct skv_policy *p, const char *parameters)
{
	static struct skv_plan plans[SKV_MAX_LAYERS];
	static struct skv_prefill ret[SKV_MAX_LAYERS];
	const char *spec = spec_of(p, parameters);

	ck_assert_msg(plan(p, spec, plans) == 0, "%s: %s", spec, err);
	ck_assert_msg(skv_policy_rehearse(p, spec, &reference, err, sizeof(err)) == 0, "%s: %s", spec, err);
	for (uint32_t l = 0; l < reference.n_layers; l++)
		ret[l] = plans[l].prefill;
	return ret;
}

START_TEST(every_policy_takes_all_methods)
{
	const struct skv_policy *p = policy_of(policy_names[_i]);
	const struct skv_prefill none = {0}, *x = prefills(p, "prefill=dense");

	for (uint32_t l = 0; l < reference.n_layers; l++)
		ck_assert_mem_eq(&x[l], &none, sizeof(none));

	x = prefills(p, "prefill=streaming");
	for (uint32_t l = 0; l < reference.n_layers; l++) {
		const struct skv_prefill expect = {.how = SKV_PREFILL_STREAMING, .sinks = 1024, .window = 2048};

		ck_assert_mem_eq(&x[l], &expect, sizeof(expect));
	}
	x = prefills(p, "prefill=streaming+delta&@sinks=16&@window=128&@gamma=256");
	for (uint32_t l = 0; l < reference.n_layers; l++) {
		const struct skv_prefill expect = {.how = SKV_PREFILL_STREAMING, .correct = SKV_CORRECT_DELTA, .gamma = 256,
		                                   .tail = 256, .sinks = 16, .window = 128};

		ck_assert_mem_eq(&x[l], &expect, sizeof(expect));
	}
	x = prefills(p, "prefill=hip+recompute&@tail=100&@keep=256");
	for (uint32_t l = 0; l < reference.n_layers; l++) {
		const struct skv_prefill expect = {.how = SKV_PREFILL_HIP, .correct = SKV_CORRECT_RECOMPUTE, .gamma = 64,
		                                   .tail = 100, .sinks = 256, .window = 1024, .keep = {4096, 1024, 256}};

		ck_assert_mem_eq(&x[l], l < 3 ? &none : &expect, sizeof(expect));
	}
	x = prefills(p, "prefill=minference&@segment=512&@vertical=30&@slash=99");
	for (uint32_t l = 0; l < reference.n_layers; l++) {
		const struct skv_prefill expect = {.how = SKV_PREFILL_MINFERENCE, .segment = 512, .vertical = 30,
		                                   .slash = 99};

		ck_assert_mem_eq(&x[l], &expect, sizeof(expect));
	}
}
END_TEST

START_TEST(kascade_goes_by_anchors)
{
	static const uint32_t even[] = {0, 0, 2, 2, 2, 2, 6, 6, 6, 9, 9, 9, 9, 13, 13, 13};
	/* the anchors of its decode */
	static const uint32_t guessed[] = {0, 0, 2, 2, 2, 2, 6, 6, 8, 8, 10, 10, 10, 10, 10, 10};
	const struct skv_policy *p = policy_of(policy_names[_i]);
	const uint32_t *anchor = strcmp(p->name, POLICY_ANCHORS) ? even : guessed;
	const struct skv_prefill *x = prefills(p, "prefill=kascade+delta");

	for (uint32_t l = 0; l < reference.n_layers; l++) {
		ck_assert_uint_eq(x[l].how, SKV_PREFILL_KASCADE);
		ck_assert_uint_eq(x[l].correct, SKV_CORRECT_DELTA);
		ck_assert_uint_eq(x[l].tail, 128);
		ck_assert_float_eq(x[l].top.share, 0.1f);
		ck_assert_uint_eq(x[l].top_floor, 128);
		ck_assert_msg(x[l].source == anchor[l], "layer %u goes by %u", l, x[l].source);
		ck_assert_uint_eq(x[l].mapped, 0);
	}
	x = prefills(p, strcmp(p->name, POLICY_ANCHORS) ? "prefill=kascade&@anchors=3,7&@top=64"
	                                                : "prefill=kascade&layers=3,7&@top=64");
	for (uint32_t l = 0; l < reference.n_layers; l++) {
		ck_assert_uint_eq(x[l].how, l < 3 ? SKV_PREFILL_DENSE : SKV_PREFILL_KASCADE);
		ck_assert_uint_eq(x[l].source, l < 3 ? 0 : l < 7 ? 3 : 7);
		ck_assert_uint_eq(x[l].top.count, l < 3 ? 0 : 64);
	}
}
END_TEST

/* The head map in the kascade policy's profile applies to prompts, too. */
START_TEST(kascade_maps_heads)
{
	char path[] = "/tmp/test-prefill-plan-XXXXXX", parameters[128];
	const struct skv_prefill *x;

	profile_write_anchors(path);
	snprintf(parameters, sizeof(parameters), "prefill=kascade&profile=%s", path);
	x = prefills(policy_of(POLICY_ANCHORS), parameters);
	for (uint32_t l = 0; l < reference.n_layers; l++) {
		ck_assert_uint_eq(x[l].source, l < 2 ? 0 : 2);
		ck_assert_uint_eq(x[l].mapped, l != 0 && l != 2);
		ck_assert_uint_eq(x[l].map[0], l == 3);
	}
	unlink(path);
}
END_TEST

START_TEST(parameters_that_make_no_sense)
{
	static const struct {
		const char *parameters, *says; /* `@`: the common prefix of parameters */
	} c[] = {
		{"prefill=sparse", "prefill=sparse: expected one of dense,streaming,streaming+delta,"},
		{"prefill=streaming+", "prefill=streaming+: expected one of dense,"},
		{"@gamma=48", "gamma=48, expected a power of two, 2 to 4096"},
		{"@gamma=1", "gamma=1, expected a power of two"},
		{"@gamma=8192", "gamma=8192, expected a power of two"},
		{"@gamma=256&@tail=128", "tail=128, expected 0 or at least the gamma of 256"},
		{"@sinks=16777217", "sinks=16777217, expected at most 16777216"},
		{"prefill=hip&@sinks=100", "sinks=100, expected at most 16777216, with hip a multiple of 64"},
		{"prefill=hip+delta&@window=32", "window=32, expected at most 16777216, with hip a multiple of 64"},
		{"@keep=0", "keep=0, expected a multiple of 8, at most 1048576"},
		{"@keep=100", "keep=100, expected a multiple of 8"},
		{"@segment=64", "segment=64, expected a power of two, 128 to 16777216"},
		{"@segment=1000", "segment=1000, expected a power of two"},
		{"@vertical=29", "vertical=29, expected 30 to 16777216"},
		{"@slash=0", "slash=0, expected 30 to 16777216"},
		{"@top=0", "top=0: expected a share"},
	};
	const struct skv_policy *p = policy_of(policy_names[_i]);
	static struct skv_plan plans[SKV_MAX_LAYERS];

	for (size_t i = 0; i < sizeof(c) / sizeof(c[0]); i++) {
		const char *spec = spec_of(p, c[i].parameters);

		ck_assert_msg(plan(p, spec, plans) == -EINVAL, "%s", spec);
		ck_assert_text(err, c[i].says);
		if (c[i].parameters[0] == '@')
			ck_assert_text(err, "prefill_");
	}
}
END_TEST

/* ---- plans of others -------------------------------------------------------------------------- */

static struct skv_plan wanted[16];

static void as_wanted(const void *config, const struct skv_model *m, uint32_t layer, struct skv_plan *plan)
{
	(void)config;
	(void)m;
	plan->prefill = wanted[layer].prefill;
}

/* Layers 0 and 4 are anchors, 1 and 2 use the lists of 0; 5 is STREAMING, 6 HIP, 7 MINFERENCE. */
static void good_plans(void)
{
	const struct skv_prefill kascade = {.how = SKV_PREFILL_KASCADE, .correct = SKV_CORRECT_DELTA, .gamma = 64, .tail = 128,
	                                    .top = {.count = 100}};

	memset(wanted, 0, sizeof(wanted));
	wanted[0].prefill = wanted[1].prefill = wanted[2].prefill = wanted[4].prefill = kascade;
	wanted[4].prefill.source = 4;
	wanted[2].prefill.mapped = 1;
	wanted[2].prefill.map[0] = 1;
	wanted[5].prefill = (struct skv_prefill){.how = SKV_PREFILL_STREAMING, .window = 1};
	wanted[6].prefill = (struct skv_prefill){.how = SKV_PREFILL_HIP, .sinks = 64, .window = 128,
	                                         .keep = {128, 96, 8}};
	wanted[7].prefill = (struct skv_prefill){.how = SKV_PREFILL_MINFERENCE, .segment = 128, .vertical = 30,
	                                         .slash = 30};
}

START_TEST(plans_that_do_not_fit)
{
	const struct skv_policy p = {SKV_POLICY_HEADER, .name = "wanted", .version = "1", .summary = "x",
	                             .plan = as_wanted};
	struct skv_plan plans[16];

	good_plans();
	ck_assert_msg(skv_policy_plan(&p, NULL, &reference, plans, err, sizeof(err)) == 0, "%s", err);
#define NO_PLAN(change, says)                                                                               \
	do {                                                                                                \
		good_plans();                                                                               \
		change;                                                                                     \
		ck_assert_int_eq(skv_policy_plan(&p, NULL, &reference, plans, err, sizeof(err)), -EBADMSG); \
		ck_assert_text(err, says);                                                                  \
	} while (0)
	NO_PLAN(wanted[3].prefill.how = 5, "plan of layer 3: prefill: how is not one of");
	NO_PLAN(wanted[3].prefill.correct = SKV_CORRECT_DELTA, "plan of layer 3: prefill: correct is not one of");
	NO_PLAN(wanted[0].prefill.correct = 3, "plan of layer 0: prefill: correct is not one of");
	NO_PLAN(wanted[0].prefill.gamma = 1, "plan of layer 0: prefill: gamma is a power of two");
	NO_PLAN(wanted[0].prefill.gamma = 96, "plan of layer 0: prefill: gamma is a power of two");
	NO_PLAN(wanted[0].prefill.gamma = 8192, "plan of layer 0: prefill: gamma is a power of two");
	NO_PLAN(wanted[0].prefill.tail = 63, "plan of layer 0: prefill: tail is at least gamma");
	NO_PLAN(wanted[1].prefill.tail = 64, "plan of layer 1: prefill: gamma and tail are the same");
	NO_PLAN(wanted[4].prefill.gamma = 32, "plan of layer 4: prefill: gamma and tail are the same");
	NO_PLAN(wanted[5].prefill.window = 0, "plan of layer 5: prefill: a window of at least 1");
	NO_PLAN(wanted[5].prefill.sinks = UINT32_MAX, "plan of layer 5: prefill: sinks and window");
	NO_PLAN(wanted[6].prefill.sinks = 32, "plan of layer 6: prefill: hip has");
	NO_PLAN(wanted[6].prefill.window = 32, "plan of layer 6: prefill: hip has");
	NO_PLAN(wanted[6].prefill.keep[0] = 96, "plan of layer 6: prefill: hip has");
	NO_PLAN(wanted[6].prefill.keep[1] = 160, "plan of layer 6: prefill: hip has");
	NO_PLAN(wanted[6].prefill.keep[2] = 12, "plan of layer 6: prefill: hip has");
	NO_PLAN(wanted[6].prefill.keep[2] = 0, "plan of layer 6: prefill: hip has");
	NO_PLAN(wanted[7].prefill.segment = 64, "plan of layer 7: prefill: segments are");
	NO_PLAN(wanted[7].prefill.vertical = 29, "plan of layer 7: prefill: vertical and slash");
	NO_PLAN(wanted[7].prefill.slash = 29, "plan of layer 7: prefill: vertical and slash");
	NO_PLAN(wanted[0].prefill.top.count = 0, "plan of layer 0: prefill: top without a budget");
	NO_PLAN(wanted[0].prefill.source = 1, "plan of layer 0: prefill: source is");
	NO_PLAN(wanted[4].prefill.source = 3, "plan of layer 4: prefill: source is");
	NO_PLAN(wanted[4].prefill.source = 1, "plan of layer 4: prefill: source is");
	NO_PLAN((wanted[3].prefill = wanted[2].prefill, wanted[1].prefill.source = 1),
	        "plan of layer 2: prefill: source is not the last");
	NO_PLAN((wanted[4].prefill.mapped = 1), "plan of layer 4: prefill: a map of heads");
	NO_PLAN(wanted[2].prefill.map[1] = 2, "plan of layer 2: prefill: a map to a kv head");
#undef NO_PLAN
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-prefill-plan");
	TCase *t = add_case(s, "plans", 60, NULL, NULL, kascade_maps_heads, plans_that_do_not_fit, NULL);

	tcase_add_loop_test(t, every_policy_takes_all_methods, 0, POLICY_NAMES);
	tcase_add_loop_test(t, kascade_goes_by_anchors, 0, POLICY_NAMES);
	tcase_add_loop_test(t, parameters_that_make_no_sense, 0, POLICY_NAMES);
	return run_suite(s);
}
