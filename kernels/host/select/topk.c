/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/select/topk.c - radix top-k: the k largest scores, as ascending indices.
 *
 * Floats become unsigned keys in the same order (score_key), and three counting passes over 11, 11 and 10 bits of the
 * keys find the k-th largest one, each among the keys that share the digits found so far. Scores above that key are
 * selected, and of its equals the first ones, by one more pass in index order. So the work is O(n) whatever the values,
 * and ties go to the lower index.
 */
#include "kernels/host/select/topk-key.h"

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

	uint32_t same = 0;
	for (uint32_t i = 0; i < *n; i++) {
		uint32_t key = keys[i];
		keys[same] = key;
		same += (key >> shift & (DIGITS - 1)) == digit;
	}
	*n = same;
	return digit << shift;
}

uint32_t ISA(kth)(uint32_t *keys, uint32_t n, uint32_t *k)
{
	uint32_t key = select_digit(keys, &n, k, 21);
	key |= select_digit(keys, &n, k, 10);
	return key | select_digit(keys, &n, k, 0);
}

uint32_t ISA(topk)(const float *score, uint32_t n, uint32_t k, uint32_t *ret_ids, uint32_t *workspace)
{
	uint32_t candidates = 0;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t key = score_key(score[i]);
		workspace[candidates] = key;
		candidates += key != 0;
	}
	k = skv_min(k, candidates);
	if (!k)
		return 0;

	/* The k-th largest key, and how many of its equals belong to the k largest. */
	uint32_t ties = k;
	const uint32_t limit = ISA(kth)(workspace, candidates, &ties);

	uint32_t m = 0;
	for (uint32_t i = 0; m < k; i++) {
		uint32_t key = score_key(score[i]);
		bool tie = key == limit && ties;
		ties -= tie;
		ret_ids[m] = i;
		m += key > limit || tie;
	}
	return m;
}

void ISA(sort_ids)(const float *score, uint32_t *ids, uint32_t n, uint32_t *workspace)
{
	uint32_t *from = ids, *to = workspace;
	for (int shift = 0; shift < 32; shift += DIGIT_BITS) { /* by what is missing to the largest key */
		uint32_t at[DIGITS] = {0}, before = 0;
		for (uint32_t i = 0; i < n; i++)
			at[~score_key(score[from[i]]) >> shift & (DIGITS - 1)]++;
		for (uint32_t d = 0; d < DIGITS; d++) {
			uint32_t here = at[d];
			at[d] = before;
			before += here;
		}
		for (uint32_t i = 0; i < n; i++)
			to[at[~score_key(score[from[i]]) >> shift & (DIGITS - 1)]++] = from[i];
		uint32_t *next = from;
		from = to;
		to = next;
	}
	memcpy(ids, workspace, n * sizeof *ids); /* after three digits they are there */
}
