/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of policies for a model of which some layers have sliding windows. */
#include "tests/support/policies.h"
#include "tests/support/policy-file.h"
#include "tests/support/suite.h"

/* As in Gemma 2, every other layer has a sliding window, beginning with the first. */
static struct skv_model_layer windows[16];
static struct skv_model alternating;

static void make_alternating(void)
{
	alternating = reference;
	alternating.layers = windows;
	for (uint32_t layer = 0; layer < 16; layer++)
		windows[layer] = SKV_MODEL_LAYER(.window = layer % 2 ? 0 : 64);
}

START_TEST(every_policy_goes_with_windows)
{
	const struct skv_policy *p = policy_of(policy_names[_i]);

	make_alternating();
	ck_assert_msg(skv_policy_rehearse(p, NULL, &alternating, err, sizeof(err)) == 0, "%s", err);
}
END_TEST

/* Layers with a sliding window keep it; policies plan only the other layers. */
START_TEST(plans_among_windows)
{
	static const struct {
		const char *spec, *plans;
	} among[] = {
		{"full", "w d w d w d w d w d w d w d w d"},
		{POLICY_WINDOW, "w w w w w w w w w w w w w w w w"},
		{POLICY_BOUNDS ":shared", "w d w p3 w p5 w p7 w p9 w p11 w p13 w p15"},
		{POLICY_PAGES, "w d w s w p3 w s w p7 w s w p11 w p11"},
		{POLICY_TOKENS, "w d w s w d w s w d w s w d w t11"},
		{POLICY_ANCHORS ":shared", "w s w t3 w t3 w t7 w t9 w t11 w t11 w t11"},
		{POLICY_ANCHORS ":shared?prefill=kascade", "w s w t3 w t3 w t7 w t9 w t11 w t11 w t11"},
		{POLICY_Q_HEADS, "w d w sq w t3 w sq w t7 w t7 w t7 w t7"},
		{POLICY_UNION "?layers=5,9", "w d w d w sq w t5 w sq w t9 w t9 w t9"},
		{POLICY_SCORES, "w sk w sk w sk w sk w sk w sk w sk w sk"},
		{POLICY_PYRAMID, "w sk w sk w sk w sk w sk w sk w sk w sk"},
		{POLICY_QUANTIZES, "w dz w dz w dz w dz w dz w dz w dz w dz"},
		{POLICY_LATENT, "w d w s w t3z w s w t7z w s w t11z w t11z"},
		{"template?dense=1", "w s w t1 w t1 w t1 w t1 w t1 w t1 w t1"},
	};
	static struct skv_plan all[SKV_MAX_LAYERS];

	make_alternating();
	for (size_t i = 0; i < sizeof(among) / sizeof(*among); i++)
		ck_assert_msg(!strcmp(plans_of(among[i].spec, &alternating), among[i].plans), "%s: %s, expected %s", among[i].spec,
		              plans_of(among[i].spec, &alternating), among[i].plans);
	policy_plans("full?prefill=kascade", &alternating, all);
	for (uint32_t layer = 0; layer < 16; layer++)
		ck_assert_uint_eq(all[layer].prefill.how, layer % 2 ? SKV_PREFILL_KASCADE : SKV_PREFILL_DENSE);
	ck_assert_int_eq(skv_policy_rehearse(policy_of(POLICY_Q_HEADS), POLICY_Q_HEADS "?layers=3,8", &alternating, err,
	                                     sizeof(err)), -EINVAL);
	ck_assert_ptr_nonnull(strstr(err, "layers names layer 8, which has a sliding window of 64 tokens"));
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-plan-windows");
	TCase *t = add_case(s, "windows", 60, NULL, NULL, plans_among_windows, NULL);

	tcase_add_loop_test(t, every_policy_goes_with_windows, 0, POLICY_NAMES);
	return run_suite(s);
}
