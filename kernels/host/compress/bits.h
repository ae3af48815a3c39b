/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/host/compress/bits.h - numbers in few bits, for pack.c and low.c; see codes.h. */
#ifndef SKV_HOST_FEW_H
#define SKV_HOST_FEW_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float of_bf16(const uint8_t *p)
{
	uint16_t h;
	memcpy(&h, p, sizeof h);
	uint32_t u = (uint32_t)h << 16;
	float x;
	memcpy(&x, &u, sizeof x);
	return x;
}

static inline uint16_t to_bf16(float x)
{
	uint32_t u;
	memcpy(&u, &x, sizeof u);
	return x != x ? (uint16_t)(u >> 16 | 0x40) : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/*
 * A group of n numbers, x_step apart: its scale and least go to `shared`, the numbers into q, where zeros are, at `at` and
 * every q_step numbers from there.
 */
static inline void pack_group(const float *x, uint32_t x_step, uint32_t n, uint32_t bits, uint8_t *shared, uint8_t *q,
                              uint32_t at, uint32_t q_step)
{
	const float top = (float)((1u << bits) - 1);
	float least = x[0], most = x[0];

	for (uint32_t i = 1; i < n; i++) {
		least = x[i * x_step] < least ? x[i * x_step] : least;
		most = x[i * x_step] > most ? x[i * x_step] : most;
	}
	const uint16_t both[2] = {to_bf16((most - least) / top), to_bf16(least)};
	memcpy(shared, both, sizeof both);
	const float scale = of_bf16(shared);
	least = of_bf16(shared + 2);
	for (uint32_t i = 0; i < n; i++, at += q_step) {
		const float y = rintf((x[i * x_step] - least) / scale);
		/* 0 where the scale is, and where something is no number */
		const uint8_t v = y > 0 && scale > 0 ? (uint8_t)(y < top ? y : top) : 0;
		q[at * bits / 8] = (uint8_t)(q[at * bits / 8] | v << at * bits % 8);
	}
}

#endif
