/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/decode/decode-kernel.cuh - the decode kernel whose scores are used while it runs: merging the results of
 * a work item's warps, the kernel, and its launch. See decode.cuh.
 */
#ifndef SKV_CUDA_DECODE_KERNEL_CUH
#define SKV_CUDA_DECODE_KERNEL_CUH

#include "kernels/cuda/runtime/barrier.cuh"
#include "kernels/cuda/decode/parts.cuh"
#include "kernels/cuda/decode/tile.cuh"
#include "kernels/cuda/decode/scores.cuh"

/* ---- results of warps ------------------------------------------------------------------------- */

/* The partial results of a work item's warps: maxima, sums and accumulators with head_dim elements. */
template <int D, enum decode_mode mode> struct warp_results {
	float max[warps<D, mode>][HEAD_TILE], sum[warps<D, mode>][HEAD_TILE];
	float acc[warps<D, mode>][HEAD_TILE][D];
};

template <enum decode_mode mode, class T, int D>
__device__ static void store_warp_result(struct warp_results<D, mode> *r, struct warp_state<T, D> *w,
                                         const struct work_item *j)
{
	const uint32_t g = threadIdx.x % 32 / 4, col = threadIdx.x % 4 * 2;
	const uint32_t heads = j->heads, warp = j->stream;
	total_sums(w);
#pragma unroll
	for (int x = 0; x < 2; x++) {
		const uint32_t head = col + x;
		if (head >= heads)
			continue;
		if (g == 0) {
			r->max[warp][head] = w->max[x];
			r->sum[warp][head] = w->sum[x];
		}
		each_four<T>(w, x, [&](uint32_t d, float4 acc) { *(float4 *)&r->acc[warp][head][d] = acc; });
	}
}

/*
 * Merges the results of an item's warps. Called by one warp once all warps have stored their results. Writes the item's
 * maxima and sums, and the output: the final output if the request has a single chunk, else a partial result.
 */
template <int D, enum decode_mode mode>
__device__ static void merge_warps(const struct decode_params *c, const struct work_item *j,
                                   const struct warp_results<D, mode> *r)
{
	float *part = partial_of(c, j, j->chunk, D);
	for (uint32_t head = 0; head < j->heads; head++) {
		float max = r->max[0][head], sum = 0, fix[warps<D, mode>];
#pragma unroll
		for (int w = 1; w < warps<D, mode>; w++)
			max = fmaxf(max, r->max[w][head]);
#pragma unroll
		for (int w = 0; w < warps<D, mode>; w++) {
			fix[w] = rescale(r->max[w][head], max);
			sum += r->sum[w][head] * fix[w];
		}
		const struct output_row row = output_row_of(c, j, head, D, max, sum);
#pragma unroll
		for (uint32_t d = threadIdx.x % 32 * 4; has_output<mode>(c) && d < D; d += 128) {
			float4 acc = make_float4(0, 0, 0, 0);
#pragma unroll
			for (int w = 0; w < warps<D, mode>; w++) {
				const float4 x = *(const float4 *)&r->acc[w][head][d];
				acc.x += x.x * fix[w];
				acc.y += x.y * fix[w];
				acc.z += x.z * fix[w];
				acc.w += x.w * fix[w];
			}
			if (j->chunks > 1) {
				store16(part + 2 * HEAD_TILE + head * D + d, acc, evict_last_policy());
				continue;
			}
			if (!has_row(c, j))
				continue;
			write_four(c, row, d, acc);
		}
		if (threadIdx.x % 32)
			continue;
		if (j->chunks == 1)
			finish_head(c, j, head, max, sum);
		part[head] = max;
		part[HEAD_TILE + head] = sum;
	}
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* Number of work items of a block whose results may be in flight at a time; shared memory limits it. */
template <int D> static constexpr uint32_t result_buffers = D == 256 ? 2 : 3;

/*
 * The block's shared memory. Each warp goes from work item to work item at its own pace. Before a warp stores its
 * results, it waits until the results of the item that used the buffer before have been merged.
 */
template <int D, enum decode_mode mode> struct decode_smem {
	struct warp_results<D, mode> results[result_buffers<D>];
	uint32_t arrived[result_buffers<D>]; /* number of warps that have stored their results */
	/*
	 * A phase of `shared` ends when all warps have stored their results, a phase of `merged` when these have been
	 * merged.
	 */
	barrier shared[result_buffers<D>], merged[result_buffers<D>];
	struct request_plan plan;
	struct work_item item[warps<D, mode>][2]; /* a warp's current item and its next one */
	struct softmax_stats helper;
};

/* Stores a warp's results of the block's item number `turn`. The last of the block's warps to arrive merges them. */
template <enum decode_mode mode, class T, int D>
__device__ static void submit_result(struct decode_smem<D, mode> *s, struct warp_state<T, D> *w,
                                     const struct decode_params *c, const struct work_item *j, uint32_t turn)
{
	const uint32_t buffer = turn % result_buffers<D>, round = turn / result_buffers<D>;
	uint32_t arrived = 0;
	if (round > 0)
		barrier_wait(&s->merged[buffer], round - 1);
	store_warp_result<mode>(&s->results[buffer], w, j);
	barrier_arrive(&s->shared[buffer]);
	/*
	 * All lanes arrive at the barrier before the warp is counted, so the warp that counts last waits for no other
	 * warp.
	 */
	__syncwarp();
	if (threadIdx.x % 32 == 0)
		arrived = atomicInc(&s->arrived[buffer], warps<D, mode> - 1);
	if (__shfl_sync(~0u, arrived, 0) < warps<D, mode> - 1)
		return;
	barrier_wait(&s->shared[buffer], round);
	merge_warps<D, mode>(c, j, &s->results[buffer]);
	barrier_arrive(&s->merged[buffer]);
	__syncwarp();
	if (threadIdx.x % 32 == 0)
		ring_item_done(c, j->entry);
}

/* Number of threads of a block. The block's last warp is the helper warp, which reduces scores. */
template <int D, enum decode_mode mode> static constexpr int threads = 32 * (warps<D, mode> + 1);

template <class T, int D, enum decode_mode mode>
__global__ void __launch_bounds__(threads<D, mode>, 1)
decode_kernel(const __grid_constant__ struct decode_params c)
{
	SHARED_MEMORY(uint8_t, memory, 128);
	struct decode_smem<D, mode> *s = (struct decode_smem<D, mode> *)memory;
	const uint32_t warp = threadIdx.x / 32;
	struct tile_batch tiles = {}, next_tiles = {};
	struct warp_state<T, D> w;

	if (threadIdx.x < result_buffers<D>) {
		s->arrived[threadIdx.x] = 0;
		barrier_init(&s->shared[threadIdx.x], 32 * warps<D, mode>);
		barrier_init(&s->merged[threadIdx.x], 32);
	}
	make_plan(&c, &s->plan);
	if (warp >= warps<D, mode>) {
		reduce_scores_warp<D, quantized<mode>>(&c, &s->plan, &s->helper);
		return;
	}
	w.once = evict_first_policy();
	bool more = begin_item<D, mode>(&c, &s->plan, 0, &s->item[warp][0]);
	if (more) {
		locate_tiles<D, mode>(&c, &s->item[warp][0], 0, &tiles);
		load_first_tile<mode>(&w, &c, &s->item[warp][0], &tiles);
		load_q<T>(&w, &c, &s->item[warp][0], 0, s->item[warp][0].heads);
	}
	for (uint32_t turn = 0; more; turn++) {
		const struct work_item *j = &s->item[warp][turn % 2];
		struct work_item *next = &s->item[warp][(turn + 1) % 2];
		/* Locating the next item's tiles overlaps with the load of this item's first tile. */
		more = begin_item<D, mode>(&c, &s->plan, turn + 1, next);
		if (more)
			locate_tiles<D, mode>(&c, next, 0, &next_tiles);
		attend_item<mode>(&w, &c, j, &tiles);
		if (more)
			load_first_tile<mode>(&w, &c, next, &next_tiles);
		submit_result<mode>(s, &w, &c, j, turn);
		if (more)
			load_q<T>(&w, &c, next, 0, next->heads);
		tiles = next_tiles;
	}
}

template <class T, int D, enum decode_mode mode> static cudaError_t init_kernel(void)
{
	return cudaFuncSetAttribute(decode_kernel<T, D, mode>, cudaFuncAttributeMaxDynamicSharedMemorySize,
	                            (int)sizeof(struct decode_smem<D, mode>));
}

/* The launch is cooperative because blocks wait for each other: either all blocks are resident at once, or none is. */
template <class T, int D, enum decode_mode mode>
static void launch_kernel(const struct decode_params *c, uint32_t items, cudaStream_t stream)
{
	const uint32_t sms = skv_cuda_sms();
	cudaLaunchAttribute at_once = {};
	cudaLaunchConfig_t config = {};

	at_once.id = cudaLaunchAttributeCooperative;
	at_once.val.cooperative = 1;
	config.gridDim = items < sms ? items : sms;
	config.blockDim = threads<D, mode>;
	config.dynamicSmemBytes = sizeof(struct decode_smem<D, mode>);
	config.stream = stream;
	config.attrs = &at_once;
	config.numAttrs = 1;
	cudaLaunchKernelEx(&config, decode_kernel<T, D, mode>, *c);
}

#endif
