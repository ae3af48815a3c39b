/* SPDX-License-Identifier: Apache-2.0 */
/* Which tokens are compressed: against a sequence that grows token by token, and compresses as soon as it can. */
#include "libclient/compress/lengths.h"

#include <check.h>

#include "common/spec.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

static struct skv_compress random_pack(void)
{
	bool refs = rnd_below(4) > 0, low = rnd_below(4) == 0;
	struct skv_compress k = {
	        .kind = SKV_COMPRESS_LATENT,
	        .bits = 4u << rnd_below(3),
	        .scale_block = 32u << rnd_below(2),
	        .residual = rnd_below(3) ? rnd_below(200) : 0,
	        .block = SKV_PAGE_TOKENS * (1 + rnd_below(6)),
	};

	if (low) {
		k.kind = SKV_COMPRESS_QUANT;
		k.bits = 2u << rnd_below(2);
		k.block = 32 * (1 + rnd_below(3));
	} else if (refs) {
		k.stride = 1 + rnd_below(255);
		k.n_refs = 1 + rnd_below(4);
		k.ref_bits = 4u << rnd_below(3);
		k.sinks = k.n_refs + rnd_below(60);
	}
	ck_assert_ptr_null(skv_compress_check(&k));
	return k;
}

START_TEST(as_it_grows)
{
	for (int round = 0; round < 500; round++) {
		struct skv_compress k = random_pack();
		uint32_t first = 0, coded = 0;

		while (first < k.sinks)
			first += SKV_PAGE_TOKENS;
		ck_assert_uint_eq(compress_first(&k), first);
		for (uint32_t n = 0; n < 2000; n++) {
			uint32_t from = coded ? coded : first;

			if (n >= from && n - from == k.residual + k.block) /* `raw` tokens are behind a block */
				coded = from + k.block;
			ck_assert_uint_eq(compress_end(&k, n), coded);
		}
	}
}
END_TEST

/*
 * What a commit says of it passes the check of every reader, at any length; and nothing is compressed that was not
 * planned.
 */
START_TEST(commits_are_good)
{
	struct skv_compress none = {0};

	for (int round = 0; round < 20000; round++) {
		struct skv_compress k = random_pack();
		uint32_t n = rnd_below(rnd_below(2) ? 1000 : SKV_MAX_TOKENS + 1);
		struct skv_layer_slots x = {.live = n, .slot_end = n, .n_active = n,
		                            .n_compressed = compress_end(&k, n)};

		if (x.n_compressed > 0)
			x.form = compress_form(&k, SKV_MAX_TOKENS);
		ck_assert_ptr_null(skv_layer_slots_check(&x, SKV_ABOUT_SLOTS, n, 1));
		ck_assert_uint_eq(compress_end(&none, n), 0);
	}
}
END_TEST

/* The largest number of a reference decides how many bytes each has. */
START_TEST(forms)
{
	struct skv_compress k = {.kind = SKV_COMPRESS_LATENT, .bits = 4, .scale_block = 64, .stride = 10, .n_refs = 4, .ref_bits = 8,
	                     .sinks = 17, .residual = 128, .block = 32};
	struct skv_form f = compress_form(&k, 4096);

	ck_assert(f.kind == SKV_COMPRESS_LATENT && f.bits == 4 && f.scale_block == 64 && f.stride == 10 &&
	          f.n_refs == 4);
	ck_assert(f.ref_bits == 8 && f.id_bytes == 2 && f.first == 2);
	ck_assert_uint_eq(compress_form(&k, 20).id_bytes, 2);
	ck_assert_uint_eq(compress_form(&k, 32 + 65504 * 10).id_bytes, 2); /* 32 and 65,504 references: the last is 65,535 */
	ck_assert_uint_eq(compress_form(&k, 32 + 65504 * 10 + 1).id_bytes, 4);
	k = (struct skv_compress){.kind = SKV_COMPRESS_LATENT, .bits = 8, .scale_block = 32, .block = 32};
	f = compress_form(&k, SKV_MAX_TOKENS);
	ck_assert(f.kind == SKV_COMPRESS_LATENT && f.bits == 8 && f.scale_block == 32 && f.id_bytes == 0 &&
	          f.first == 0);
	k = (struct skv_compress){.kind = SKV_COMPRESS_QUANT, .bits = 2, .scale_block = 64, .residual = 128,
	                          .block = 32};
	f = compress_form(&k, SKV_MAX_TOKENS);
	ck_assert(f.kind == SKV_COMPRESS_QUANT && f.bits == 2 && f.scale_block == 64 && f.id_bytes == 0 &&
	          f.first == 0);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-compress-layout");

	add_case(s, "packs", 60, NULL, NULL, as_it_grows, commits_are_good, forms, NULL);
	return run_suite(s);
}
