/* SPDX-License-Identifier: Apache-2.0 */
/* Files of codecs: what is read of them, and files that are cut off, of another shape, or not finite. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libclient/compress/codec.h"
#include "tests/support/codec-file.h"
#include "tests/support/folder.h"
#include "tests/support/suite.h"

#define D 64u
#define WIDTH 32u
#define HIDDEN 64u
#define WIDE 128u
#define LAYERS 4u
#define HEAD 16u
#define ABOUT "{\"sparsekv_codec\":\"1\",\"stride\":\"10\",\"near\":\"4\"}"

static char *folder, path[192], err[512];
static struct skv_layer_set packs; /* 1 and 3 */
enum part { GATE, UP, DOWN, OPEN, OUT, NORM, PARTS };
static const char *const names[PARTS] = {"gate", "up", "down", "open", "out", "k_norm"};
static float numbers[LAYERS][PARTS][WIDE * D];

static void setup(void)
{
	folder = fx_folder();
	snprintf(path, sizeof(path), "%s/deltakv.safetensors", folder);
	packs = (struct skv_layer_set){.bits = {1u << 1 | 1u << 3}};
	for (size_t i = 0; i < sizeof(numbers) / sizeof(float); i++)
		((float *)numbers)[i] = (float)(int64_t)(rnd64() % 2001) / 1000.f - 1.f;
}

static void teardown(void)
{
	fx_remove(folder);
}

/* Layers 1 and 3, with or without hidden layers in E and Dec. */
static struct codec_file file_of(bool hidden, bool wide)
{
	struct codec_file f = {.about = ABOUT};

	for (uint32_t layer = 1; layer < LAYERS; layer += 2) {
		if (hidden) {
			codec_file_add(&f, layer, "gate", HIDDEN, D, numbers[layer][GATE]);
			codec_file_add(&f, layer, "up", HIDDEN, D, numbers[layer][UP]);
		}
		codec_file_add(&f, layer, "down", WIDTH, hidden ? HIDDEN : D, numbers[layer][DOWN]);
		if (wide)
			codec_file_add(&f, layer, "open", WIDE, WIDTH, numbers[layer][OPEN]);
		codec_file_add(&f, layer, "out", D, wide ? WIDE : WIDTH, numbers[layer][OUT]);
	}
	return f;
}

/* A file with everything that is possible. */
static struct codec_file file_of_all(void)
{
	struct codec_file f = file_of(true, true);

	for (uint32_t layer = 1; layer < LAYERS; layer += 2)
		codec_file_add(&f, layer, "k_norm", HEAD, 0, numbers[layer][NORM]);
	return f;
}

static struct codec *read_file(void)
{
	struct codec *c = NULL;
	int e = codec_read(path, D, HEAD, LAYERS, &packs, &c, err, sizeof(err));

	ck_assert_msg(e == 0, "%s", err);
	return c;
}

/* Refused with this errno and a text that names the file and contains `says`. */
static void refused(int error, const char *says)
{
	struct codec *c = (struct codec *)&c;

	err[0] = '\0';
	ck_assert_int_eq(codec_read(path, D, HEAD, LAYERS, &packs, &c, err, sizeof(err)), error);
	ck_assert_msg(strstr(err, says) && strstr(err, path), "\"%s\", expected %s and %s", err, says, path);
	ck_assert_ptr_eq(c, (struct codec *)&c);
}

/* ---- read ------------------------------------------------------------------------------------ */

START_TEST(what_is_read)
{
	bool hidden = _i & 1, wide = _i & 2, norm = _i & 4;
	struct codec_file f = file_of(hidden, wide);
	struct codec *c;

	if (norm) /* in one layer only */
		codec_file_add(&f, 3, "k_norm", HEAD, 0, numbers[3][NORM]);
	codec_file_write(&f, path);
	c = read_file();
	ck_assert_uint_eq(c->d, D);
	ck_assert_uint_eq(c->width, WIDTH);
	ck_assert_uint_eq(c->hidden, hidden ? HIDDEN : 0);
	ck_assert_uint_eq(c->wide, wide ? WIDE : 0);
	ck_assert_uint_eq(c->stride, 10);
	ck_assert_uint_eq(c->near, 4);
	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		const struct codec_layer *x = &c->layer[layer];

		if (layer % 2 == 0) {
			ck_assert(!x->in && !x->down && !x->open && !x->out && !x->k_norm);
			continue;
		}
		for (uint32_t i = 0; hidden && i < HIDDEN; i++) {
			ck_assert_mem_eq(x->in + (2 * i) * D, numbers[layer][GATE] + i * D, D * sizeof(float));
			ck_assert_mem_eq(x->in + (2 * i + 1) * D, numbers[layer][UP] + i * D, D * sizeof(float));
		}
		ck_assert_mem_eq(x->down, numbers[layer][DOWN], WIDTH * (hidden ? HIDDEN : D) * sizeof(float));
		ck_assert_mem_eq(x->out, numbers[layer][OUT], D * (wide ? WIDE : WIDTH) * sizeof(float));
		ck_assert(!x->in == !hidden && !x->open == !wide);
		if (wide)
			ck_assert_mem_eq(x->open, numbers[layer][OPEN], WIDE * WIDTH * sizeof(float));
		ck_assert(!x->k_norm == !(norm && layer == 3));
		if (x->k_norm)
			ck_assert_mem_eq(x->k_norm, numbers[layer][NORM], HEAD * sizeof(float));
	}
	codec_free(c);
}
END_TEST

/* Any changed bit changes the fingerprint; equal files have the same. */
START_TEST(fingerprints)
{
	struct codec_file f = file_of(true, false);
	struct codec *a, *b, *c;

	codec_file_write(&f, path);
	a = read_file();
	b = read_file();
	numbers[3][OUT][D * WIDTH - 1] += 0.5f;
	codec_file_write(&f, path);
	c = read_file();
	ck_assert_uint_eq(a->fingerprint, b->fingerprint);
	ck_assert_uint_ne(a->fingerprint, c->fingerprint);
	ck_assert_uint_ne(a->fingerprint, 0);
	codec_free(a);
	codec_free(b);
	codec_free(c);
}
END_TEST

/* What was read stays valid when the file is cut. */
START_TEST(cut_later)
{
	struct codec_file f = file_of(true, true);
	struct codec *c;

	codec_file_write(&f, path);
	c = read_file();
	ck_assert_int_eq(truncate(path, 0), 0);
	ck_assert_float_eq(c->layer[3].out[D * WIDE - 1], numbers[3][OUT][D * WIDE - 1]);
	codec_free(c);
}
END_TEST

/* ---- refused --------------------------------------------------------------------------------- */

START_TEST(cut_off)
{
	struct codec_file f = file_of_all();
	size_t n;
	uint8_t *bytes = codec_file_bytes(&f, &n);

	for (size_t i = 0; i < n; i += i < 2048 ? 1 : 977) {
		fx_write(path, bytes, i);
		refused(-EBADMSG, "");
	}
	fx_write(path, bytes, n - 1);
	refused(-EBADMSG, "");
	free(bytes);
}
END_TEST

START_TEST(other_shapes)
{
	for (unsigned i = 0; i < file_of_all().n; i++)
		for (int side = 0; side < 2; side++)
			for (int by = -1; by <= 1; by += 2) {
				struct codec_file f = file_of_all();

				if (side && f.tensor[i].cols == 0)
					continue;
				*(side ? &f.tensor[i].cols : &f.tensor[i].rows) += (uint32_t)by;
				codec_file_write(&f, path);
				refused(-EBADMSG, "layers.");
			}
}
END_TEST

START_TEST(missing)
{
	for (unsigned i = 0; i < file_of(true, true).n; i++) {
		struct codec_file f = file_of(true, true);

		f.tensor[i] = f.tensor[--f.n];
		codec_file_write(&f, path);
		refused(-EBADMSG, "layers.");
	}
}
END_TEST

/* One layer with hidden layers, the other one without. */
START_TEST(mixed)
{
	for (int i = 0; i < 4; i++) {
		struct codec_file f = file_of(i & 1, i & 2), other = file_of(!(i & 1), i & 2);

		f.n = 0;
		for (unsigned t = 0; t < 2; t++) {
			const struct codec_file from = t ? other : file_of(i & 1, i & 2);

			for (unsigned j = t ? from.n / 2 : 0; j < (t ? from.n : from.n / 2); j++)
				f.tensor[f.n++] = from.tensor[j];
		}
		codec_file_write(&f, path);
		refused(-EBADMSG, "layers.3");
	}
}
END_TEST

START_TEST(no_numbers)
{
	static const float none[] = {NAN, INFINITY, -INFINITY};

	for (uint32_t layer = 1; layer < LAYERS; layer += 2)
		for (int part = 0; part < PARTS; part++)
			for (int k = 0; k < 3; k++) {
				struct codec_file f = file_of_all();
				uint32_t at = (uint32_t)(rnd64() % (part == NORM ? HEAD : f.tensor[part].rows * f.tensor[part].cols));
				float was = numbers[layer][part][at];
				char says[64];

				numbers[layer][part][at] = none[k];
				codec_file_write(&f, path);
				snprintf(says, sizeof(says), "layers.%u.%s: number ", layer, names[part]);
				refused(-EBADMSG, says);
				numbers[layer][part][at] = was;
			}
}
END_TEST

static const struct {
	const char *about, *says;
} abouts[] = {
	{"{}", "sparsekv_codec"},
	{"{\"sparsekv_codec\":\"2\",\"stride\":\"10\",\"near\":\"4\"}", "sparsekv_codec"},
	{"{\"sparsekv_codec\":1,\"stride\":\"10\",\"near\":\"4\"}", "sparsekv_codec"},
	{"{\"sparsekv_codec\":\"1\",\"near\":\"4\"}", "stride"},
	{"{\"sparsekv_codec\":\"1\",\"stride\":\"256\",\"near\":\"4\"}", "stride"},
	{"{\"sparsekv_codec\":\"1\",\"stride\":\"10\",\"near\":\"5\"}", "near"},
	{"{\"sparsekv_codec\":\"1\",\"stride\":\"10\",\"near\":\"-1\"}", "near"},
	{"{\"sparsekv_codec\":\"1\",\"stride\":\"10\",\"near\":\"4x\"}", "near"},
	{"[]", ""},
};

START_TEST(wrong_abouts)
{
	struct codec_file f = file_of(true, false);

	f.about = abouts[_i].about;
	codec_file_write(&f, path);
	refused(-EBADMSG, abouts[_i].says);
}
END_TEST

START_TEST(files_that_are_none)
{
	refused(-ENOENT, "No such file");
	ck_assert_int_eq(mkfifo(path, 0600), 0);
	refused(-EBADMSG, "");
	ck_assert_int_eq(unlink(path), 0);
	ck_assert_int_eq(mkdir(path, 0700), 0);
	refused(-EBADMSG, "");
	ck_assert_int_eq(rmdir(path), 0);
	fx_write(path, (const uint8_t *)"", 0);
	refused(-EBADMSG, "");
	ck_assert_int_eq(truncate(path, (off_t)CODEC_BYTES_MAX + 1), 0); /* sparse */
	refused(-EFBIG, "expected at most");
}
END_TEST

/* Random bytes in the header: the file is refused or read, without a crash. */
START_TEST(scribbled)
{
	struct codec_file f = file_of(true, true);
	size_t n;
	uint8_t *bytes = codec_file_bytes(&f, &n), *copy = malloc(n);
	size_t header = bytes[0] + 256u * bytes[1];

	ck_assert_ptr_nonnull(copy);
	for (int i = 0; i < 2000; i++) {
		struct codec *c = NULL;
		int flips = 1 + (int)(rnd64() % 4);

		memcpy(copy, bytes, n);
		while (flips-- > 0)
			copy[rnd64() % (8 + header)] = (uint8_t)rnd64();
		fx_write(path, copy, n);
		if (codec_read(path, D, HEAD, LAYERS, &packs, &c, err, sizeof(err)) == 0)
			codec_free(c);
	}
	free(copy);
	free(bytes);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-codec");
	TCase *t = add_case(s, "codec", 120, setup, teardown, fingerprints, cut_later, cut_off, other_shapes,
	                    missing, mixed, no_numbers, files_that_are_none, scribbled, NULL);

	tcase_add_loop_test(t, what_is_read, 0, 8);
	tcase_add_loop_test(t, wrong_abouts, 0, sizeof(abouts) / sizeof(*abouts));
	return run_suite(s);
}
