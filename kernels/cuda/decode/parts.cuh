/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/decode/parts.cuh - adding partial results of attention (maximum, sum, weighted V), in a fixed order. */
#ifndef SKV_CUDA_DECODE_PARTS_CUH
#define SKV_CUDA_DECODE_PARTS_CUH

#include "kernels/cuda/decode/decode.cuh"

/* A partial result of one head: maximum, sum of weights, and four elements of the weighted sum of V. */
struct part {
	float max, sum;
	float4 acc;
};

/*
 * The factors by which two partial results, the earlier one first, are rescaled before they are added. Rounding is
 * explicit here and not left to the compiler, so that the same parts added in the same order have the same bits
 * everywhere.
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

/* Adds two partial results that consist of maximum and sum alone. */
DEVICE struct partial_softmax add_part(const struct partial_softmax &a, const struct partial_softmax &b)
{
	const struct part_scale by = part_scale_of(a.max, b.max);
	return {by.max, by.add(a.sum, b.sum)};
}

/*
 * Returns the sum of parts first, first + 1, ... n - 1, but at most `most` of them, a power of two: the sum of the
 * first half plus the sum of the second half, each computed in the same way. Halves are those of `most`, not of n, so
 * any aligned power of two of the parts may be added beforehand.
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

/*
 * Returns the sum of the first min(n, MERGE_PARTS) partial results at `from`, `stride` floats apart: for one head,
 * elements `at` to `at` + 3 of the accumulators. Loads bypass the L1 cache, because other blocks of the same launch may
 * have written the results.
 */
DEVICE struct part add_parts_at(const float *from, uint32_t stride, uint32_t n, uint32_t head, uint32_t at)
{
	struct part p[MERGE_PARTS];
#pragma unroll
	for (uint32_t k = 0; k < MERGE_PARTS; k++) { /* issues all loads before the first result is used */
		const float *one = from + (size_t)k * stride;
		if (k < n)
			p[k] = {__ldcg(one + head), __ldcg(one + HEAD_TILE + head), __ldcg((const float4 *)(one + 2 * HEAD_TILE + at))};
	}
	return add_pairs<MERGE_PARTS>(n, [&](uint32_t k) { return p[k]; });
}

/*
 * A head's output row: the index of its first element in `out`, and the factor that turns a weighted sum into output.
 */
struct output_row {
	size_t at;
	float share;
};
DEVICE struct output_row output_row_of(const struct decode_params *c, const struct work_item *j, uint32_t head, uint32_t head_dim, float max,
                                       float sum)
{
	return {output_at(c, j, head, head_dim), head_share(c, j, head, max, sum)};
}

/* Writes elements d to d + 3 of a head's weighted sum to its output. */
DEVICE void write_four(const struct decode_params *c, const struct output_row &row, uint32_t d, float4 acc)
{
	io_store4(c->io_dtype, c->out, row.at + d, make_float4(acc.x * row.share, acc.y * row.share, acc.z * row.share, acc.w * row.share));
}

/*
 * Writes four elements of a head's complete sum to its output. The thread with the first elements also writes the
 * log-sum-exp.
 */
DEVICE void write_part(const struct decode_params *c, const struct work_item *j, uint32_t head, uint32_t head_dim, uint32_t d,
                       const struct part &p)
{
	if (!has_row(c, j))
		return;
	write_four(c, output_row_of(c, j, head, head_dim, p.max, p.sum), d, p.acc);
	if (d == 0)
		finish_head(c, j, head, p.max, p.sum);
}

#endif
