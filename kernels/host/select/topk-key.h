/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/select/topk-key.h - who is chosen by a score, and among equals by age: both in one 64-bit number, the score's order
 * above, the age below, so that no two are equal and one number parts those that are chosen from the others.
 */
#ifndef SKV_HOST_CHOICE_H
#define SKV_HOST_CHOICE_H

#include "kernels/host/runtime/host.h"

/* The higher, the sooner it is chosen; of equal scores the lower pos, or with old_first the higher one. */
static inline uint64_t order_of(float score, uint32_t pos, bool old_first)
{
	return (uint64_t)skv_order_of(score) << 32 | (old_first ? pos : ~pos);
}

/* Room for a choice among n. */
struct choice {
	uint64_t *order; /* [n]: of those that there are */
	uint32_t *part;  /* [n] */
};

/* What is not at least this is not of the `want` highest of order[0, n), 1 <= want < n. */
static inline uint64_t least_of_some(struct choice *c, uint32_t n, uint32_t want)
{
	uint32_t equals = 0;
	uint64_t low = UINT64_MAX;

	if (n - want == 1) { /* as in most steps */
		for (uint32_t i = 0; i < n; i++)
			low = c->order[i] < low ? c->order[i] : low;
		return low + 1;
	}
	for (uint32_t i = 0; i < n; i++)
		c->part[i] = (uint32_t)(c->order[i] >> 32);
	const uint32_t score = ISA(kth)(c->part, n, &want);
	for (uint32_t i = 0; i < n; i++) {
		c->part[equals] = (uint32_t)c->order[i];
		equals += c->order[i] >> 32 == score;
	}
	return (uint64_t)score << 32 | ISA(kth)(c->part, equals, &want);
}

/* The same of any number. */
static inline uint64_t least_chosen(struct choice *c, uint32_t n, uint32_t want)
{
	return want == 0 ? UINT64_MAX : want >= n ? 0 : least_of_some(c, n, want);
}

static inline size_t choice_carve(struct carve *at, uint32_t units, struct choice *c)
{
	if (at)
		*c = (struct choice){carve(at, units * sizeof *c->order), carve(at, units * sizeof *c->part)};
	return carve_size(units * sizeof *c->order) + carve_size(units * sizeof *c->part);
}

#endif
