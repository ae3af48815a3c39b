/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/state/block-index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX
#define FIRST_ENTRIES 1024u
#define DENSE 64u  /* number of blocks at the beginning of a prefix that have an entry each */
#define STRIDE 64u /* number of blocks from one entry to the next after the first DENSE blocks */

/* Index of the block to which entry i of an owner belongs. */
static uint32_t block_of(uint32_t i)
{
	return i < DENSE ? i : (i - DENSE + 1) * STRIDE;
}

static bool same(const struct skv_block_key *a, const struct skv_block_key *b)
{
	return !memcmp(a, b, sizeof(*a));
}

/* ---- the table: linear hashing, which splits one bucket for each entry that is added ---- */

static uint32_t highest_bit(uint32_t n)
{
	return 1u << (31 - __builtin_clz(n));
}

static uint32_t *bucket_of(const struct skv_block_index *x, const struct skv_block_key *key)
{
	const uint32_t level = highest_bit(x->n_buckets);
	uint32_t hash, b;

	memcpy(&hash, key->bytes, sizeof(hash));
	b = hash & (2 * level - 1);
	return &x->bucket[b < x->n_buckets ? b : b - level];
}

static void link_entry(struct skv_block_index *x, uint32_t i)
{
	uint32_t *bucket = bucket_of(x, &x->entry[i].key);

	x->entry[i].next = *bucket;
	*bucket = i;
}

static void split_bucket(struct skv_block_index *x)
{
	const uint32_t b = x->n_buckets++;
	uint32_t *parent = &x->bucket[b - highest_bit(b)];
	uint32_t i = *parent;

	x->bucket[b] = NONE;
	*parent = NONE;
	while (i != NONE) {
		const uint32_t next = x->entry[i].next;

		link_entry(x, i);
		i = next;
	}
}

/* Doubles the capacity. Takes little time even for large arrays, since realloc() remaps them without copying. */
static int grow(struct skv_block_index *x)
{
	const uint32_t cap = x->cap ? 2 * x->cap : FIRST_ENTRIES;
	struct skv_block_entry *entry = realloc(x->entry, cap * sizeof(*entry));
	uint32_t *bucket;

	if (!entry)
		return -ENOMEM;
	x->entry = entry;
	bucket = realloc(x->bucket, cap * sizeof(*bucket));
	if (!bucket)
		return -ENOMEM;
	x->bucket = bucket;
	if (x->n_buckets == 0) {
		x->n_buckets = 1;
		x->bucket[0] = NONE;
	}
	x->cap = cap;
	return 0;
}

/* Takes a free entry; NONE: out of memory. */
static uint32_t take_entry(struct skv_block_index *x)
{
	uint32_t i = x->free;

	if (x->n_free) {
		x->free = x->entry[i].next;
		x->n_free--;
		return i;
	}
	if (x->n_used == x->cap && grow(x) < 0)
		return NONE;
	if (x->n_buckets < x->cap)
		split_bucket(x);
	return x->n_used++;
}

static void remove_entry(struct skv_block_index *x, uintptr_t owner, const struct skv_block_key *key)
{
	for (uint32_t *at = bucket_of(x, key), i; (i = *at) != NONE; at = &x->entry[i].next)
		if (x->entry[i].owner == owner && same(&x->entry[i].key, key)) {
			*at = x->entry[i].next;
			x->entry[i].next = x->free;
			x->free = i;
			x->n_free++;
			return;
		}
}

int skv_block_index_add(struct skv_block_index *x, uintptr_t owner, const struct skv_block_key *keys, uint32_t n)
{
	for (uint32_t k = 0; block_of(k) < n; k++) {
		const uint32_t at = block_of(k), i = take_entry(x);

		if (i == NONE) {
			skv_block_index_remove(x, owner, keys, at);
			return -ENOMEM;
		}
		x->entry[i] = (struct skv_block_entry){.key = keys[at], .owner = owner, .at = at};
		link_entry(x, i);
	}
	return 0;
}

void skv_block_index_remove(struct skv_block_index *x, uintptr_t owner, const struct skv_block_key *keys, uint32_t n)
{
	for (uint32_t k = 0; block_of(k) < n && x->cap; k++)
		remove_entry(x, owner, &keys[block_of(k)]);
}

void skv_block_index_deinit(struct skv_block_index *x)
{
	free(x->entry);
	free(x->bucket);
	*x = (struct skv_block_index)SKV_BLOCK_INDEX_NULL;
}

/* ---- the longest match ---- */

/*
 * Finds the next entry of block `at` with this key whose owner can be used, beginning with entry `i` of a bucket's
 * list; NONE: there is none.
 */
static uint32_t find(const struct skv_block_index *x, const struct skv_block_owners *owners, uint32_t i,
                     const struct skv_block_key *key, uint32_t at)
{
	uint32_t n;

	while (i != NONE &&
	       (x->entry[i].at != at || !same(&x->entry[i].key, key) || !owners->keys(owners, x->entry[i].owner, &n)))
		i = x->entry[i].next;
	return i;
}

/*
 * Number of the prompt's n blocks that the owner has, found by bisection. The owner is known to have at least `least`
 * blocks.
 */
static uint32_t shared(const struct skv_block_owners *owners, uintptr_t owner, const struct skv_block_key *keys,
                       uint32_t n, uint32_t least)
{
	uint32_t most;
	const struct skv_block_key *own = owners->keys(owners, owner, &most);

	if (most > n)
		most = n;
	while (least < most) {
		const uint32_t middle = most - (most - least) / 2;

		if (same(&own[middle - 1], &keys[middle - 1]))
			least = middle;
		else
			most = middle - 1;
	}
	return least;
}

uint32_t skv_block_index_longest(const struct skv_block_index *x, const struct skv_block_owners *owners,
                                 const struct skv_block_key *keys, uint32_t n, uintptr_t *ret_owner)
{
	uint32_t least = 0, most = 0, best = 0; /* bounds of the number of entries shared; blocks of the best owner */

	if (x->cap == 0)
		return 0;
	while (block_of(most) < n)
		most = 2 * most + 1;
	while (least < most) {
		const uint32_t middle = most - (most - least) / 2, at = block_of(middle - 1);

		if (at < n && find(x, owners, *bucket_of(x, &keys[at]), &keys[at], at) != NONE)
			least = middle;
		else
			most = middle - 1;
	}
	if (least == 0)
		return 0;
	const uint32_t at = block_of(least - 1);

	for (uint32_t i = *bucket_of(x, &keys[at]); (i = find(x, owners, i, &keys[at], at)) != NONE;
	     i = x->entry[i].next) {
		const uintptr_t owner = x->entry[i].owner;
		const uint32_t has = shared(owners, owner, keys, n, at + 1);

		if (has > best || (has == best && owners->preferred(owners, owner, *ret_owner))) {
			best = has;
			*ret_owner = owner;
		}
	}
	return best;
}

void skv_prefix_name(const struct skv_block_key *key, char ret[SKV_NAME_MAX])
{
	char *at = ret;

	*at++ = '/';
	for (size_t i = 0; i < sizeof(key->bytes); i++)
		at += sprintf(at, "%02x", key->bytes[i]);
}
