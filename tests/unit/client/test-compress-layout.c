/* SPDX-License-Identifier: Apache-2.0 */
/* Which tokens are compressed: compared with a sequence that grows token by token and compresses as soon as it can. */
#include "libclient/compress/compressed-lengths.h"

#include <check.h>

#include "common/records.h"
#include "common/spec.h"
#include "kernels/compress.h"
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

			if (n >= from && n - from == k.residual + k.block) /* residual behind a block */
				coded = from + k.block;
			ck_assert_uint_eq(compress_end(&k, n), coded);
		}
	}
}
END_TEST

/*
 * What a commit says of compression passes every reader's check at any length, and only planned tokens are compressed.
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

/* The largest number of a reference decides how many bytes each number has. */
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

/* Code that knows only a prefix's form finds records where the kernels put them. */
START_TEST(records)
{
	for (int round = 0; round < 2000; round++) {
		const struct skv_compress k = random_pack();
		const struct skv_model m = {.n_layers = 1, .n_heads = 8, .n_kv_heads = 1u << rnd_below(4), .head_dim = 64, .kv_dtype = SKV_BF16};
		struct skv_codec code = {.kind = k.kind, .first = compress_first(&k), .stride = k.stride, .bits = k.bits, .scale_block = k.scale_block,
		                         .width = 64, .n_refs = k.n_refs, .ref_bits = k.ref_bits, .id_bytes = k.stride ? 4 : 0};
		const struct skv_shape sh = {.n_kv_heads = m.n_kv_heads, .head_dim = m.head_dim, .dtype = m.kv_dtype, .page_bytes = skv_page_bytes(&m),
		                             .codec = &code};
		struct skv_made made = {.form = {compress_form(&k, SKV_MAX_TOKENS)}};
		struct skv_form *f = &made.form[0];
		uint64_t pages = 0;

		f->code_size = (uint16_t)(skv_code_record_bytes(&sh) / 16);
		f->ref_size = (uint16_t)(k.stride ? skv_ref_bytes(&code, skv_token_dims(&sh), sh.dtype) / 16 : 0);
		if (code.first >= SKV_BLOCK_TOKENS) {
			ck_assert_ptr_nonnull(skv_made_check(&made, &m));
			continue;
		}
		ck_assert_ptr_null(skv_made_check(&made, &m));
		for (uint32_t n = SKV_BLOCK_TOKENS; n < 9 * SKV_BLOCK_TOKENS; n += SKV_BLOCK_TOKENS) {
			const struct records codes = compress_records(&sh, SKV_PAGES_CODES, n), refs = compress_records(&sh, SKV_PAGES_REFS, n);

			ck_assert_uint_eq(skv_form_records(f, SKV_PAGES_CODES, m.n_kv_heads, n), codes.n);
			ck_assert_uint_eq(skv_form_records(f, SKV_PAGES_REFS, m.n_kv_heads, n), refs.n);
			pages = skv_pages_of(code.first) + (codes.n + codes.each - 1) / codes.each + (refs.n + refs.each - 1) / refs.each;
			ck_assert_uint_eq(skv_made_pages(&made, &m, n), pages);
		}
		ck_assert_uint_le(pages, 1 + skv_pages_of(9 * SKV_BLOCK_TOKENS) * 2);
		f->code_size = (uint16_t)(rnd_below(2) ? 0 : skv_page_bytes(&m) / 16 + 1);
		ck_assert_ptr_nonnull(skv_made_check(&made, &m));
	}
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-compress-layout");

	add_case(s, "packs", 60, NULL, NULL, as_it_grows, commits_are_good, forms, records, NULL);
	return run_suite(s);
}
