/* SPDX-License-Identifier: Apache-2.0 */
/* Policy specs: accepted ones and their meaning, refused ones and the error texts, and printing. */
#include <check.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "common/spec.h"
#include "common/wire.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

struct config {
	struct skv_budget budget;
	uint32_t recent;
	float alpha;
	uint32_t pin;
	uint32_t unused; /* no parameter: stays zero */
	struct skv_layer_set layers;
	uint32_t variant;
};

static int check_hook(const void *config, const struct skv_model *m, char *err, size_t err_len)
{
	const struct config *c = config;

	if (c->recent != 13)
		return 0;
	if (c->pin)
		return -1;
	snprintf(err, err_len, "recent=13 of %u layers", m->n_layers);
	return -1;
}

static const struct skv_param params[] = {
        {"budget", SKV_PARAM_BUDGET, offsetof(struct config, budget), NULL, "units selected"},
        {"recent", SKV_PARAM_UINT, offsetof(struct config, recent), "8", "last units"},
        {"alpha", SKV_PARAM_FLOAT, offsetof(struct config, alpha), "1e-4", "threshold"},
        {"pin", SKV_PARAM_BOOL, offsetof(struct config, pin), "false", "keep the first page"},
        {"layers", SKV_PARAM_LAYERS, offsetof(struct config, layers), "2,7", "layers that select"},
        {"variant", SKV_PARAM_CHOICE, offsetof(struct config, variant), "paper,eval,no-last_2", "whose code"},
};
static const struct skv_policy policy = {
        SKV_POLICY_HEADER,
        .name = "test",
        .params = params,
        .n_params = sizeof(params) / sizeof(params[0]),
        .config_size = sizeof(struct config),
        .check = check_hook,
};
static const struct skv_policy plain = {SKV_POLICY_HEADER, .name = "plain"};
static const struct skv_model model = {.n_layers = 16};

static char err[512];

static struct config parse(const char *spec)
{
	struct config c;

	memset(&c, 0xee, sizeof(c));
	ck_assert_msg(skv_spec_parse(&policy, spec, &model, &c, err, sizeof(err)) == 0, "%s: %s", spec, err);
	return c;
}

static void refuse(const char *spec, const char *says)
{
	struct config c;

	snprintf(err, sizeof(err), "nothing");
	ck_assert_msg(skv_spec_parse(&policy, spec, &model, &c, err, sizeof(err)) == -EINVAL,
	              "%s is accepted", spec);
	ck_assert_msg(strstr(err, says), "%s: \"%s\", expected \"%s\"", spec, err, says);
	for (const char *p = err; *p; p++)
		ck_assert_msg(*p >= 0x20 && *p < 0x7f, "%s", err);
}

START_TEST(accepted)
{
	struct config c = parse("test?budget=0.25");

	ck_assert_float_eq(c.budget.share, 0.25f);
	ck_assert_uint_eq(c.budget.count, 0);
	ck_assert_uint_eq(c.recent, 8);
	ck_assert_float_eq(c.alpha, 1e-4f);
	ck_assert_uint_eq(c.pin, 0);
	ck_assert_uint_eq(c.unused, 0);
	ck_assert_uint_eq(c.layers.bits[0], 1u << 2 | 1u << 7);

	c = parse("test?layers=15,0&pin=true&alpha=-2.5&recent=4294967295&budget=4294967295");
	ck_assert_float_eq(c.budget.share, 0);
	ck_assert_uint_eq(c.budget.count, UINT32_MAX);
	ck_assert_uint_eq(c.recent, UINT32_MAX);
	ck_assert_float_eq(c.alpha, -2.5f);
	ck_assert_uint_eq(c.pin, 1);
	ck_assert_uint_eq(c.layers.bits[0], 1u << 15 | 1);

	c = parse("test?budget=1&layers=auto&alpha=.5");
	ck_assert_uint_eq(c.budget.count, 1);
	ck_assert_float_eq(c.alpha, 0.5f);
	ck_assert(skv_layer_set_empty(&c.layers));
	c = parse("test?budget=2.5e-1&alpha=3.E+2&recent=007");
	ck_assert_float_eq(c.budget.share, 0.25f);
	ck_assert_float_eq(c.alpha, 300);
	ck_assert_uint_eq(c.recent, 7);

	ck_assert_int_eq(skv_spec_parse(&plain, "plain", &model, &c, err, sizeof(err)), 0);
}
END_TEST

START_TEST(variants)
{
	char name[SKV_NAME_MAX];
	struct config c = parse("test?budget=1");

	ck_assert_uint_eq(c.variant, 0);
	ck_assert_uint_eq(parse("test?budget=1&variant=paper").variant, 0);
	ck_assert_uint_eq(parse("test?budget=1&variant=no-last_2").variant, 2);
	c = parse("test:eval?budget=2");
	ck_assert_uint_eq(c.variant, 1);
	ck_assert_uint_eq(c.budget.count, 2);

	refuse("test:eva?budget=1", "test: variant=eva: expected one of paper,eval,no-last_2");
	refuse("test:evals?budget=1", "variant=evals: expected one of");
	refuse("test:paper,eval?budget=1", "variant=paper,eval: expected one of");
	refuse("test:?budget=1", "variant=: expected one of");
	refuse("test::eval?budget=1", "variant=:eval: expected one of");
	refuse("test:eval&budget=1", "variant=eval&budget=1: expected one of");
	refuse("test:eval", "test: budget must be given");
	refuse("test:eval?variant=eval", "test: variant is given twice");
	refuse("test?variant=1", "variant=1: expected one of");
	refuse(":eval", "expected name, name:variant or name?key=value");
	ck_assert_int_eq(skv_spec_parse(&plain, "plain:eval", &model, &c, err, sizeof(err)), -EINVAL);
	ck_assert_str_eq(err, "plain: there is no variant \"eval\", it has none");

	ck_assert_int_eq(skv_spec_name("test:eval?x", name, err, sizeof(err)), 0);
	ck_assert_str_eq(name, "test");
}
END_TEST

START_TEST(lists_of_words)
{
	static const char *const bad[] = {"", ",", "a,", ",a", "a,,b", "a,b,a", "a b", "A", "a:b", "a?"};

	ck_assert(skv_spec_words("a"));
	ck_assert(skv_spec_words("a,ab,b,0-_"));
	ck_assert(skv_spec_words("a,a+b,+"));
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		ck_assert_msg(!skv_spec_words(bad[i]), "%s", bad[i]);
}
END_TEST

START_TEST(refused_budgets)
{
	static const char *const bad[] = {
	        "0",    "-1",   "1.5",  "1.0",  "0.0",  "-0.5", "",    " 1",   "1 ",
	        "0x10", "1e3",  "nan",  "inf",  "0.5x", "0,5",  "+1",  "1%",   ".",
	        "e",    "0.5e", "4294967296",   "1e-60",        "0.99999999999", "99999999999999999999999",
	};
	char spec[64];

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		snprintf(spec, sizeof(spec), "test?budget=%s", bad[i]);
		refuse(spec, "expected a share above 0 and below 1 such as 0.25, or a whole count from 1");
		ck_assert_ptr_nonnull(strstr(err, "test: budget="));
	}
}
END_TEST

START_TEST(refused_values)
{
	refuse("test?budget=1&recent=-1", "test: recent=-1: expected a whole number, 0 to 4294967295");
	refuse("test?budget=1&recent=4294967296", "recent=4294967296: expected a whole number");
	refuse("test?budget=1&recent=18446744073709551617", "expected a whole number");
	refuse("test?budget=1&recent=", "recent=: expected a whole number");
	refuse("test?budget=1&alpha=1e", "alpha=1e: expected a number such as");
	refuse("test?budget=1&alpha=1e99", "expected a number");
	refuse("test?budget=1&alpha=0x1p3", "expected a number");
	refuse("test?budget=1&alpha= 1", "expected a number");
	refuse("test?budget=1&alpha=1,5", "expected a number");
	refuse("test?budget=1&alpha=infinity", "expected a number");
	refuse("test?budget=1&pin=yes", "pin=yes: expected 0, 1, true or false");
	refuse("test?budget=1&pin=2", "expected 0, 1, true or false");
	refuse("test?budget=1&layers=", "layers=: expected layer numbers such as 2,7,12");
	refuse("test?budget=1&layers=2,", "expected layer numbers");
	refuse("test?budget=1&layers=,2", "expected layer numbers");
	refuse("test?budget=1&layers=2,2", "each once");
	refuse("test?budget=1&layers=256", "below 256");
	refuse("test?budget=1&layers=2-7", "expected layer numbers");
	refuse("test?budget=1&layers=2,16",
	       "test: layers names layer 16, but the model's layers are 0 to 15");
}
END_TEST

START_TEST(refused_specs)
{
	char spec[SKV_SPEC_MAX + 1] = "test?budget=1&recent=1";
	char name[SKV_NAME_MAX];

	refuse("test", "test: budget must be given (units selected)");
	refuse("test?recent=1", "test: budget must be given");
	refuse("test?bugdet=1", "unknown parameter \"bugdet\", known are budget, recent, alpha, pin, layers, variant");
	refuse("test?budget=1&=1", "unknown parameter \"\"");
	refuse("test?Budget=1", "unknown parameter \"Budget\"");
	refuse("test?budget=1&budget=1", "test: budget is given twice");
	refuse("test?", "test: \"\": expected key=value");
	refuse("test?budget=1&", "test: \"\": expected key=value");
	refuse("test?budget=1&&recent=1", "test: \"\": expected key=value");
	refuse("test?budget", "test: \"budget\": expected key=value");
	refuse("other?budget=1", "policy spec is for \"other\", expected \"test\"");
	refuse("", "expected name, name:variant or name?key=value");
	refuse("?budget=1", "expected name, name:variant or name?key=value");
	refuse("test=1", "expected name, name:variant or name?key=value");
	refuse("Test?budget=1", "expected name, name:variant or name?key=value");
	refuse("test?a\x1b[2J\n\xc3\xa4=1", "unknown parameter \"a?[2J???\"");
	refuse("test?budget=1&recent=13", "test: recent=13 of 16 layers");
	refuse("test?budget=1&recent=13&pin=1", "test: the parameters do not fit the model");
	memset(spec + strlen(spec), '1', SKV_SPEC_MAX - strlen(spec));
	refuse(spec, "policy spec: 512 characters, expected at most 511");
	memset(spec, 'n', SKV_NAME_MAX);
	spec[SKV_NAME_MAX] = '\0';
	refuse(spec, "at most 63 characters");

	ck_assert_int_eq(skv_spec_name(spec + 1, name, err, sizeof(err)), 0);
	ck_assert_str_eq(name, spec + 1);
	ck_assert_int_eq(skv_spec_name("test?x", name, err, sizeof(err)), 0);
	ck_assert_str_eq(name, "test");
	ck_assert_int_eq(skv_spec_parse(&plain, "plain?a=1", &model, NULL, err, sizeof(err)), -EINVAL);
	ck_assert_str_eq(err, "plain: unknown parameter \"a\", it has none");
}
END_TEST

/* Without a model nothing that depends on one is checked. */
START_TEST(without_a_model)
{
	struct config c;

	int r = skv_spec_parse(&policy, "test?budget=1&layers=255&recent=13", NULL, &c, err, sizeof(err));

	ck_assert_int_eq(r, 0);
	ck_assert_int_eq(skv_layer_in(&c.layers, 255), 1);
}
END_TEST

START_TEST(short_error_buffers)
{
	struct config c;

	for (size_t n = 0; n < 40; n++) {
		memset(err, 'x', sizeof(err));
		ck_assert_int_eq(skv_spec_parse(&policy, "test?bugdet=1", &model, &c, err, n), -EINVAL);
		ck_assert_int_eq(err[n], 'x');
		if (n)
			ck_assert_uint_lt(strlen(err), n);
	}
}
END_TEST

/* ---- there and back -------------------------------------------------------------------------- */

static float random_float(void)
{
	float x;

	do {
		uint32_t bits = (uint32_t)rnd64();

		memcpy(&x, &bits, sizeof(x));
	} while (!isfinite(x));
	return x;
}

static struct config random_config(void)
{
	struct config c;
	uint32_t kind = rnd_below(3);

	memset(&c, 0, sizeof(c)); /* compared by bytes */
	if (kind == 0)
		c.budget.count = 1 + (uint32_t)rnd64() % UINT32_MAX;
	else if (kind == 1)
		c.budget.share = (float)(1 + rnd_below((1u << 24) - 1)) * 0x1p-24f;
	else
		do
			c.budget.share = fabsf(random_float());
		while (!(c.budget.share > 0 && c.budget.share < 1));
	c.recent = (uint32_t)rnd64() >> rnd_below(32);
	c.alpha = rnd_below(2) ? random_float() : (float)rnd_unit();
	c.pin = rnd_below(2);
	c.variant = rnd_below(3);
	for (uint32_t n = rnd_below(12); n > 0; n--)
		c.layers.bits[0] |= (uint64_t)1 << rnd_below(16);
	if (c.recent == 13)
		c.recent = 0;
	return c;
}

static void round_trip(void)
{
	for (int i = 0; i < 4000; i++) {
		struct config c = random_config(), back;
		char spec[SKV_SPEC_MAX], again[SKV_SPEC_MAX];
		int n = skv_spec_print(&policy, &c, spec, sizeof(spec));

		ck_assert_int_lt(n, (int)sizeof(spec));
		ck_assert_int_eq(n, (int)strlen(spec));
		back = parse(spec);
		ck_assert_msg(!memcmp(&back, &c, sizeof(c)), "%s", spec);
		skv_spec_print(&policy, &back, again, sizeof(again));
		ck_assert_str_eq(again, spec);
	}
}

START_TEST(prints_what_it_parses)
{
	struct config c = parse("test?budget=0.1&recent=3");
	char spec[SKV_SPEC_MAX];

	skv_spec_print(&policy, &c, spec, sizeof(spec));
	ck_assert_str_eq(spec, "test?budget=0.1&recent=3&alpha=0.0001&pin=0&layers=2,7&variant=paper");
	c = parse("test:eval?budget=64&layers=auto&pin=true");
	skv_spec_print(&policy, &c, spec, sizeof(spec));
	ck_assert_str_eq(spec, "test?budget=64&recent=8&alpha=0.0001&pin=1&layers=auto&variant=eval");
	ck_assert_int_eq(skv_spec_print(&plain, NULL, spec, sizeof(spec)), 5);
	ck_assert_str_eq(spec, "plain");
	round_trip();
}
END_TEST

/* Like snprintf: truncates at the end of the buffer, and returns the length without truncation. */
START_TEST(prints_into_short_buffers)
{
	struct config c = parse("test?budget=0.1&layers=1,2,3,10,11,12");
	char whole[SKV_SPEC_MAX], cut[SKV_SPEC_MAX];
	int n = skv_spec_print(&policy, &c, whole, sizeof(whole));

	for (int room = 0; room <= n + 1; room++) {
		memset(cut, 'x', sizeof(cut));
		ck_assert_int_eq(skv_spec_print(&policy, &c, cut, (size_t)room), n);
		ck_assert_int_eq(cut[room], 'x');
		if (room) {
			ck_assert_uint_eq(strlen(cut), (size_t)(room - 1 < n ? room - 1 : n));
			ck_assert_mem_eq(cut, whole, strlen(cut));
		}
	}
}
END_TEST

/* A spec means the same in a locale with a decimal comma, and the program's locale is not changed. */
START_TEST(under_another_locale)
{
	static const char *const commas[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE.utf8", "de_DE",
	                                     "nl_NL.UTF-8"};
	char text[16];

	for (size_t i = 0; i < sizeof(commas) / sizeof(commas[0]); i++)
		if (setlocale(LC_ALL, commas[i]))
			break;
	snprintf(text, sizeof(text), "%.1f", 0.5);
	printf("under_another_locale: 0.5 is %s here\n", text);
	ck_assert_float_eq(parse("test?budget=0.5").budget.share, 0.5f);
	refuse("test?budget=0,5", "expected a share");
	round_trip();
	snprintf(text + 8, 8, "%.1f", 0.5);
	ck_assert_str_eq(text + 8, text);
}
END_TEST

/* Random specs: parsing always returns, and an error always has a text. */
START_TEST(random_specs)
{
	static const char *const parts[] = {"test",   "?",    "&", "=",    "budget", "recent", "alpha", "pin",
	                                    "layers", "0.25", "1", ",",    "2,7,9",  "e-3",    "-",     ".",
	                                    "auto",   "true", "x", "\x80", "%s",     " ",      ":",     "variant",
	                                    "eval"};
	struct config c;
	unsigned good = 0;

	for (int i = 0; i < 20000; i++) {
		char spec[256] = "";

		strcat(spec, rnd_below(8) ? rnd_below(2) ? "test?budget=1" : "test:eval?budget=1" : "");
		for (uint32_t n = rnd_below(12); n > 0; n--)
			strcat(spec, parts[rnd_below(sizeof(parts) / sizeof(parts[0]))]);
		if (skv_spec_parse(&policy, spec, &model, &c, err, sizeof(err)) == 0)
			good++;
		else
			refuse(spec, " ");
	}
	ck_assert_uint_gt(good, 0);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-spec");

	add_case(s, "spec", 60, NULL, NULL, accepted, variants, lists_of_words, refused_budgets,
	         refused_values, refused_specs, without_a_model, short_error_buffers, prints_what_it_parses,
	         prints_into_short_buffers, under_another_locale, random_specs, NULL);
	return run_suite(s);
}
