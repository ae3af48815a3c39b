/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/decode/merge.cu - the split-KV merge: computes one output from the partial results of a request's work
 * items.
 */
#include "kernels/cuda/decode/parts.cuh"
#include "kernels/cuda/runtime/overlap.cuh"

/* ---- chunks, where scores are written -------------------------------------------------------- */

#define MERGE_WIDE 128 /* threads of a block in x, each of which adds four dimensions */
#define MERGE_DEEP 4   /* threads of a block in y, each of which adds every MERGE_DEEPth chunk */

/* Returns the largest of a head's maxima over the chunks of a request; called by one warp. */
DEVICE float max_of_chunks(const float *part, uint32_t stride, uint32_t chunks, uint32_t head)
{
	float max = -INFINITY;
	for (uint32_t k = threadIdx.x % 32; k < chunks; k += 32)
		max = fmaxf(max, part[(size_t)k * stride + head]);
#pragma unroll
	for (int lane = 1; lane < 32; lane *= 2)
		max = fmaxf(max, __shfl_xor_sync(~0u, max, lane));
	return max;
}

/*
 * Merges the chunks of a head tile, if there are several: a head's output is Σ fix acc / Σ fix sum, where `fix`
 * rescales a chunk to the common maximum.
 */
__global__ void __launch_bounds__(MERGE_WIDE * MERGE_DEEP)
merge_kernel(const __grid_constant__ struct decode_params c, uint32_t head_dim)
{
	__shared__ float max_of_head[HEAD_TILE], fix[MAX_CHUNKS][HEAD_TILE], sums[MERGE_DEEP][HEAD_TILE];
	__shared__ float4 accs[MERGE_DEEP][MERGE_WIDE];
	const uint32_t stride = partial_floats(c.tile_heads, head_dim), me = threadIdx.y * MERGE_WIDE + threadIdx.x;
	struct work_item j;

	head_tile(&c, blockIdx.y, blockIdx.x, &j);
	j.chunks = n_chunks(request_tiles(&c, j.i * c.list.rows + j.x / c.request_head_tiles));
	if (j.chunks == 1)
		return;
	const float *part = partial_of(&c, &j, 0, head_dim);
	for (uint32_t head = me / 32; head < j.heads; head += MERGE_WIDE * MERGE_DEEP / 32) {
		const float max = max_of_chunks(part, stride, j.chunks, head);
		if (me % 32 == 0)
			max_of_head[head] = max;
	}
	__syncthreads();
	for (uint32_t x = me; x < j.chunks * HEAD_TILE; x += MERGE_WIDE * MERGE_DEEP)
		if (x % HEAD_TILE < j.heads)
			fix[x / HEAD_TILE][x % HEAD_TILE] =
				rescale(part[x / HEAD_TILE * stride + x % HEAD_TILE], max_of_head[x % HEAD_TILE]);
	for (uint32_t first = 0; first < j.heads * head_dim; first += 4 * MERGE_WIDE) {
		const uint32_t e = first + 4 * threadIdx.x, head = min(e / head_dim, j.heads - 1);
		const bool inside = e < j.heads * head_dim;
		float4 acc = make_float4(0, 0, 0, 0);
		float sum = 0;
		__syncthreads();
#pragma unroll
		for (uint32_t k = threadIdx.y; k < MAX_CHUNKS; k += MERGE_DEEP) {
			if (k >= j.chunks)
				break;
			const float *p = part + (size_t)k * stride, f = fix[k][head];
			sum += p[HEAD_TILE + head] * f;
			if (!c.out)
				continue;
			const float4 x = *(const float4 *)(p + 2 * HEAD_TILE + (inside ? e : 0));
			acc.x += x.x * f;
			acc.y += x.y * f;
			acc.z += x.z * f;
			acc.w += x.w * f;
		}
		accs[threadIdx.y][threadIdx.x] = acc;
		if (inside && e % head_dim == 0)
			sums[threadIdx.y][head] = sum;
		__syncthreads();
		if (threadIdx.y || !inside)
			continue;
		sum = 0;
		acc = make_float4(0, 0, 0, 0);
#pragma unroll
		for (int y = 0; y < MERGE_DEEP; y++) {
			const float4 x = accs[y][threadIdx.x];
			sum += sums[y][head];
			acc.x += x.x;
			acc.y += x.y;
			acc.z += x.z;
			acc.w += x.w;
		}
		if (e % head_dim == 0)
			finish_head(&c, &j, head, max_of_head[head], sum);
		if (!c.out)
			continue;
		write_four(&c, output_row_of(&c, &j, head, head_dim, max_of_head[head], sum), e % head_dim, acc);
	}
}

/* ---- leaves ---------------------------------------------------------------------------------- */

#define MERGE_ROWS 8u /* max rows of threads (y), among which the parts of a head are divided */
#define MERGE_THREADS 512u

/*
 * Sums of rounds of parts. bit[k] is a sum of 2^k rounds, valid for each bit k that is set in the number of rounds so
 * far.
 */
struct sum_of_rounds {
	struct part bit[20];
};

/* Adds round number r of parts to the sums; rounds are added in ascending order. */
DEVICE void add_round(struct sum_of_rounds *s, uint32_t r, struct part p)
{
	uint32_t k = 0;
	for (; r >> k & 1; k++)
		p = add_part(s->bit[k], p);
	s->bit[k] = p;
}

/* Returns the sum of all n rounds, added in the order of add_pairs(). */
DEVICE struct part all_rounds(const struct sum_of_rounds *s, uint32_t n)
{
	uint32_t k = __ffs(n) - 1;
	struct part p = s->bit[k];
	while (++k < 20 && n >> k)
		if (n >> k & 1)
			p = add_part(s->bit[k], p);
	return p;
}

/*
 * Merges the partial results of a request's work items. A block merges some heads of a head tile (y) of a sequence (z).
 * A thread adds four dimensions (x) of some of the parts (y) of a head (z). There are only as many rows of threads (y)
 * as the longest request has parts for.
 */
__global__ void __launch_bounds__(MERGE_THREADS) merge_leaves_kernel(const __grid_constant__ struct decode_params c)
{
	__shared__ struct part sums[MERGE_THREADS];
	const uint32_t head_dim = blockDim.x * 4, rows = blockDim.y, head = blockIdx.x * blockDim.z + threadIdx.z;
	const uint32_t d = threadIdx.x * 4, stride = partial_floats(c.tile_heads, head_dim);
	struct part *const own = sums + (threadIdx.z * rows) * blockDim.x + threadIdx.x;
	struct work_item j;
	struct sum_of_rounds all;
	uint32_t rounds = 0;

	head_tile(&c, blockIdx.z, blockIdx.y, &j);
	await_previous();
	let_next_begin();
	const uint32_t parts = n_items(&c, request_tiles(&c, j.i * c.list.rows + j.x / c.request_head_tiles));
	if (parts == 1)
		return;
	const float *part = partial_of(&c, &j, 0, head_dim);
	for (uint32_t from = 0; from < parts; from += MERGE_ROWS * MERGE_PARTS) {
		const uint32_t mine = from + threadIdx.y * MERGE_PARTS;
		if (mine < parts && head < j.heads)
			own[threadIdx.y * blockDim.x] = add_parts_at(part + (size_t)mine * stride, stride, parts - mine, head,
			                                             head * head_dim + d);
		__syncthreads();
		if (threadIdx.y == 0)
			add_round(&all, rounds++, add_pairs<MERGE_ROWS>(n_units(parts - from, MERGE_PARTS),
			                                                [&](uint32_t y) { return own[y * blockDim.x]; }));
		__syncthreads();
	}
	if (threadIdx.y == 0 && head < j.heads)
		write_part(&c, &j, head, head_dim, d, all_rounds(&all, rounds));
}

void skv_cuda_merge(const struct decode_params *c, uint32_t n, uint32_t max_parts, uint32_t head_dim, cudaStream_t stream)
{
	const uint32_t heads = min(c->tile_heads, c->columns), wide = head_dim / 4;

	if (!c->by.item_runs) {
		launch_grid(merge_kernel, dim3(c->heads, n), dim3(MERGE_WIDE, MERGE_DEEP), 0, stream, *c, head_dim);
		return;
	}
	const uint32_t rows = min(MERGE_ROWS, ceil_div(max_parts, MERGE_PARTS)), together = min(heads, MERGE_THREADS / 2 / (wide * rows));
	const uint32_t block_heads = together ? together : 1;
	launch_overlapped(merge_leaves_kernel, *c, dim3(ceil_div(heads, block_heads), c->heads, n), dim3(wide, rows, block_heads), 0, 0, stream);
}
