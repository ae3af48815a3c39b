/* SPDX-License-Identifier: Apache-2.0 */
/* Tests head maps in NumPy's format, as Kascade's authors publish them: reading, profiles and refusals. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/spec.h"
#include "engine/import.h"
#include "tests/support/folder.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

enum { LAYERS = 6, KV = 3 };

static const struct eng_config config = {.n_layers = LAYERS, .n_heads = 9, .n_kv_heads = KV, .head_dim = 64};
static const char good[] = "{'descr': '<i4', 'fortran_order': False, 'shape': (6, 3), }";
static char *folder;
static int map[LAYERS][KV];

static void setup(void)
{
	folder = fx_folder();
	for (int l = 0; l < LAYERS; l++)
		for (int h = 0; h < KV; h++)
			map[l][h] = (int)rnd_below(KV);
}

static void teardown(void)
{
	fx_remove(folder);
}

/* Writes a file with this header, and the map in elements of `element` bytes, without the last `cut` bytes. */
static const char *write_npy(const char *name, int version, const char *header, int element, int cut)
{
	static char path[300];
	unsigned char bytes[512] = "\x93NUMPY";
	size_t at = version == 1 ? 10 : 12, len = strlen(header);
	FILE *f;

	bytes[6] = (unsigned char)version;
	bytes[8] = (unsigned char)len;
	memcpy(bytes + at, header, len);
	at += len;
	for (int i = 0; i < LAYERS * KV; i++, at += (size_t)element)
		memcpy(bytes + at, &(int64_t){map[i / KV][i % KV]}, (size_t)element); /* only on little-endian hosts */
	snprintf(path, sizeof(path), "%s/%s", folder, name);
	f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	ck_assert_uint_eq(fwrite(bytes, 1, at - (size_t)cut, f), at - (size_t)cut);
	fclose(f);
	return path;
}

START_TEST(reads)
{
	static struct eng_import got;
	const char *name = _i ? "A_layers_0_2_4.npy" : "Model-8B_layers_0_2_4.npy";
	const char *path = _i ? write_npy(name, 2, "{'descr': '<i8', 'fortran_order': False, 'shape': (6, 3), }", 8, 0)
	                      : write_npy(name, 1, good, 4, 0);
	const struct skv_model m = {.n_layers = LAYERS, .n_heads = 9, .n_kv_heads = KV, .head_dim = 64, .n_ranks = 1};
	static struct skv_profile profile;
	struct eng_error err;
	char text[256] = "", *json;
	FILE *f;

	ck_assert_msg(!eng_import_read(&got, path, &config, &err), "%s", err.text);
	ck_assert_str_eq(got.source, name);
	ck_assert(got.n_anchors == 3 && got.anchors[0] == 0 && got.anchors[1] == 2 && got.anchors[2] == 4);
	snprintf(profile.path, sizeof(profile.path), "%s/profile.json", folder);
	f = fopen(profile.path, "w");
	json = eng_import_json(&got, &config, "model");
	fputs(json, f);
	fclose(f);
	free(json);
	ck_assert_msg(!skv_profile_read(&profile, &m, text, sizeof(text)), "%s", text);
	ck_assert_uint_eq(profile.anchors.bits[0], 1 << 0 | 1 << 2 | 1 << 4);
	ck_assert(skv_layer_set_empty(&profile.delta) && skv_layer_set_empty(&profile.filters));
	for (int l = 0; l < LAYERS; l++)
		for (int h = 0; h < KV; h++)
			ck_assert_uint_eq(profile.map[l][h], map[l][h]);
}
END_TEST

static const struct {
	const char *name, *header;
	int version, element, cut;
	const char *says;
} refusals[] = {
	{"M.npy", good, 1, 4, 0, "a name that says which layers are anchors"},
	{"M_layers_0_2.txt", good, 1, 4, 0, "a name that says which layers are anchors"},
	{"M_layers_.npy", good, 1, 4, 0, "ascending layers below the model's 6"},
	{"M_layers_0_6.npy", good, 1, 4, 0, "ascending layers below the model's 6"},
	{"M_layers_2_2.npy", good, 1, 4, 0, "ascending layers below the model's 6"},
	{"M_layers_0.npy", good, 9, 4, 0, "NumPy's format"},
	{"M_layers_0.npy", good, 1, 4, 1, "71 bytes of elements, expected 6 times 3 of 4"},
	{"M_layers_0.npy", good, 1, 4, 80, "a whole header"},
	{"M_layers_0.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (6, 3), }", 1, 4, 0, "<i4 or <i8"},
	{"M_layers_0.npy", "{'descr': '<i4', 'fortran_order': True, 'shape': (6, 3), }", 1, 4, 0, "fortran_order False"},
	{"M_layers_0.npy", "{'descr': '<i4', 'fortran_order': False, 'shape': (18,), }", 1, 4, 0, "two dimensions"},
	{"M_layers_0.npy", "{'descr': '<i4', 'fortran_order': False, 'shape': (9, 2), }", 1, 4, 0,
         "of a model of 9 layers and 2 kv heads, expected 6 and 3"},
};

START_TEST(refuses)
{
	struct eng_import *got = calloc(1, sizeof(*got));
	struct eng_error err;

	ck_assert_int_lt(eng_import_read(got, write_npy(refusals[_i].name, refusals[_i].version, refusals[_i].header,
	                                                refusals[_i].element, refusals[_i].cut), &config, &err), 0);
	ck_assert_msg(strstr(err.text, refusals[_i].says), "says: %s\n expected: %s", err.text, refusals[_i].says);
	ck_assert_uint_eq(got->n_anchors, 0);
	free(got);
}
END_TEST

START_TEST(refuses_heads)
{
	static const int heads[] = {KV, -1, 256};
	struct eng_import *got = calloc(1, sizeof(*got));
	struct eng_error err;

	map[4][1] = heads[_i];
	ck_assert_int_lt(eng_import_read(got, write_npy("M_layers_0.npy", 1, good, 4, 0), &config, &err), 0);
	ck_assert_msg(strstr(err.text, "layer 4, kv head 1: a kv head below 3 expected"), "%s", err.text);
	free(got);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-import");
	TCase *t = add_case(s, "import", 60, setup, teardown, NULL);

	tcase_add_loop_test(t, reads, 0, 2);
	tcase_add_loop_test(t, refuses, 0, sizeof(refusals) / sizeof(refusals[0]));
	tcase_add_loop_test(t, refuses_heads, 0, 3);
	return run_suite(s);
}
