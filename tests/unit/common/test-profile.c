/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles in specs: what is read, and files that are wrong or hostile. */
#include <check.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/spec.h"
#include "tests/support/folder.h"
#include "tests/support/suite.h"

struct config {
	struct skv_layer_set layers;
	struct skv_profile profile;
};

static const struct skv_param params[] = {
        {"layers", SKV_PARAM_LAYERS, offsetof(struct config, layers), "auto", "layers that select"},
        {"profile", SKV_PARAM_PROFILE, offsetof(struct config, profile), "none", "of the model"},
};
static const struct skv_policy policy = {
        SKV_POLICY_HEADER,
        .name = "test",
        .params = params,
        .n_params = 2,
        .config_size = sizeof(struct config),
};
static const struct skv_model model = {.n_layers = 4, .n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .n_ranks = 1};

#define MODEL "\"model\": {\"name\": \"m\", \"layers\": 4, \"heads\": 4, \"kv_heads\": 2, \"head_dim\": 16}"
#define WITH(chosen) "{\"sparsekv_profile\": 1, " MODEL ", \"chosen\": " chosen "}"
#define GOOD WITH("{\"delta\": [1, 3], \"anchors\": [0, 2], \"head_map\": [[0, 1], [1, 1], [0, 1], [1, 0]]}")

static char *folder, path[192], err[512];
static struct config config;

static void setup(void)
{
	folder = fx_folder();
	snprintf(path, sizeof(path), "%s/profile.json", folder);
}

static void teardown(void)
{
	fx_remove(folder);
}

static int parse(const struct skv_model *m)
{
	char spec[224];

	snprintf(spec, sizeof(spec), "test?profile=%s", path);
	snprintf(err, sizeof(err), "nothing");
	return skv_spec_parse(&policy, spec, m, &config, err, sizeof(err));
}

static void refused(const char *says)
{
	ck_assert_msg(parse(&model) < 0, "accepted, where \"%s\" was expected", says);
	ck_assert_msg(strstr(err, says), "\"%s\", expected \"%s\"", err, says);
	for (const char *p = err; *p; p++)
		ck_assert_msg(*p >= 0x20 && *p < 0x7f, "%s", err);
}

START_TEST(what_is_read)
{
	char printed[512];
	struct config again;

	fx_write(path, GOOD, strlen(GOOD));
	ck_assert_msg(parse(&model) == 0, "%s", err);
	ck_assert_str_eq(config.profile.path, path);
	ck_assert_uint_eq(config.profile.delta.bits[0], 1 << 1 | 1 << 3);
	ck_assert_uint_eq(config.profile.anchors.bits[0], 1 << 0 | 1 << 2);
	ck_assert(skv_layer_set_empty(&config.profile.filters));
	ck_assert_uint_eq(config.profile.map[0][1], 1);
	ck_assert_uint_eq(config.profile.map[1][0], 1);
	ck_assert_uint_eq(config.profile.map[3][1], 0);

	ck_assert_int_gt(skv_spec_print(&policy, &config, printed, sizeof(printed)), 0);
	ck_assert_int_eq(skv_spec_parse(&policy, printed, &model, &again, err, sizeof(err)), 0);
	ck_assert_int_eq(memcmp(&config, &again, sizeof(config)), 0);
}
END_TEST

/* A rank gets its own heads' part of the head map, if this stays among the rank's heads. */
START_TEST(ranks)
{
	static const struct {
		const char *text;
		uint32_t crosses;
	} files[] = {
	        {WITH("{\"anchors\": [1, 2], \"head_map\": [[0, 0], [0, 1], [0, 1], [0, 1]]}"), 0},
	        {WITH("{\"anchors\": [0, 2], \"head_map\": [[0, 1], [0, 1], [0, 1], [1, 1]]}"), 4},
	        {WITH("{\"anchors\": [0, 2], \"head_map\": [[0, 1], [0, 0], [0, 1], [0, 1]]}"), 2},
	};
	struct skv_model m = model;

	m.n_heads /= 2;
	m.n_kv_heads /= 2;
	m.n_ranks = 2;
	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++)
		for (m.rank = 0; m.rank < 2; m.rank++) {
			fx_write(path, files[i].text, strlen(files[i].text));
			ck_assert_msg(parse(&m) == 0, "%s", err);
			ck_assert_uint_eq(config.profile.crosses, files[i].crosses);
			for (uint32_t layer = 0; layer < m.n_layers && !files[i].crosses; layer++)
				ck_assert_uint_eq(config.profile.map[layer][0], 0);
		}
	m.n_kv_heads = 2;
	ck_assert_int_lt(parse(&m), 0);
	ck_assert_ptr_nonnull(strstr(err, "model.kv_heads is 2, expected 4"));
}
END_TEST

/* Without a model no file is opened; without a profile the path is empty. */
START_TEST(what_is_not_read)
{
	ck_assert_int_eq(parse(NULL), 0);
	ck_assert_int_eq(skv_spec_parse(&policy, "test", &model, &config, err, sizeof(err)), 0);
	ck_assert_int_eq(config.profile.path[0], 0);
	ck_assert_int_eq(skv_spec_parse(&policy, "test?profile=p.json", &model, &config, err, sizeof(err)), -EINVAL);
	ck_assert_ptr_nonnull(strstr(err, "the absolute path"));
	refused("No such file");
}
END_TEST

START_TEST(files_that_are_none)
{
	char other[128];

	ck_assert_int_eq(mkfifo(path, 0600), 0);
	refused("a regular file expected"); /* without waiting for a writer */
	unlink(path);
	ck_assert_int_eq(mkdir(path, 0700), 0);
	refused("a regular file expected");
	rmdir(path);
	fx_write(path, GOOD, strlen(GOOD));
	snprintf(other, sizeof(other), "%s/other", folder);
	ck_assert_int_eq(rename(path, other), 0);
	ck_assert_int_eq(symlink(other, path), 0);
	refused("a symbolic link");
	unlink(other);
	unlink(path);
	fx_write(path, "", 0);
	ck_assert_int_eq(truncate(path, (off_t)SKV_PROFILE_MAX + 1), 0);
	refused("expected at most 4194304");
	ck_assert_int_eq(truncate(path, SKV_PROFILE_MAX), 0);
	refused("line 1");
}
END_TEST

/* A file that is truncated anywhere is refused, and nothing worse happens. */
START_TEST(cut_off)
{
	for (size_t n = 0; n < strlen(GOOD); n++) {
		fx_write(path, GOOD, n);
		refused("line 1");
	}
}
END_TEST

static const struct {
	const char *text, *says;
} wrong[] = {
	{"[]", "sparsekv_profile: 1 expected"},
	{"{\"sparsekv_profile\": 2}", "sparsekv_profile: 1 expected"},
	{"{\"sparsekv_profile\": 1, " MODEL "}", "chosen: an object"},
	{"{\"sparsekv_profile\": 1, \"chosen\": {}}", "model.layers: a whole number"},
	{"{\"sparsekv_profile\": 1, \"chosen\": {}, \"model\": {\"layers\": 5}}",
         "of another model: model.layers is 5, expected 4"},
	{"{\"sparsekv_profile\": 1, \"chosen\": {}, \"model\": {\"layers\": 4, \"heads\": 4.0}}", "model.heads"},
	{WITH("{\"delta\": [1, 4]}"), "chosen.delta[1]: a layer from 2 to 3"},
	{WITH("{\"delta\": [1, 1]}"), "chosen.delta[1]"},
	{WITH("{\"delta\": [-1]}"), "chosen.delta[0]"},
	{WITH("{\"delta\": [4294967297]}"), "chosen.delta[0]"},
	{WITH("{\"delta\": [1.5]}"), "chosen.delta[0]"},
	{WITH("{\"delta\": [NaN]}"), "line 1"},
	{WITH("{\"delta\": [1e999]}"), "line 1"},
	{WITH("{\"delta\": \"2\"}"), "chosen.delta: a list"},
	{WITH("{\"filters\": {\"0\": 1}}"), "chosen.filters: a list"},
	{WITH("{\"anchors\": [0]}"), "chosen.head_map: 4 lists"},
	{WITH("{\"anchors\": [0], \"head_map\": [[0, 1], [0, 1], [0, 1]]}"), "chosen.head_map: 4 lists"},
	{WITH("{\"anchors\": [0], \"head_map\": [[0, 1], [0, 1], [0, 1], [0]]}"), "head_map[3]: 2 kv heads"},
	{WITH("{\"anchors\": [0], \"head_map\": [[0, 1], [0, 2], [0, 1], [0, 1]]}"), "head_map[1][1]: a kv head"},
	{WITH("{\"delta\": [1], \"delta\": [2]}"), "line 1"},
	{WITH("{}") "x", "line 1"},
};

START_TEST(wrong_fields)
{
	fx_write(path, wrong[_i].text, strlen(wrong[_i].text));
	refused(wrong[_i].says);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-profile");
	TCase *t = add_case(s, "profile", 60, setup, teardown, what_is_read, what_is_not_read,
	                    files_that_are_none, ranks, cut_off, NULL);

	tcase_add_loop_test(t, wrong_fields, 0, sizeof(wrong) / sizeof(*wrong));
	return run_suite(s);
}
