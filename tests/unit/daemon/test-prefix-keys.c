/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of sealed prefixes compared with OpenSSL's HMAC(); prefix-keys.c does not use it, since it allocates memory. The
 * label before the hashed data ends with a NUL.
 */
#include <check.h>
#include <errno.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "daemon/prefix/prefix-keys.h"
#include "tests/support/suite.h"

static uint8_t secret[SKV_PREFIX_KEY], tenant[SKV_PREFIX_KEY];

static void assert_hmac(const uint8_t *key, const void *text, size_t n, const uint8_t *got)
{
	uint8_t want[SKV_PREFIX_KEY];

	ck_assert_ptr_nonnull(HMAC(EVP_sha256(), key, SKV_PREFIX_KEY, text, n, want, NULL));
	ck_assert_mem_eq(got, want, sizeof(want));
}

static void setup(void)
{
	rnd_bytes(secret, sizeof(secret));
	skv_prefix_tenant(secret, 0x01020304, tenant);
}

START_TEST(of_tenants)
{
	uint8_t value[SKV_PREFIX_KEY];

	assert_hmac(secret, "tenant\0\x04\x03\x02\x01", 11, tenant);
	skv_prefix_value(tenant, value);
	assert_hmac(tenant, "value", 6, value);
	skv_prefix_agents(secret, value);
	assert_hmac(secret, "agents", 7, value);
}
END_TEST

START_TEST(of_origins)
{
	const struct skv_model m = {.n_layers = 8, .n_heads = 4, .n_kv_heads = 2, .head_dim = 64, .kv_dtype = SKV_BF16, .rank = 1, .n_ranks = 2, .name = "m"};
	const uint32_t shape[] = {8, 4, 2, 64, SKV_BF16, 1, 2};
	const size_t n = 7 + sizeof(shape) + 7;
	struct skv_made made = {.codec = 5, .rope = 7, .form = {[3] = {.kind = 1, .bits = 4, .code_size = 9}}};
	uint8_t text[256], origin[SKV_PREFIX_KEY];

	memcpy(text, "origin", 7);
	memcpy(text + 7, shape, sizeof(shape));
	memcpy(text + 7 + sizeof(shape), "m\0full", 7);
	memcpy(text + n, &made.codec, 8);
	memcpy(text + n + 8, &made.rope, 8);
	memcpy(text + n + 16, made.form, 8 * sizeof(*made.form));
	skv_prefix_origin(tenant, &m, "full", &made, origin);
	assert_hmac(tenant, text, n + 16 + 8 * sizeof(*made.form), origin);
	/* policy and path do not count: the spec names the policy, and the fingerprint covers the file's content */
	made.policy = 1;
	strcpy(made.codec_path, "elsewhere");
	skv_prefix_origin(tenant, &m, "full", &made, origin);
	assert_hmac(tenant, text, n + 16 + 8 * sizeof(*made.form), origin);
}
END_TEST

/* The key before and the result may be in the same memory. */
START_TEST(of_blocks)
{
	uint8_t before[SKV_PREFIX_KEY], key[SKV_PREFIX_KEY], text[6 + SKV_PREFIX_KEY + SKV_BLOCK_TOKENS * 4];
	int32_t ids[SKV_BLOCK_TOKENS];

	skv_prefix_value(tenant, before);
	memcpy(key, before, sizeof(key));
	for (int i = 0; i < (int)SKV_BLOCK_TOKENS; i++)
		ids[i] = (int32_t)rnd_below(128000);
	memcpy(text, "block", 6);
	memcpy(text + 6, before, sizeof(before));
	memcpy(text + 6 + sizeof(before), ids, sizeof(ids));
	skv_prefix_block(tenant, key, ids, key);
	assert_hmac(tenant, text, sizeof(text), key);
}
END_TEST

START_TEST(of_a_file)
{
	char file[] = "/tmp/skv-test-XXXXXX", why[256] = "";
	const int fd = mkstemp(file);
	uint8_t got[SKV_PREFIX_KEY], want[SKV_PREFIX_KEY], bytes[100];

	rnd_bytes(bytes, sizeof(bytes));
	ck_assert_int_eq(write(fd, bytes, sizeof(bytes)), (ssize_t)sizeof(bytes));
	ck_assert_int_eq(EVP_Digest(bytes, sizeof(bytes), want, NULL, EVP_sha256(), NULL), 1);
	ck_assert_msg(skv_prefix_secret(file, got, why) == 0, "%s", why);
	ck_assert_mem_eq(got, want, sizeof(want));
	ck_assert_int_eq(fchmod(fd, 0604), 0);
	ck_assert_int_eq(skv_prefix_secret(file, got, why), -EPERM);
	close(fd);
	unlink(file);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-prefix-keys");

	add_case(s, "keys", 10, setup, NULL, of_tenants, of_origins, of_blocks, of_a_file, NULL);
	return run_suite(s);
}
