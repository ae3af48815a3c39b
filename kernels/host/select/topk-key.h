/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/select/topk-key.h - top-k by score, with ties broken by position. Both are in one 64-bit key, the order
 * of the score above, the position below. So no two keys are equal, and one threshold separates the k best from the
 * others.
 */
#ifndef SKV_HOST_TOPK_KEY_H
#define SKV_HOST_TOPK_KEY_H

#include "kernels/host/runtime/host.h"

/* Maps scores to integers of the same order; -infinity and NaN to 0, below all others. -0 and 0 are the same. */
static inline uint32_t score_key(float x)
{
	uint32_t u;
	x += 0.0f;
	memcpy(&u, &x, sizeof u);
	u = u & 0x80000000 ? ~u : u | 0x80000000;
	return x > -__builtin_inff() ? u : 0;
}

/*
 * Returns the k-th largest of keys[0, n), which it may permute. *k becomes the number of keys equal to it that are
 * among the k largest.
 */
uint32_t ISA(kth)(uint32_t *keys, uint32_t n, uint32_t *k);
/* Sorts ids[0, n), which ascend, by their scores: largest first, ties by lower id. `workspace` has n elements. */
void ISA(sort_ids)(const float *score, uint32_t *ids, uint32_t n, uint32_t *workspace);

/* The higher the better. Of equal scores the lower pos is better, or with old_first the higher one. */
static inline uint64_t topk_key(float score, uint32_t pos, bool old_first)
{
	return (uint64_t)score_key(score) << 32 | (old_first ? pos : ~pos);
}

/* Keys of the candidates of a top-k. */
struct topk_keys {
	uint64_t *key;  /* [n] */
	uint32_t *part; /* [n]: workspace */
};

/* Returns a threshold: exactly the k highest of key[0, n) are not below it. 1 <= k < n. */
static inline uint64_t threshold_of_some(struct topk_keys *t, uint32_t n, uint32_t k)
{
	uint32_t equals = 0;
	uint64_t low = UINT64_MAX;

	if (n - k == 1) { /* usual in decode steps */
		for (uint32_t i = 0; i < n; i++)
			low = t->key[i] < low ? t->key[i] : low;
		return low + 1;
	}
	for (uint32_t i = 0; i < n; i++)
		t->part[i] = (uint32_t)(t->key[i] >> 32);
	const uint32_t score = ISA(kth)(t->part, n, &k);
	for (uint32_t i = 0; i < n; i++) {
		t->part[equals] = (uint32_t)t->key[i];
		equals += t->key[i] >> 32 == score;
	}
	return (uint64_t)score << 32 | ISA(kth)(t->part, equals, &k);
}

/* The same for any k. */
static inline uint64_t topk_threshold(struct topk_keys *t, uint32_t n, uint32_t k)
{
	return k == 0 ? UINT64_MAX : k >= n ? 0 : threshold_of_some(t, n, k);
}

static inline size_t topk_keys_carve(struct carve *at, uint32_t n, struct topk_keys *t)
{
	if (at)
		*t = (struct topk_keys){carve(at, n * sizeof *t->key), carve(at, n * sizeof *t->part)};
	return carve_size(n * sizeof *t->key) + carve_size(n * sizeof *t->part);
}

#endif
