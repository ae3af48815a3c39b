/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/compress/bits.h - quantizes a scale block (numbers that share a scale), for compress.c and quantize.c;
 * see kernels/compress.h.
 */
#ifndef SKV_HOST_BITS_H
#define SKV_HOST_BITS_H

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
 * Quantizes a scale block of n numbers, which are x_step elements apart. The block's scale and zero point are written
 * to `scales`. The quantized numbers are written to elements at, at + q_step, at + 2 q_step … of q, which the caller
 * must have set to zero.
 */
static inline void quantize_block(const float *x, uint32_t x_step, uint32_t n, uint32_t bits, uint8_t *scales, uint8_t *q,
                              uint32_t at, uint32_t q_step)
{
	const float top = (float)((1u << bits) - 1);
	float zero = x[0], most = x[0];

	for (uint32_t i = 1; i < n; i++) {
		zero = x[i * x_step] < zero ? x[i * x_step] : zero;
		most = x[i * x_step] > most ? x[i * x_step] : most;
	}
	const uint16_t both[2] = {to_bf16((most - zero) / top), to_bf16(zero)};
	memcpy(scales, both, sizeof both);
	const float scale = of_bf16(scales);
	zero = of_bf16(scales + 2);
	for (uint32_t i = 0; i < n; i++, at += q_step) {
		const float y = rintf((x[i * x_step] - zero) / scale);
		/* the quantized number is 0 if the scale is 0, and for a NaN */
		const uint8_t v = y > 0 && scale > 0 ? (uint8_t)(y < top ? y : top) : 0;
		q[at * bits / 8] = (uint8_t)(q[at * bits / 8] | v << at * bits % 8);
	}
}

#endif
