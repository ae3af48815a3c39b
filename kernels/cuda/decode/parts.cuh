/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/decode/parts.cuh - sums of partial results: of warps, of leaves, of groups of these. */
#ifndef SKV_CUDA_DECODE_PARTS_CUH
#define SKV_CUDA_DECODE_PARTS_CUH

#include "kernels/cuda/decode/decode.cuh"

/* A sum of results of one head; of its row, four elements. */
struct part {
	float max, sum;
	float4 acc;
};

/* The sum of n parts, which begin at max, sum and acc and are so many floats apart. */
template <int most> DEVICE struct part add_parts(const float *max, const float *sum, uint32_t stride, const float *acc, uint32_t acc_stride,
                                                 uint32_t n)
{
	struct part r = {-INFINITY, 0, make_float4(0, 0, 0, 0)};
	float fix[most];

#pragma unroll
	for (uint32_t k = 0; k < most; k++)
		fix[k] = k < n ? max[k * stride] : -INFINITY;
#pragma unroll
	for (uint32_t k = 0; k < most; k++)
		r.max = fmaxf(r.max, fix[k]);
#pragma unroll
	for (uint32_t k = 0; k < most; k++) {
		if (k >= n)
			break;
		const float4 x = *(const float4 *)(acc + k * acc_stride);
		const float f = rescale(fix[k], r.max);
		r.sum += sum[k * stride] * f;
		r.acc.x += x.x * f;
		r.acc.y += x.y * f;
		r.acc.z += x.z * f;
		r.acc.w += x.w * f;
	}
	return r;
}

/*
 * What the values of two parts, the earlier one first, are multiplied with before they are added. What is rounded where is said here and
 * not left to the compiler, so that the same parts, added in the same order, have the same bits wherever that is done.
 */
struct part_scale {
	float max, a, b;

	__device__ __forceinline__ float add(float x, float y) const
	{
		return __fmaf_rn(x, a, __fmul_rn(y, b));
	}
};
DEVICE struct part_scale part_scale_of(float max_a, float max_b)
{
	const float max = fmaxf(max_a, max_b);
	return {max, rescale(max_a, max), rescale(max_b, max)};
}

DEVICE struct part add_part(const struct part &a, const struct part &b)
{
	const struct part_scale by = part_scale_of(a.max, b.max);
	return {by.max, by.add(a.sum, b.sum),
	        make_float4(by.add(a.acc.x, b.acc.x), by.add(a.acc.y, b.acc.y), by.add(a.acc.z, b.acc.z), by.add(a.acc.w, b.acc.w))};
}

/* The same of maxima and sums alone. */
DEVICE struct partial_softmax add_part(const struct partial_softmax &a, const struct partial_softmax &b)
{
	const struct part_scale by = part_scale_of(a.max, b.max);
	return {by.max, by.add(a.sum, b.sum)};
}

/*
 * The sum of n >= 1 parts, of `most` at most, a power of two: that of the first half and that of the second, each made likewise,
 * where halves are those of `most`. So any aligned power of two of them may be added before.
 */
template <uint32_t most, class Load> DEVICE auto add_pairs(uint32_t n, Load load, uint32_t first = 0)
{
	if constexpr (most == 1) {
		return load(first);
	} else {
		const auto low = add_pairs<most / 2>(n, load, first);
		return n > first + most / 2 ? add_part(low, add_pairs<most / 2>(n, load, first + most / 2)) : low;
	}
}

/* Four elements of the output, from d on, of the item's q head number `head`. */
DEVICE void write_part(const struct decode_params *c, const struct work_item *j, uint32_t head, uint32_t head_dim, uint32_t d,
                       const struct part &p)
{
	if (!has_row(c, j))
		return;
	const size_t out = output_at(c, j, head, head_dim) + d;
	const float share = head_share(c, j, head, p.max, p.sum);

	io_store(c->io_dtype, c->out, out, p.acc.x * share);
	io_store(c->io_dtype, c->out, out + 1, p.acc.y * share);
	io_store(c->io_dtype, c->out, out + 2, p.acc.z * share);
	io_store(c->io_dtype, c->out, out + 3, p.acc.w * share);
	if (d == 0)
		finish_head(c, j, head, p.max, p.sum);
}

#endif
