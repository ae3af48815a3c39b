/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/decode/decode-kernel.cuh - the results of a job's warps, the kernel, and its launch: see decode.cuh. */
#ifndef SKV_CUDA_DECODE_KERNEL_CUH
#define SKV_CUDA_DECODE_KERNEL_CUH

#include "kernels/cuda/runtime/barrier.cuh"
#include "kernels/cuda/select/topk-stream.cuh"
#include "kernels/cuda/decode/tile.cuh"
#include "kernels/cuda/decode/scores.cuh"

/* ---- results of warps ------------------------------------------------------------------------- */

/* The results of a job's warps: maxima, sums and rows of head_dim. */
template <int D, enum how how> struct results {
	float max[warps<D, how>][HEAD_TILE], sum[warps<D, how>][HEAD_TILE];
	float acc[how == KEYS ? 1 : warps<D, how>][HEAD_TILE][D];
};

template <enum how how, class T, int D>
__device__ static void share(struct results<D, how> *r, struct walk<T, D> *w, const struct job *j)
{
	const uint32_t g = threadIdx.x % 32 / 4, col = threadIdx.x % 4 * 2;
	const uint32_t heads = j->heads, warp = j->stream;
#pragma unroll
	for (int x = 0; x < 2; x++) {
		const uint32_t head = col + x;
		float sum = w->sum[x];
#pragma unroll
		for (int lane = 4; lane < 32; lane *= 2)
			sum += __shfl_xor_sync(~0u, sum, lane);
		if (head >= heads)
			continue;
		if (g == 0) {
			r->max[warp][head] = w->max[x];
			r->sum[warp][head] = sum;
		}
		if (how == KEYS)
			continue;
		float *row = r->acc[warp][head];
#pragma unroll
		for (int b = 0; b < w->WIDE; b++)
#pragma unroll
			for (int a = 0; a < 4; a++)
				*(float2 *)&row[64 * b + 8 * g + 2 * a] =
					make_float2(w->acc[4 * b + a][x], w->acc[4 * b + a][x + 2]);
#pragma unroll
		for (int a = 0; a < 2 * w->REST; a++)
			*(float2 *)&row[64 * w->WIDE + 4 * g + 2 * a] =
				make_float2(w->acc[4 * w->WIDE + a][x], w->acc[4 * w->WIDE + a][x + 2]);
	}
}

/* All warps have shared: the output, where one chunk is all there is, or a partial result. By one warp. */
template <int D, enum how how>
__device__ static void merge_warps(const struct call *c, const struct job *j, const struct results<D, how> *r)
{
	float *part = part_of(c, j, j->chunk, D);
	for (uint32_t head = 0; head < j->heads; head++) {
		const size_t out = ((size_t)c->seq[j->i].row * c->n_heads + j->head + head) * D;
		float max = r->max[0][head], sum = 0, fix[warps<D, how>];
#pragma unroll
		for (int w = 1; w < warps<D, how>; w++)
			max = fmaxf(max, r->max[w][head]);
#pragma unroll
		for (int w = 0; w < warps<D, how>; w++) {
			fix[w] = rescale(r->max[w][head], max);
			sum += r->sum[w][head] * fix[w];
		}
		const float share = sum > 0 ? __fdividef(1, sum) : 0;
#pragma unroll
		for (uint32_t d = threadIdx.x % 32 * 4; has_output<how>(c) && d < D; d += 128) {
			float4 acc = make_float4(0, 0, 0, 0);
#pragma unroll
			for (int w = 0; w < warps<D, how>; w++) {
				const float4 x = *(const float4 *)&r->acc[w][head][d];
				acc.x += x.x * fix[w];
				acc.y += x.y * fix[w];
				acc.z += x.z * fix[w];
				acc.w += x.w * fix[w];
			}
			if (j->chunks > 1) {
				store16(part + 2 * HEAD_TILE + head * D + d, acc, policy_stay());
				continue;
			}
			io_store(c->io_dtype, c->out, out + d, acc.x * share);
			io_store(c->io_dtype, c->out, out + d + 1, acc.y * share);
			io_store(c->io_dtype, c->out, out + d + 2, acc.z * share);
			io_store(c->io_dtype, c->out, out + d + 3, acc.w * share);
		}
		if (threadIdx.x % 32)
			continue;
		if (how != KEYS && j->chunks == 1)
			finish_head(c, j, head, max, sum);
		if (keeps<how> || j->chunks > 1) {
			part[head] = max;
			part[HEAD_TILE + head] = sum;
		}
	}
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* Jobs of a block whose results may be there at a time: what shared memory has room for. */
template <int D, enum how how>
static constexpr uint32_t turns = D == 256 || how >= ROWS ? 2 : 3;

template <enum how how> struct helper_room {};
template <> struct helper_room<KEEP> : stats {};
template <> struct helper_room<LOW_KEEP> : stats {};
template <> struct helper_room<KEYS> : chosen_room {};

/*
 * Warps go from job to job at their own pace. Before one shares its results it waits until those of the job
 * that had their place before have been merged.
 */
template <int D, enum how how> struct shared {
	struct results<D, how> results[turns<D, how>];
	uint32_t come[turns<D, how>]; /* warps that have shared their results, and been counted; ... */
	barrier shared[turns<D, how>], merged[turns<D, how>]; /* ... all of them, and the one that merged */
	struct plan plan;
	/* of a warp's batch and of its next job's first */
	uint32_t places[how >= ROWS ? warps<D, how> : 1][2][BATCH * 16];
	struct job job[warps<D, how>][2]; /* a warp's job and its next one */
	struct helper_room<how> room;
};

/* Share a warp's results of the block's job number `turn`; the last of its warps merges them. */
template <enum how how, class T, int D>
__device__ static void hand_in(struct shared<D, how> *s, struct walk<T, D> *w, const struct call *c,
                               const struct job *j, uint32_t turn)
{
	const uint32_t place = turn % turns<D, how>, round = turn / turns<D, how>;
	uint32_t come = 0;
	if (round > 0)
		barrier_wait(&s->merged[place], round - 1);
	share<how>(&s->results[place], w, j);
	barrier_arrive(&s->shared[place]);
	__syncwarp(); /* all lanes have: so whoever counts last waits for nobody */
	if (threadIdx.x % 32 == 0)
		come = atomicInc(&s->come[place], warps<D, how> - 1);
	if (__shfl_sync(~0u, come, 0) < warps<D, how> - 1)
		return;
	barrier_wait(&s->shared[place], round);
	merge_warps<D, how>(c, j, &s->results[place]);
	barrier_arrive(&s->merged[place]);
	__syncwarp();
	if (keeps<how> && threadIdx.x % 32 == 0)
		slot_job_done(c, j->slot);
}

/* What the block's last warps do instead of reading. */
template <class T, int D, enum how how>
__device__ static void help(const struct call *c, struct shared<D, how> *s)
{
	if constexpr (tells<how>)
		evidence_warp<D, low<how>>(c, &s->plan, &s->room);
	else if constexpr (how == KEYS)
		choosing_team<team<32 * helpers<D, how>, 32 * warps<D, how>, 1>, D>(c, &s->plan, &s->room);
}

template <class T, int D, enum how how>
__global__ void __launch_bounds__(32 * (warps<D, how> + helpers<D, how>), 1)
decode_kernel(const __grid_constant__ struct call c)
{
	extern __shared__ __align__(128) uint8_t memory[];
	struct shared<D, how> *s = (struct shared<D, how> *)memory;
	const uint32_t warp = threadIdx.x / 32;
	const uint32_t places = how >= ROWS ? warp : 0;
	struct tiles tiles = {.rows = s->places[places][0]}, next_tiles = {.rows = s->places[places][1]};
	struct walk<T, D> w;

	if (threadIdx.x < turns<D, how>) {
		s->come[threadIdx.x] = 0;
		barrier_init(&s->shared[threadIdx.x], 32 * warps<D, how>);
		barrier_init(&s->merged[threadIdx.x], 32);
	}
	plan_make(&c, &s->plan);
	if (warp >= warps<D, how>) {
		help<T>(&c, s);
		return;
	}
	w.once = policy_once();
	bool more = job_begin<D, how>(&c, &s->plan, 0, &s->job[warp][0]);
	if (more) {
		look_up<D, how>(&c, &s->job[warp][0], 0, &tiles);
		load_first<how>(&w, &c, &s->job[warp][0], &tiles, 0);
		load_q(&w, &c, &s->job[warp][0]);
	}
	for (uint32_t turn = 0; more; turn++) {
		const struct job *j = &s->job[warp][turn % 2];
		struct job *next = &s->job[warp][(turn + 1) % 2];
		/* while this one's first tile is on its way */
		more = job_begin<D, how>(&c, &s->plan, turn + 1, next);
		if (more)
			look_up<D, how>(&c, next, 0, &next_tiles);
		walk_job<how>(&w, &c, j, &tiles);
		if (more)
			load_first<how>(&w, &c, next, &next_tiles, 0);
		hand_in<how>(s, &w, &c, j, turn);
		if (more)
			load_q(&w, &c, next);
		uint32_t *const rows = tiles.rows;
		tiles = next_tiles;
		next_tiles.rows = rows;
	}
}

template <class T, int D, enum how how> static cudaError_t init(void)
{
	return cudaFuncSetAttribute(decode_kernel<T, D, how>, cudaFuncAttributeMaxDynamicSharedMemorySize,
	                            (int)sizeof(struct shared<D, how>));
}

/* Blocks that wait for each other are launched all at once, or not at all. */
template <class T, int D, enum how how>
static void launch_kernel(const struct call *c, uint32_t jobs, cudaStream_t stream)
{
	const uint32_t sms = skv_cuda_sms();
	cudaLaunchAttribute at_once = {};
	cudaLaunchConfig_t config = {};

	at_once.id = cudaLaunchAttributeCooperative;
	at_once.val.cooperative = 1;
	config.gridDim = jobs < sms ? jobs : sms;
	config.blockDim = 32 * (warps<D, how> + helpers<D, how>);
	config.dynamicSmemBytes = sizeof(struct shared<D, how>);
	config.stream = stream;
	config.attrs = &at_once;
	config.numAttrs = keeps<how>;
	cudaLaunchKernelEx(&config, decode_kernel<T, D, how>, *c);
}

#endif
