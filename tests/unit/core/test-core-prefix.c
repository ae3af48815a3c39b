/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealed prefixes: made from sequences, found by their blocks' keys, forked by sequences of other lengths, and
 * restored.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "daemon/core/memory/charge.h"
#include "daemon/core/memory/pins.h"
#include "daemon/core/operations/parking.h"
#include "tests/support/core-prefix.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

static void setup(void)
{
	text_begin(128);
}


/*
 * Another client continues from what a client has sealed, in a sequence of another length, after the first client is
 * gone.
 */
START_TEST(sealed_and_opened)
{
	struct held one, two;

	text_write(&one, &text_a, NULL, "abc");
	ck_assert_uint_eq(text_find(&text_b, "abc"), 0);
	ck_assert_int_eq(text_seal(&one, &text_a, "abc"), 0);
	ck_assert_int_eq(text_seal(&one, &text_a, "abc"), SKV_CORE_E_EXIST);
	ck_assert_uint_eq(text_find(&text_b, "abc"), 3);
	ck_assert_uint_eq(text_find(&text_b, "abcd"), 3);
	ck_assert_uint_eq(text_find(&text_b, "abx"), 2);
	ck_assert_uint_eq(text_find(&text_b, "xbc"), 0);
	held_append(&one, &text_a, 100);
	ck_assert_uint_eq(text_open(&two, &text_b, "two", 8192, "abxy"), 2);
	for (uint32_t i = 0; i < 2 * SKV_BLOCK_TOKENS / SKV_PAGE_TOKENS; i++)
		for (uint32_t layer = 0; layer < TEXT_LAYERS; layer++) {
			ck_assert_uint_eq(skv_pte_kind(held_entry(&two, layer, i)), SKV_PTE_SHARED);
			ck_assert_uint_eq(held_entry(&two, layer, i), held_entry(&one, layer, i));
		}
	held_append(&two, &text_b, 3000);
	ck_assert_uint_eq(held_len(&two), 2 * SKV_BLOCK_TOKENS + 3000);
	peer_die(&text_a);
	held_close(&one);
	peer_join(&text_a, 1000, &text_model);
	ck_assert_uint_eq(text_find(&text_a, "abc"), 3);
	ck_assert_int_eq(held_detach(&two, &text_b), 0);
	ck_assert_int_eq(held_attach(&two, &text_b, "two"), 0);
	ck_assert_uint_eq(held_len(&two), 2 * SKV_BLOCK_TOKENS + 3000);
	held_drop(&two, &text_b);
	pool_is(&text_a, books_pool(text_a.session.pool).lease, 0, 3 * TEXT_PAGES);
}
END_TEST

/* The prefix is not found by another user, model, shape, dtype or rank. A short sequence gets fewer of its blocks. */
START_TEST(whose)
{
	struct skv_model other[5];
	struct peer c;
	struct held one, two;

	text_write(&one, &text_a, NULL, "ab");
	ck_assert_int_eq(text_seal(&one, &text_a, "ab"), 0);
	for (int i = 0; i < 5; i++)
		other[i] = text_model;
	strcpy(other[1].name, "n");
	other[2].n_heads *= 2;
	other[3].kv_dtype = text_model.kv_dtype == SKV_F16 ? SKV_BF16 : SKV_F16;
	other[4].n_ranks = 2;
	for (int i = 0; i < 5; i++) {
		peer_join(&c, i == 0 ? 1001 : 1000, &other[i]);
		ck_assert_uint_eq(text_find(&c, "ab"), 0);
		peer_die(&c);
	}
	ck_assert_uint_eq(text_open(&two, &text_b, NULL, 300, "ab"), 1);
	held_drop(&two, &text_b);
	ck_assert_uint_eq(text_open(&two, &text_b, NULL, 255, "ab"), 0);
	held_drop(&two, &text_b);
	held_drop(&one, &text_a);
}
END_TEST

/* Two prefixes begin alike: when one is dropped the other is still found. */
START_TEST(alike)
{
	struct skv_block_key keys[8];
	struct held one, two;
	char name[SKV_NAME_MAX] = "/";

	text_write(&one, &text_a, NULL, "abc");
	text_write(&two, &text_b, NULL, "abd");
	ck_assert_int_eq(text_seal(&one, &text_a, "abc"), 0);
	ck_assert_int_eq(text_seal(&two, &text_b, "abd"), 0);
	for (uint32_t i = 0, n = text_keys("abc", keys); i < sizeof(keys[0].bytes); i++)
		sprintf(name + strlen(name), "%02x", keys[n - 1].bytes[i]);
	ck_assert_int_eq(held_attach(&one, &text_a, name), SKV_CORE_E_NOENT);
	ck_assert_int_eq(skv_core_seq_drop_name(core, 1000, "m", name), 0);
	ck_assert_uint_eq(text_find(&text_a, "abc"), 2); /* at once, although its pages are freed in turns */
	skv_core_work_all(core);
	ck_assert_uint_eq(text_find(&text_a, "abd"), 3);
	held_close(&one);
	held_drop(&two, &text_b);
}
END_TEST

/* The user's charges other than files. */
static uint64_t beside_files(void)
{
	struct skv_core_held held;
	uint32_t at = 0;

	do
		skv_core_measure(core, &at, 1000);
	while (at);
	held = books_held();
	return books_account(1000).other_bytes - held.sequences;
}

/* The keys of a prefix are charged to its user, before the prefix exists. */
START_TEST(keys_are_charged)
{
	static const char *const texts[] = {"a", "bcdefghijklmno"};
	struct held h;
	uint64_t before, took[2], pinned = 0;

	for (int i = 0; i < 2; i++) {
		text_write(&h, &text_a, NULL, texts[i]);
		before = beside_files();
		ck_assert_int_eq(text_seal(&h, &text_a, texts[i]), 0);
		took[i] = beside_files() - before;
		held_drop(&h, &text_a);
	}
	ck_assert_uint_eq(took[1] - took[0], skv_block_index_bytes(13)); /* the rest are bits of references */
	text_write(&h, &text_a, NULL, "pqrstuvwxyzabc");
	before = books_account(1000).other_bytes + books_account(1000).page_bytes[SKV_DEVICE_HOST];
	ck_assert_int_eq(skv_core_pin(core, 1000, (64 << 20) - before - skv_file_bytes(core->seqs[skv_state_find(&core->state, SKV_TABLE_SEQUENCES, h.seq)].fd), &pinned), 0);
	ck_assert_int_eq(text_seal(&h, &text_a, "pqrstuvwxyzabc"), SKV_CORE_E_QUOTA);
	skv_core_unpin(core, 1000, &pinned);
	ck_assert_int_eq(text_seal(&h, &text_a, "pqrstuvwxyzabc"), 0);
	held_drop(&h, &text_a);
}
END_TEST

/* Seals, opens and drops texts of few letters at random, and compares with a list. */
START_TEST(at_random)
{
	char sealed[64][8];
	uint32_t n = 0;

	rnd_begin((uint64_t)_i);
	for (int i = 0; i < 150; i++) {
		char text[8] = "";
		uint32_t best = 0, len = 1 + rnd_below(4);
		bool known = false;
		struct held h;

		for (uint32_t k = 0; k < len; k++)
			text[k] = (char)('a' + rnd_below(2));
		for (uint32_t k = 0; k < n; k++) {
			uint32_t same = 0;

			while (same < len && sealed[k][same] == text[same])
				same++;
			best = same > best ? same : best;
			known |= !strcmp(sealed[k], text);
		}
		ck_assert_uint_eq(text_find(&text_a, text), best);
		if (rnd_below(2)) {
			text_write(&h, &text_a, NULL, text);
			ck_assert_int_eq(text_seal(&h, &text_a, text), known || best == len ? SKV_CORE_E_EXIST : 0);
			if (!known && best < len)
				strcpy(sealed[n++], text);
		} else {
			ck_assert_uint_eq(text_open(&h, &text_a, NULL, 0, text), best);
		}
		held_drop(&h, &text_a);
		if (n > 0 && rnd_below(6) == 0) {
			struct skv_block_key keys[8];
			const uint32_t at = rnd_below(n), blocks = text_keys(sealed[at], keys);
			char name[SKV_NAME_MAX] = "/";

			for (uint32_t k = 0; k < sizeof(keys[0].bytes); k++)
				sprintf(name + strlen(name), "%02x", keys[blocks - 1].bytes[k]);
			ck_assert_int_eq(drop_name(1000, "m", name), 0);
			memmove(sealed[at], sealed[--n], sizeof(sealed[0]));
		}
	}
	books_even();
}
END_TEST

/* Does what a worker does: writes entries, ids and a commit of `n` blocks. `ids` are the blocks' pages, in order. */
static void restore_memory(uint32_t seq, const char *text, uint32_t n, const uint32_t *ids)
{
	static const struct skv_made rows;
	struct skv_core_location p;
	struct skv_seqmem_layout layout;
	struct skv_seqmem *m;

	ck_assert_int_eq(skv_core_seq_location(core, seq, &p), 0);
	skv_seqmem_layout(p.model, p.max_tokens, &layout);
	m = mmap(NULL, layout.total, PROT_READ | PROT_WRITE, MAP_SHARED, p.fd, 0);
	ck_assert(m != MAP_FAILED);
	for (uint32_t block = 0; block < n; block++)
		for (uint32_t layer = 0; layer < TEXT_LAYERS; layer++)
			for (uint32_t k = 0; k < SKV_BLOCK_TOKENS / SKV_PAGE_TOKENS; k++)
				skv_seqmem_table(m, &layout, layer)[block * (SKV_BLOCK_TOKENS / SKV_PAGE_TOKENS) + k] = skv_pte_make(SKV_PTE_PRIVATE, *ids++);
	for (uint32_t i = 0; i < n * SKV_BLOCK_TOKENS; i++)
		skv_seqmem_tokens(m, &layout)[i] = text[i / SKV_BLOCK_TOKENS] * 1000 + (int32_t)(i % SKV_BLOCK_TOKENS);
	skv_seqmem_begin_with(m, n * SKV_BLOCK_TOKENS, TEXT_LAYERS, &rows);
	munmap(m, layout.total);
}

/* Makes a nameless sequence with pages for three blocks, uses those of two, and seals it. Returns the result. */
static int restore(const char *text)
{
	struct skv_block_key keys[8];
	struct skv_wire_run runs[512];
	uint32_t ids[3 * TEXT_PAGES], n = 0, taken = 0, seq, n_runs;
	int r;

	text_keys(text, keys);
	r = skv_core_restore_new(core, 1000, &text_model, "", 3 * SKV_BLOCK_TOKENS, &seq);
	ck_assert_msg(r == 0, "%s", skv_core_why(core));
	while (taken < 3 * TEXT_PAGES) {
		ck_assert_int_eq(skv_core_restore_take(core, seq, 3 * TEXT_PAGES - taken, runs, 512, &n_runs), 0);
		for (uint32_t i = 0; i < n_runs; i++)
			for (uint32_t k = 0; k < runs[i].count; k++)
				ids[taken++] = runs[i].first + k;
	}
	restore_memory(seq, text, 2, ids);
	for (uint32_t i = 2 * TEXT_PAGES; i < taken; i++)
		runs[n++] = (struct skv_wire_run){ids[i], 1};
	ck_assert_int_eq(skv_core_prefix_put_back(core, seq, runs, n), 0);
	ck_refused(skv_core_prefix_put_back(core, seq, runs, 1), SKV_CORE_E_NOENT); /* a second time */
	r = skv_core_prefix_restored(core, seq, text_origin, keys, 2);
	if (r)
		ck_assert_int_eq(in_turns(skv_core_restore_drop(core, seq), NULL), 0);
	return r;
}

START_TEST(restored)
{
	struct held h;

	ck_assert_int_eq(restore("abc"), 0);
	ck_assert_uint_eq(text_find(&text_a, "abc"), 2);
	pool_is(&text_a, books_pool(text_a.session.pool).lease, 2 * TEXT_PAGES, 0);
	ck_assert_uint_eq(text_open(&h, &text_a, NULL, 0, "abz"), 2);
	ck_assert_int_eq(restore("abc"), SKV_CORE_E_EXIST);
	ck_assert_uint_eq(text_find(&text_a, "abc"), 2);
	held_append(&h, &text_a, 100);
	held_drop(&h, &text_a);
	books_even();
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-core-prefix");
	TCase *t = add_case(s, "prefix", 60, setup, text_end, sealed_and_opened, whose, keys_are_charged, alike, restored, NULL);

	tcase_add_loop_test(t, at_random, 0, 6);
	return run_suite(s);
}
