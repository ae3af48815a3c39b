/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/runtime/fp8.h - fp8 rows: e4m3 elements with a power-of-two scale per row (SKV_FP8 in types.h).
 */
#ifndef SKV_HOST_FP8_H
#define SKV_HOST_FP8_H

#include "kernels/host/runtime/host.h"
#include "kernels/host/runtime/simd.h"

#define FP8_NAN_SCALE 255u /* scale of a row that is all NaN: infinity as a float; the elements are stored as 0 */

/*
 * How elements are rounded: FP8_NEAREST to nearest even, or FP8_UP, so that no number becomes smaller: positive numbers
 * are rounded away from zero, negative ones towards zero.
 */
enum fp8_rounding { FP8_NEAREST, FP8_UP };

/*
 * Stores VL numbers of magnitude up to 448 as e4m3. Rounding adds to the float's bits below e4m3's mantissa; a carry
 * goes into the exponent.
 */
INLINE void v_store_fp8(uint8_t *p, vf x, const enum fp8_rounding rounding)
{
	const vi bits = (vi)x, sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;
	/*
	 * below 2^-6 the last bit of e4m3 is worth 2^-9, as the last bit of a float from 2^14 on: the addition rounds
	 * to it
	 */
	const vf fine = (vf)size + 0x1p14f;
	vi normal, small = (vi)fine - (vi)v_set(0x1p14f);

	if (rounding == FP8_NEAREST) {
		normal = size + 0x7ffff + (size >> 20 & 1);
	} else {
		const vi up = ~(bits >> 31);
		const vf was = fine - 0x1p14f;
		normal = size + (up & 0xfffff);
		small += (was < (vf)size) & up & 1;
		small -= (was > (vf)size) & ~up & 1;
	}
	const vi is_small = size < 121 << 23;
	v_store_u8(p, sign | (small & is_small) | (((normal >> 20) - (120 << 3)) & ~is_small));
}

/*
 * Returns the scale of a row for fp8. The scale makes the row's largest element more than 224 and at most 448, the
 * largest number of e4m3. So a row that was read from fp8 gets the same encoding again. A row with elements that are
 * not finite, or of 2^120 or more, gets FP8_NAN_SCALE.
 */
INLINE uint8_t fp8_scale_of(const float *row, uint32_t dim)
{
	vi most = {0};
	int32_t top = 0;

	for (uint32_t d = 0; d < dim; d += VL) { /* elements are compared as integers, so that a NaN is the largest */
		const vi size = (vi)v_loadf(row + d) & 0x7fffffff, larger = size > most;
		most = (size & larger) | (most & ~larger);
	}
	for (int i = 0; i < VL; i++)
		top = most[i] > top ? most[i] : top;
	if (top >= (127 + 120) << 23)
		return FP8_NAN_SCALE;
	top = (top + 0x1fffff) >> 23; /* the exponent of the largest element, plus one if its mantissa is above 1.75 */
	return top > 9 ? (uint8_t)(top - 8) : 1;
}

/* Stores a row of floats as fp8, and the row's scale. */
INLINE void store_fp8_row(const struct skv_shape *sh, uint8_t *to, const float *row, const enum fp8_rounding rounding)
{
	const uint8_t scale = fp8_scale_of(row, sh->head_dim);
	const uint32_t bits = (254u - scale) << 23;
	float inverse;

	*skv_row_scale(sh, to) = scale;
	if (scale == FP8_NAN_SCALE) {
		memset(to, 0, sh->head_dim);
		return;
	}
	memcpy(&inverse, &bits, sizeof inverse);
	for (uint32_t d = 0; d < sh->head_dim; d += VL)
		v_store_fp8(to + d, v_loadf(row + d) * inverse, rounding);
}
#endif
