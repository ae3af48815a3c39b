/* SPDX-License-Identifier: Apache-2.0 */
/* The index of sealed prefixes against a search of all owners: random prompts that begin alike, added and removed. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/core/state/block-index.h"
#include "tests/support/daemon-fixture.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

#define OWNERS 64u
#define MOST 700u /* blocks of an owner */

struct owner {
	struct skv_block_key keys[MOST];
	uint32_t n; /* 0: not in the index */
	bool usable;
};
static struct owner owner[OWNERS];
static struct skv_block_index index_of = SKV_BLOCK_INDEX_NULL;

/* The key of a block follows from the key before it, as real ones do. */
static struct skv_block_key next_key(const struct skv_block_key *before, uint64_t tokens)
{
	struct skv_block_key key;
	uint64_t h = tokens, word;

	for (size_t i = 0; i < sizeof(key); i += sizeof(word)) {
		if (before) {
			memcpy(&word, before->bytes + i, sizeof(word));
			h ^= word;
		}
		h = (h ^ (h >> 31)) * 0x9e3779b97f4a7c15u + i;
		word = h ^ (h >> 29);
		memcpy(key.bytes + i, &word, sizeof(word));
	}
	return key;
}

/* Begins as another owner does, or with the same few tokens as all. */
static void make_prompt(struct skv_block_key *keys, uint32_t n, const struct owner *like, uint32_t n_like)
{
	for (uint32_t i = 0; i < n; i++)
		keys[i] = i < n_like ? like->keys[i] : next_key(i ? &keys[i - 1] : NULL, i < 4 ? rnd_below(2) : rnd64());
}

static const struct skv_block_key *keys_of(const struct skv_block_owners *owners, uintptr_t i, uint32_t *ret_n)
{
	(void)owners;
	ck_assert_uint_gt(owner[i].n, 0);
	*ret_n = owner[i].n;
	return owner[i].usable ? owner[i].keys : NULL;
}

static bool comes_first(const struct skv_block_owners *owners, uintptr_t a, uintptr_t b)
{
	(void)owners;
	return a < b;
}

static const struct skv_block_owners owners = {keys_of, comes_first};

static void expect_longest(const struct skv_block_key *keys, uint32_t n)
{
	uint32_t best = 0;
	uintptr_t expected = OWNERS, found = OWNERS;

	for (uint32_t i = 0; i < OWNERS; i++) {
		uint32_t has = 0;

		while (owner[i].usable && has < n && has < owner[i].n && !memcmp(&keys[has], &owner[i].keys[has], sizeof(*keys)))
			has++;
		if (has > best) {
			best = has;
			expected = i;
		}
	}
	ck_assert_uint_eq(skv_block_index_longest(&index_of, &owners, keys, n, &found), best);
	ck_assert_uint_eq(found, expected);
}

START_TEST(finds_what_a_search_finds)
{
	static struct skv_block_key keys[MOST];
	const uint32_t sizes[] = {1, 3, 64, 65, 128, 129, 200, MOST};

	for (unsigned round = 0; round < 3000; round++) {
		const uint32_t i = rnd_below(OWNERS), like = rnd_below(OWNERS), n = 1 + rnd_below(sizes[rnd_below(8)]);
		const uint32_t n_like = owner[like].n ? rnd_below(owner[like].n + 1) : 0;

		if (owner[i].n && rnd_below(2)) {
			skv_block_index_remove(&index_of, i, owner[i].keys, owner[i].n);
			owner[i].n = 0;
			owner[i].usable = false;
		} else if (owner[i].n) {
			owner[i].usable = !owner[i].usable;
		} else {
			make_prompt(owner[i].keys, n, &owner[like], n_like < n ? n_like : n);
			owner[i].n = n;
			owner[i].usable = rnd_below(8) > 0;
			ck_assert_int_eq(skv_block_index_add(&index_of, i, owner[i].keys, n), 0);
		}
		make_prompt(keys, n, &owner[like], n_like < n ? n_like : n);
		expect_longest(keys, n);
	}
	skv_block_index_deinit(&index_of);
}
END_TEST

/* A prompt of a million tokens, that another one shares all but the last block of: what it takes is far from a turn of the daemon. */
START_TEST(long_prompts_take_microseconds)
{
	const uint32_t n = 65536;
	struct skv_block_key *keys = malloc(n * sizeof(*keys));
	struct owner *o = &owner[0];
	double begin, took[2];
	uintptr_t found;

	for (uint32_t i = 0; i < n; i++)
		keys[i] = next_key(i ? &keys[i - 1] : NULL, i);
	memcpy(o->keys, keys, sizeof(o->keys));
	o->n = MOST;
	o->usable = true;
	begin = fix_now();
	ck_assert_int_eq(skv_block_index_add(&index_of, 0, keys, n), 0);
	took[0] = fix_now() - begin;
	begin = fix_now();
	ck_assert_uint_eq(skv_block_index_longest(&index_of, &owners, keys, MOST, &found), MOST);
	took[1] = fix_now() - begin;
	printf("%u blocks: added in %.0f us, found in %.1f us, charged %.1f bytes a block\n", n, took[0] * 1e6, took[1] * 1e6,
	       (double)skv_block_index_bytes(n) / n);
	ck_assert_double_lt(took[0], slowed() ? 1 : 0.01);
	ck_assert_uint_lt(skv_block_index_bytes(n), 18ull * n);
	skv_block_index_deinit(&index_of);
	free(keys);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-core-block-index");

	add_case(s, "index", 60, NULL, NULL, finds_what_a_search_finds, long_prompts_take_microseconds, NULL);
	return run_suite(s);
}
