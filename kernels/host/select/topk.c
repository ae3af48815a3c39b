/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/select/topk.c - the k largest scores, as ascending indices.
 *
 * Radix select: floats become unsigned keys in the same order (skv_order_of), and three counting passes
 * over 11, 11 and 10 bits of the keys find the k-th largest one, each among the keys that share the
 * digits found so far. What is above that key is chosen, and of its equals the first ones: one more pass
 * in index order. So the work is O(n) whatever the values, and ties go to the lower index.
 */
#include "kernels/host/runtime/host.h"
#include "kernels/host/runtime/simd.h"

#define DIGIT_BITS 11
#define DIGITS (1u << DIGIT_BITS)

/*
 * Of keys[0, n), whose bits above shift + DIGIT_BITS are equal: the digit at `shift` of the k-th
 * largest. The keys with that digit move to the front; *k becomes the rank among them, *n their number.
 */
static uint32_t select_digit(uint32_t *keys, uint32_t *n, uint32_t *k, int shift)
{
	uint32_t count[DIGITS] = {0};
	for (uint32_t i = 0; i < *n; i++)
		count[keys[i] >> shift & (DIGITS - 1)]++;

	uint32_t digit = DIGITS - 1;
	while (*k > count[digit])
		*k -= count[digit--];

	uint32_t kept = 0;
	for (uint32_t i = 0; i < *n; i++) {
		uint32_t key = keys[i];
		keys[kept] = key;
		kept += (key >> shift & (DIGITS - 1)) == digit;
	}
	*n = kept;
	return digit << shift;
}

uint32_t ISA(kth)(uint32_t *keys, uint32_t n, uint32_t *k)
{
	uint32_t key = select_digit(keys, &n, k, 21);
	key |= select_digit(keys, &n, k, 10);
	return key | select_digit(keys, &n, k, 0);
}

uint32_t ISA(topk)(const float *score, uint32_t n, uint32_t k, uint32_t *ret_ids, uint32_t *scratch)
{
	uint32_t candidates = 0;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t key = skv_order_of(score[i]);
		scratch[candidates] = key;
		candidates += key != 0;
	}
	k = skv_min(k, candidates);
	if (!k)
		return 0;

	/* The k-th largest key, and how many of its equals belong to the k largest. */
	uint32_t ties = k;
	const uint32_t limit = ISA(kth)(scratch, candidates, &ties);

	uint32_t m = 0;
	for (uint32_t i = 0; m < k; i++) {
		uint32_t key = skv_order_of(score[i]);
		bool tie = key == limit && ties;
		ties -= tie;
		ret_ids[m] = i;
		m += key > limit || tie;
	}
	return m;
}

void ISA(sort_ids)(const float *score, uint32_t *ids, uint32_t n, uint32_t *scratch)
{
	uint32_t *from = ids, *to = scratch;
	for (int shift = 0; shift < 32; shift += DIGIT_BITS) { /* the largest key first: what is missing to the top */
		uint32_t at[DIGITS] = {0}, before = 0;
		for (uint32_t i = 0; i < n; i++)
			at[~skv_order_of(score[from[i]]) >> shift & (DIGITS - 1)]++;
		for (uint32_t d = 0; d < DIGITS; d++) {
			uint32_t here = at[d];
			at[d] = before;
			before += here;
		}
		for (uint32_t i = 0; i < n; i++)
			to[at[~skv_order_of(score[from[i]]) >> shift & (DIGITS - 1)]++] = from[i];
		uint32_t *next = from;
		from = to;
		to = next;
	}
	memcpy(ids, scratch, n * sizeof *ids); /* after three digits they are there */
}
