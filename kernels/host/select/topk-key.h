/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/select/topk-key.h - top-k by score, where ties are broken by position. Score and position are in one
 * 64-bit key: the upper half orders by score, the lower half by position. So no two keys are equal, and one threshold
 * separates the k best from the others.
 */
#ifndef SKV_HOST_TOPK_KEY_H
#define SKV_HOST_TOPK_KEY_H

#include "kernels/host/runtime/host.h"

/*
 * Maps scores to integers of the same order; -infinity and NaNs become 0, below all other scores. -0 and 0 become the
 * same integer.
 */
static inline uint32_t score_key(float x)
{
	uint32_t u;
	x += 0.0f;
	memcpy(&u, &x, sizeof u);
	u = u & 0x80000000 ? ~u : u | 0x80000000;
	return x > -__builtin_inff() ? u : 0;
}

/*
 * Returns the k-th largest of keys[0, n), and may permute the keys. *k becomes the number of keys among the k largest
 * that equal the k-th.
 */
uint32_t ISA(kth)(uint32_t *keys, uint32_t n, uint32_t *k);
/*
 * Sorts ids[0, n), which must ascend, by their scores: the largest score first, equal scores by lower id. `workspace`
 * has n elements.
 */
void ISA(sort_ids)(const float *score, uint32_t *ids, uint32_t n, uint32_t *workspace);

/*
 * Returns the key of an entry; a higher key is better. Of equal scores the lower pos is better, or with old_first the
 * higher pos.
 */
static inline uint64_t topk_key(float score, uint32_t pos, bool old_first)
{
	return (uint64_t)score_key(score) << 32 | (old_first ? pos : ~pos);
}

/* The keys of n candidates for a top-k. */
struct topk_keys {
	uint64_t *key;  /* [n]: the candidates' keys */
	uint32_t *part; /* [n]: workspace */
};

/* Returns a threshold such that exactly the k highest of key[0, n) are not below it, for 1 <= k < n. */
static inline uint64_t threshold_of_some(struct topk_keys *t, uint32_t n, uint32_t k)
{
	uint32_t equals = 0;
	uint64_t low = UINT64_MAX;

	if (n - k == 1) { /* the usual case in decode steps: all keys but the lowest are taken */
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

/* Returns a threshold such that exactly the k highest of key[0, n) are not below it, for any k; all keys if k >= n. */
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
