/* SPDX-License-Identifier: Apache-2.0 */
/* Tests weights in several files, and bad indexes. The files are those of a golden model with four shards. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "formats/checkpoint.h"
#include "tests/support/folder.h"
#include "tests/support/run-program.h"
#include "tests/support/suite.h"

#define INDEX "model.safetensors.index.json"
#define SHARD(n) "model-0000" #n "-of-00004.safetensors"
#define NORM "model.norm.weight"

static char *folder, err[512];
#define ERR err, sizeof(err)

static void copy(const char *name, const char *to)
{
	char from[128];
	size_t n;
	char *bytes;

	snprintf(from, sizeof(from), "tests/unit/engine/golden/qwen2/%s", name);
	bytes = fx_read(run_source(from), &n);
	fx_write(fx_path(folder, to), bytes, n);
	free(bytes);
}

static void setup(void)
{
	folder = fx_folder();
	copy(INDEX, INDEX);
	copy(SHARD(1), SHARD(1));
	copy(SHARD(2), SHARD(2));
	copy(SHARD(3), SHARD(3));
	copy(SHARD(4), SHARD(4));
}

static void teardown(void)
{
	fx_remove(folder);
}

/* Replaces the first `from` in the index by `to`. */
static void edit_index(const char *from, const char *to)
{
	size_t n;
	char *text = fx_read(fx_path(folder, INDEX), &n), *at = strstr(text, from), *edited;

	ck_assert_ptr_nonnull(at);
	ck_assert_int_gt(asprintf(&edited, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)), 0);
	fx_text(fx_path(folder, INDEX), edited);
	free(edited);
	free(text);
}

/* Opening must fail with this code and a text that contains `says`. */
static void refused(int code, const char *says)
{
	struct skv_checkpoint c;

	ck_assert_int_eq(skv_checkpoint_open(&c, folder, ERR), code);
	ck_assert_msg(strstr(err, says), "says: %s\n expected: %s", err, says);
}

START_TEST(tensors_are_where_the_index_says)
{
	const struct skv_tensor *t;
	struct skv_checkpoint c;
	float norm[16];

	ck_assert_msg(!skv_checkpoint_open(&c, folder, ERR), "%s", err);
	ck_assert_uint_eq(c.n_files, 4);
	ck_assert_int_eq(skv_checkpoint_get(&c, NORM, 16, 0, &t, ERR), 0);
	skv_tensor_floats(t, 5, 3, norm + 5);
	skv_tensor_floats(t, 0, 5, norm);
	for (int i = 0; i < 8; i++)
		ck_assert(norm[i] > -1 && norm[i] < 3 && norm[i] != 0);
	ck_assert_int_eq(skv_checkpoint_get(&c, NORM, 17, 0, &t, ERR), -EBADMSG);
	ck_assert_ptr_nonnull(strstr(err, "model.norm.weight is 16, 17 expected"));
	ck_assert_int_eq(skv_checkpoint_get(&c, "x", 1, 0, &t, ERR), -ENOENT);
	ck_assert_ptr_nonnull(strstr(err, INDEX ": tensor x is missing"));
	skv_checkpoint_deinit(&c);
}
END_TEST

START_TEST(one_file_comes_first)
{
	struct skv_checkpoint c;

	copy(SHARD(1), "model.safetensors");
	edit_index("{", "no JSON");
	ck_assert_msg(!skv_checkpoint_open(&c, folder, ERR), "%s", err);
	ck_assert_uint_eq(c.n_files, 1);
	skv_checkpoint_deinit(&c);
}
END_TEST

START_TEST(shards_must_be_there)
{
	unlink(fx_path(folder, SHARD(3)));
	refused(-ENOENT, SHARD(3));
	fx_text(fx_path(folder, SHARD(3)), "short");
	refused(-EBADMSG, "not a safetensors file");
}
END_TEST

START_TEST(tensors_must_be_in_their_shards)
{
	edit_index(NORM "\": \"" SHARD(3), NORM "\": \"" SHARD(1));
	refused(-EBADMSG, SHARD(1) ": tensor " NORM " is not in it, where " INDEX " has it");
}
END_TEST

START_TEST(nothing_outside_the_folder)
{
	static const char *const names[] = {"../x.safetensors", "/etc/passwd", "..", ".", "", ".hidden", "sub/x"};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		char to[64], says[128];

		copy(INDEX, INDEX);
		snprintf(to, sizeof(to), NORM "\": \"%s", names[i]);
		snprintf(says, sizeof(says), "tensor " NORM " is in \"%s\", the name of a file beside it", names[i]);
		edit_index(NORM "\": \"" SHARD(3), to);
		refused(-EBADMSG, says);
	}
	copy(INDEX, INDEX);
	edit_index("\"" SHARD(4) "\"", "7");
	refused(-EBADMSG, "the name of a file beside it expected");
}
END_TEST

START_TEST(the_index_must_be_one)
{
	static const char *const texts[] = {"[]", "{}", "{\"weight_map\":[]}", "{\"weight_map\":{}}", "{\"weight_map\":3}"};

	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
		fx_text(fx_path(folder, INDEX), texts[i]);
		refused(-EBADMSG, "no object \"weight_map\"");
	}
	fx_text(fx_path(folder, INDEX), "{\"weight_map\":{\"a\":\"b\",\"a\":\"c\"}}");
	refused(-EBADMSG, "duplicate");
	unlink(fx_path(folder, INDEX));
	refused(-ENOENT, "model.safetensors: No such file");
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-checkpoint");

	add_case(s, "checkpoints", 30, setup, teardown, tensors_are_where_the_index_says, one_file_comes_first,
	         shards_must_be_there, tensors_must_be_in_their_shards,
	         nothing_outside_the_folder, the_index_must_be_one, NULL);
	return run_suite(s);
}
