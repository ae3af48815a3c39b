/* SPDX-License-Identifier: Apache-2.0 */
/* Tests files of tensors as the engine and the library read them, and bad files. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "formats/safetensors.h"
#include "tests/support/folder.h"
#include "tests/support/suite.h"

static char *folder, err[512];
#define ERR err, sizeof(err)

static void setup(void)
{
	folder = fx_folder();
}

static void teardown(void)
{
	fx_remove(folder);
}

/* Writes a file with this header and `n` bytes of data. */
static const char *tensors(const char *header, const void *data, size_t n)
{
	const char *path = fx_path(folder, "t.safetensors");
	uint64_t length = strlen(header);
	char *bytes = malloc(8 + length + n);

	memcpy(bytes, &length, 8);
	memcpy(bytes + 8, header, length);
	memcpy(bytes + 8 + length, data, n);
	fx_write(path, bytes, 8 + length + n);
	free(bytes);
	return path;
}

static const char good_header[] = "{\"__metadata__\":{\"format\":\"pt\"},"
				  "\"b\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[12,24]},"
				  "\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
				  "\"n\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[24,32]},"
				  "\"none\":{\"dtype\":\"F16\",\"shape\":[0,4],\"data_offsets\":[32,32]}}   ";
static const uint8_t good_data[32] = {0x80, 0x3f, 0x00, 0xc0, 0, 0, 0x40, 0x40, 0x80, 0xbf, 0, 0,
                                      0,    0,    0x80, 0x3f, 0, 0, 0,    0xc0, 0,    0,    0, 0x3f};

START_TEST(reads_what_is_there)
{
	struct skv_safetensors st;
	float a[6], b[3];

	ck_assert_int_eq(skv_safetensors_open(&st, tensors(good_header, good_data, 32), ERR), 0);
	ck_assert_uint_eq(st.n_tensors, 4);
	ck_assert_int_eq(skv_safetensors_read(&st, "a", 2, 3, a, ERR), 0);
	ck_assert_int_eq(skv_safetensors_read(&st, "b", 3, 0, b, ERR), 0);
	ck_assert(a[0] == 1 && a[1] == -2 && a[2] == 0 && a[3] == 3 && a[4] == -1 && a[5] == 0);
	ck_assert(b[0] == 1 && b[1] == -2 && b[2] == 0.5f);

	ck_assert_int_eq(skv_safetensors_read(&st, "c", 3, 0, b, ERR), -ENOENT);
	ck_assert_ptr_nonnull(strstr(err, "tensor c is missing (3 expected)"));
	ck_assert_int_eq(skv_safetensors_read(&st, "a", 3, 2, a, ERR), -EBADMSG);
	ck_assert_ptr_nonnull(strstr(err, "tensor a is 2 × 3, 3 × 2 expected"));
	ck_assert_int_eq(skv_safetensors_read(&st, "a", 6, 0, a, ERR), -EBADMSG);
	ck_assert_int_eq(skv_safetensors_read(&st, "n", 1, 0, a, ERR), -EBADMSG);
	ck_assert_ptr_nonnull(strstr(err, "tensor n is a scalar"));
	skv_safetensors_deinit(&st);
}
END_TEST

START_TEST(refuses_what_is_not_a_file)
{
	struct skv_safetensors st;

	ck_assert_int_eq(skv_safetensors_open(&st, fx_path(folder, "absent"), ERR), -ENOENT);
	ck_assert_ptr_nonnull(strstr(err, "absent"));
	ck_assert_int_eq(skv_safetensors_open(&st, folder, ERR), -EBADMSG);
	fx_write(fx_path(folder, "short"), "1234567", 7);
	ck_assert_int_eq(skv_safetensors_open(&st, fx_path(folder, "short"), ERR), -EBADMSG);
}
END_TEST

/* Headers, each followed by 32 bytes of data, and what the error must say. */
static const struct {
	const char *text, *says;
} bad_headers[] = {
	{"", "header"},
	{"[]", "not a JSON object"},
	{"{\"a\":{}", "header, byte"},
	{"{\"a\":NaN}", "tensor a: its entry is not an object"},
	{"{\"a\":5}", "tensor a: its entry is not an object"},
	{"{\"a\":{\"shape\":[8],\"data_offsets\":[0,32]}}", "tensor a: no \"dtype\""},
	{"{\"a\":{\"dtype\":\"F31\",\"shape\":[8],\"data_offsets\":[0,32]}}", "unknown dtype \"F31\""},
	{"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,32]}}", "tensor a: no \"shape\""},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[8]}}", "data_offsets"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0]}}", "data_offsets"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,32.0]}}", "data_offsets"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[8.0],\"data_offsets\":[0,32]}}", "dimension 0 is not a count"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[8,-1],\"data_offsets\":[0,32]}}",
         "dimension 1 is not a count"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,8],\"data_offsets\":[0,32]}}", "9 dimensions"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[7],\"data_offsets\":[0,32]}}",
         "32 bytes of data, its shape and dtype take 28"},
	{"{\"a\":{\"dtype\":\"BF16\",\"shape\":[8],\"data_offsets\":[0,32]}}", "take 16"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,2],\"data_offsets\":[0,32]}}",
         "larger than memory"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[9223372036854775807],\"data_offsets\":[0,32]}}",
         "larger than memory"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[9],\"data_offsets\":[0,36]}}", "the data has 32 bytes"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[-32,0]}}", "tensor a: offsets -32"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[16,8]}}", "tensor a: offsets 16"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,99999999999999999999]}}",
         "is not [begin, end]"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[7],\"data_offsets\":[4,32]}}",
         "begins at byte 4, after a hole"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[7],\"data_offsets\":[0,28]}}",
         "4 bytes at the end belong to no tensor"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,32]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[28,32]}}",
         "tensor b: begins at byte 28, inside the one before it"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,32]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,32]}}",
         "duplicate"},
	{"{}", "32 bytes at the end belong to no tensor"},
};

START_TEST(refuses_bad_headers)
{
	struct skv_safetensors st;

	ck_assert_int_eq(skv_safetensors_open(&st, tensors(bad_headers[_i].text, good_data, 32), ERR),
	                 -EBADMSG);
	ck_assert_msg(strstr(err, bad_headers[_i].says), "%s\n says: %s\n expected: %s",
	              bad_headers[_i].text, err, bad_headers[_i].says);
	ck_assert_msg(strstr(err, "t.safetensors"), "no file name in: %s", err);
}
END_TEST

START_TEST(refuses_every_truncation)
{
	size_t n;
	char *whole = fx_read(tensors(good_header, good_data, 32), &n);
	const char *path = fx_path(folder, "t.safetensors");
	struct skv_safetensors st;

	for (size_t cut = 0; cut < n; cut++) {
		fx_write(path, whole, cut);
		ck_assert_msg(skv_safetensors_open(&st, path, ERR) == -EBADMSG,
		              "%zu of %zu bytes were taken", cut, n);
	}
	memset(whole, 0xff, 8);
	fx_write(path, whole, n);
	ck_assert_int_eq(skv_safetensors_open(&st, path, ERR), -EBADMSG);
	ck_assert_ptr_nonnull(strstr(err, "its header would be 18446744073709551615 bytes"));
	free(whole);
}
END_TEST

/* Changes, drops and repeats bytes. Tensors of accepted files must lie inside the file (ASan checks this, too). */
START_TEST(survives_random_damage)
{
	size_t n;
	char *whole = fx_read(tensors(good_header, good_data, 32), &n);
	const char *path = fx_path(folder, "t.safetensors");
	unsigned taken = 0;

	for (unsigned round = 0; round < 4000; round++) {
		char *bytes = malloc(n);
		size_t length = n;
		struct skv_safetensors st;

		memcpy(bytes, whole, n);
		for (unsigned k = rnd_below(4) + 1; k; k--) {
			size_t at = rnd_below((uint32_t)length);

			if (rnd_below(3))
				bytes[at] = rnd_below(2) ? "0123456789[]{},:\"-.eE"[rnd_below(21)]
				                         : (char)rnd64();
			else
				memmove(bytes + at, bytes + at + 1, --length - at);
		}
		fx_write(path, bytes, length);
		if (!skv_safetensors_open(&st, path, ERR)) {
			taken++;
			for (size_t i = 0; i < st.n_tensors; i++)
				ck_assert(st.tensors[i].data + (st.tensors[i].end - st.tensors[i].begin) <=
				          (uint8_t *)st.map + st.map_bytes);
			skv_safetensors_deinit(&st);
		}
		free(bytes);
	}
	ck_assert_uint_gt(taken, 0); /* damage only to the data leaves a valid file */
	free(whole);
}
END_TEST

START_TEST(converts_every_half)
{
	const char *half = "{\"h\":{\"dtype\":\"F16\",\"shape\":[65536],\"data_offsets\":[0,131072]}}";
	const char *bfloat = "{\"h\":{\"dtype\":\"BF16\",\"shape\":[65536],\"data_offsets\":[0,131072]}}";
	uint16_t *bits = malloc(131072);
	float *x = malloc(65536 * sizeof(*x));
	struct skv_safetensors st;

	for (unsigned i = 0; i < 65536; i++)
		bits[i] = (uint16_t)i;
	ck_assert_int_eq(skv_safetensors_open(&st, tensors(half, bits, 131072), ERR), 0);
	ck_assert_int_eq(skv_safetensors_read(&st, "h", 65536, 0, x, ERR), 0);
	for (unsigned i = 0; i < 65536; i++) {
		int sign = i & 0x8000 ? -1 : 1, e = i >> 10 & 31, m = i & 1023;
		double want = e ? sign * ldexp(1 + m / 1024.0, e - 15) : sign * ldexp(m / 1024.0, -14);

		if (e == 31)
			ck_assert(m ? isnan(x[i]) : isinf(x[i]) && (x[i] > 0) == (sign > 0));
		else
			ck_assert_msg((double)x[i] == want && !signbit(x[i]) == (sign > 0),
			              "half %04x: %g, expected %g", i, (double)x[i], want);
	}
	skv_safetensors_deinit(&st);

	ck_assert_int_eq(skv_safetensors_open(&st, tensors(bfloat, bits, 131072), ERR), 0);
	ck_assert_int_eq(skv_safetensors_read(&st, "h", 65536, 0, x, ERR), 0);
	for (unsigned i = 0; i < 65536; i++) {
		uint32_t b;

		memcpy(&b, &x[i], 4);
		ck_assert_uint_eq(b, i << 16);
	}
	skv_safetensors_deinit(&st);
	free(bits);
	free(x);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-safetensors");
	TCase *t = add_case(s, "safetensors", 30, setup, teardown, reads_what_is_there,
	                    refuses_what_is_not_a_file, refuses_every_truncation, survives_random_damage,
	                    converts_every_half, NULL);

	tcase_add_loop_test(t, refuses_bad_headers, 0, sizeof(bad_headers) / sizeof(*bad_headers));
	return run_suite(s);
}
