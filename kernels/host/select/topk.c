/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/select/topk.c - radix top-k: the k largest scores, as ascending indices.
 *
 * Floats become unsigned keys in the same order (score_key). Three counting passes over digits of 11, 11 and 10 bits of
 * the keys find the k-th largest key; each pass counts only the keys that have the digits found so far. One more pass,
 * in the order of indices, selects the scores whose keys are above the k-th largest, and the first of those whose keys
 * equal it. So the work is O(n) for any values, and of equal scores those with the lower index are selected.
 *
 * If few of many scores are selected, counting all keys is most of the work. In that case a sample of the keys says
 * which ones are too low to be among the k largest, and only the other keys are counted. If the sample was wrong, all
 * keys are counted.
 */
#include "kernels/host/runtime/simd.h"
#include "kernels/host/select/topk-key.h"

#define DIGIT_BITS 11
#define DIGITS (1u << DIGIT_BITS)
#define SAMPLE 512u
#define IN_VECTORS (VL > 4) /* with vectors of 4 lanes, v_compress() costs more than vectors save */

/*
 * Finds one digit of the k-th largest of keys[0, n), whose bits above shift + DIGIT_BITS are equal: returns the key's
 * digit at bit `shift`, still shifted. The keys with that digit are moved to the front; *k becomes the rank of the
 * wanted key among them, *n their number.
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

/* Computes score_key() of each lane. */
INLINE vu v_score_key(vf x)
{
	const vi u = (vi)(x + 0.0f);

	return (vu)((u ^ (u >> 31 | INT32_MIN)) & (x > -__builtin_inff()));
}

/*
 * Writes the keys of score[0, n) that are not below `least` (which is above 0) to ret, in the order of the scores.
 * Returns their number.
 */
static uint32_t keys_from(const float *score, uint32_t n, uint32_t least, uint32_t *ret)
{
	uint32_t m = 0, i = 0;

	for (; IN_VECTORS && i + VL <= n; i += VL) {
		const vu key = v_score_key(v_loadf(score + i));
		m += v_compress(ret + m, (vi)key, (vi)(key >= least));
	}
	for (; i < n; i++) {
		const uint32_t key = score_key(score[i]);
		ret[m] = key;
		m += key >= least;
	}
	return m;
}

/*
 * Returns a key above 0 that is most likely not above the k-th largest key of score[0, n), as estimated from a sample.
 */
static uint32_t likely_below(const float *score, uint32_t n, uint32_t k)
{
	uint32_t key[SAMPLE], least, rank;

	if (n < 8 * SAMPLE || k > n / 4)
		return 1;
	for (uint32_t i = 0; i < SAMPLE; i++)
		key[i] = score_key(score[(size_t)i * n / SAMPLE]);
	rank = (uint32_t)((uint64_t)k * SAMPLE * 5 / 4 / n) + 16; /* the margin is more than four standard deviations */
	least = ISA(kth)(key, SAMPLE, &rank);
	return least ? least : 1;
}

/*
 * Writes the k indices of [0, n) whose keys are above `limit`, or are among the first `ties` keys equal to `limit`, to
 * ret_ids.
 */
static void take(const float *score, uint32_t n, uint32_t limit, uint32_t ties, uint32_t k, uint32_t *ret_ids)
{
	uint32_t m = 0, i = 0;

	for (; IN_VECTORS && i + VL <= n && m < k; i += VL) {
		const vu key = v_score_key(v_loadf(score + i));
		vi equal = (vi)(key == limit);
		uint32_t equals = ties ? v_count(equal) : 0;
		for (uint32_t lane = VL; equals > ties;)
			if (equal[--lane]) {
				equal[lane] = 0;
				equals--;
			}
		m += v_compress(ret_ids + m, v_iota() + (int32_t)i, (vi)(key > limit) | (equals ? equal : (vi){0}));
		ties -= equals;
	}
	for (; m < k; i++) {
		const uint32_t key = score_key(score[i]);
		const bool tie = key == limit && ties;
		ties -= tie;
		ret_ids[m] = i;
		m += key > limit || tie;
	}
}

uint32_t ISA(topk)(const float *score, uint32_t n, uint32_t k, uint32_t *ret_ids, uint32_t *workspace)
{
	const uint32_t least = likely_below(score, n, k);
	uint32_t candidates = keys_from(score, n, least, workspace), ties;

	if (candidates < k && least > 1)
		candidates = keys_from(score, n, 1, workspace);
	k = skv_min(k, candidates);
	if (!k)
		return 0;
	ties = k;
	/* `ties` becomes the number of keys equal to limit among the k largest */
	const uint32_t limit = ISA(kth)(workspace, candidates, &ties);
	take(score, n, limit, ties, k, ret_ids);
	return k;
}

void ISA(sort_ids)(const float *score, uint32_t *ids, uint32_t n, uint32_t *workspace)
{
	uint32_t *from = ids, *to = workspace;
	/* sorts by the inverted key, so that the largest score comes first */
	for (int shift = 0; shift < 32; shift += DIGIT_BITS) {
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
	memcpy(ids, workspace, n * sizeof *ids); /* the result of the third pass is in `workspace` */
}
