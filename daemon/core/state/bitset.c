/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/state/bitset.h"

#include <errno.h>
#include <stdlib.h>

#define BITS 64u

int skv_bitset_init(struct skv_bitset *b, uint32_t n)
{
	*b = (struct skv_bitset){0};
	do {
		uint64_t *words;

		n = n / BITS + 1;
		words = calloc(n, sizeof(*words)); /* takes memory only where bits are set later */
		if (!words) {
			skv_bitset_deinit(b);
			return -ENOMEM;
		}
		b->level[b->levels] = words;
		b->words[b->levels++] = n;
	} while (n > 1);
	return 0;
}

void skv_bitset_deinit(struct skv_bitset *b)
{
	for (uint32_t i = 0; i < b->levels; i++)
		free(b->level[i]);
	*b = (struct skv_bitset){0};
}

void skv_bitset_put(struct skv_bitset *b, uint32_t number, bool in)
{
	for (uint32_t i = 0; i < b->levels; i++, number /= BITS) {
		uint64_t *word = &b->level[i][number / BITS], was = *word, bit = UINT64_C(1) << number % BITS;

		*word = in ? was | bit : was & ~bit;
		if (!was == !*word)
			return; /* the word was and stays zero or nonzero, so higher levels do not change */
	}
}

bool skv_bitset_has(const struct skv_bitset *b, uint32_t number)
{
	return b->level[0][number / BITS] >> number % BITS & 1;
}

/* The smallest number of the set that bit `at` of a level covers. */
static uint32_t descend(const struct skv_bitset *b, uint32_t level, uint32_t at)
{
	while (level-- > 0)
		at = at * BITS + (uint32_t)__builtin_ctzll(b->level[level][at]);
	return at;
}

uint32_t skv_bitset_next(const struct skv_bitset *b, uint32_t from)
{
	for (uint32_t i = 0; i < b->levels && from / BITS < b->words[i]; i++) {
		uint64_t rest = b->level[i][from / BITS] >> from % BITS;

		if (rest)
			return descend(b, i, from + (uint32_t)__builtin_ctzll(rest));
		from = from / BITS + 1;
	}
	return SKV_BITSET_NONE;
}

uint32_t skv_bitset_last(const struct skv_bitset *b)
{
	uint32_t at = 0;

	if (!b->level[b->levels - 1][0])
		return SKV_BITSET_NONE;
	for (uint32_t level = b->levels; level-- > 0;)
		at = at * BITS + BITS - 1 - (uint32_t)__builtin_clzll(b->level[level][at]);
	return at;
}
