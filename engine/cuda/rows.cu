/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/cuda/rows.cu - see rows.h. Each is a pass over rows that lie in the second cache, a few microseconds: what
 * counts is how many there are of them, so what belongs together is one kernel. A row is summed up in an order of its
 * own, whatever is beside it: what it gives does not depend on the batch.
 */
#include <cuda_bf16.h>
#include "engine/cuda/rows.h"

#define THREADS 256u
#define WARP 32u

template <typename T> static __device__ T narrowed(float x);
template <> __device__ float narrowed<float>(float x)
{
	return x;
}
template <> __device__ __nv_bfloat16 narrowed<__nv_bfloat16>(float x)
{
	return __float2bfloat16_rn(x);
}

static __device__ float widened(float x)
{
	return x;
}
static __device__ float widened(__nv_bfloat16 x)
{
	return __bfloat162float(x);
}

static uint32_t blocks_of(uint32_t n, uint32_t per)
{
	return (n + per - 1) / per;
}

/* ---- weights --------------------------------------------------------------------------------- */

template <typename T> static __global__ void fill(T *to, size_t n, float scale, uint32_t seed)
{
	for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * THREADS)
		to[i] = narrowed<T>(eng_random_weight(seed, i) * scale);
}

void eng_cuda_fill(cudaStream_t stream, void *to, size_t n, uint32_t dtype, float scale, uint32_t seed)
{
	if (dtype == SKV_BF16)
		fill<<<4096, THREADS, 0, stream>>>((__nv_bfloat16 *)to, n, scale, seed);
	else
		fill<<<4096, THREADS, 0, stream>>>((float *)to, n, scale, seed);
}

/* ---- what comes in --------------------------------------------------------------------------- */

template <typename T>
static __global__ void embed(float *x, const T *embedding, const int32_t *id, uint32_t n)
{
	const T *from = embedding + (size_t)id[blockIdx.x] * n;
	float *to = x + (size_t)blockIdx.x * n;
	for (uint32_t i = threadIdx.x; i < n; i += THREADS)
		to[i] = widened(from[i]);
}

void eng_cuda_embed(cudaStream_t stream, float *x, const void *embedding, uint32_t dtype, const int32_t *id,
                    uint32_t rows, uint32_t n)
{
	if (dtype == SKV_BF16)
		embed<<<rows, THREADS, 0, stream>>>(x, (const __nv_bfloat16 *)embedding, id, n);
	else
		embed<<<rows, THREADS, 0, stream>>>(x, (const float *)embedding, id, n);
}

/* ---- sum and norm ---------------------------------------------------------------------------- */

#define NORM_THREADS 512u

/* The sum over the block, of at most NORM_THREADS, in whole warps; in every thread. */
static __device__ float block_sum(float x)
{
	__shared__ float of_warp[NORM_THREADS / WARP];
	const uint32_t lane = threadIdx.x % WARP;
	for (uint32_t d = WARP / 2; d; d /= 2)
		x += __shfl_xor_sync(~0u, x, d);
	if (lane == 0)
		of_warp[threadIdx.x / WARP] = x;
	__syncthreads();
	x = lane < blockDim.x / WARP ? of_warp[lane] : 0;
	for (uint32_t d = WARP / 2; d; d /= 2)
		x += __shfl_xor_sync(~0u, x, d);
	return x;
}

template <typename T>
static __global__ void add_norm(T *out, float *x, const float *y, const float *weight, float eps, const uint32_t *from,
                                uint32_t n)
{
	const size_t at = (size_t)(from ? from[blockIdx.x] : blockIdx.x) * n;
	T *to = out + (size_t)blockIdx.x * n;
	float sum = 0;
	for (uint32_t i = threadIdx.x; i < n; i += NORM_THREADS) {
		float e = x[at + i];
		if (y) {
			e += y[at + i];
			x[at + i] = e; /* the same thread reads it below */
		}
		sum += e * e;
	}
	const float scale = 1 / sqrtf(block_sum(sum) / (float)n + eps);
	for (uint32_t i = threadIdx.x; i < n; i += NORM_THREADS)
		to[i] = narrowed<T>(x[at + i] * scale * weight[i]);
}

void eng_cuda_add_norm(cudaStream_t stream, void *out, uint32_t dtype, float *x, const float *y, const float *weight,
                       float eps, const uint32_t *from, uint32_t rows, uint32_t n)
{
	if (dtype == SKV_BF16)
		add_norm<<<rows, NORM_THREADS, 0, stream>>>((__nv_bfloat16 *)out, x, y, weight, eps, from, n);
	else
		add_norm<<<rows, NORM_THREADS, 0, stream>>>((float *)out, x, y, weight, eps, from, n);
}

/* ---- products -------------------------------------------------------------------------------- */

static __global__ void repeat(float *y, const float *bias, uint32_t n)
{
	const uint32_t i = blockIdx.y * THREADS + threadIdx.x;
	if (i < n)
		y[(size_t)blockIdx.x * n + i] = bias[i];
}

void eng_cuda_repeat(cudaStream_t stream, float *y, const float *bias, uint32_t rows, uint32_t n)
{
	const dim3 grid(rows, blocks_of(n, THREADS));
	repeat<<<grid, THREADS, 0, stream>>>(y, bias, n);
}

/* ---- heads ----------------------------------------------------------------------------------- */

/*
 * A block, of whole warps, takes one head of one row, a thread a pair: (a, b), normed where the model has that, becomes
 * (a cos − b sin, b cos + a sin), or stays as it was, of v.
 */
template <typename T>
static __global__ void rope_split(T *q, T *k, T *v, const float *qkv, struct eng_heads heads, const float *table,
                                  const uint32_t *position)
{
	const uint32_t row = blockIdx.x, head = blockIdx.y, d = heads.head_dim, i = threadIdx.x;
	const uint32_t nq = heads.n_heads, nkv = heads.n_kv_heads;
	const float *from = qkv + ((size_t)row * (nq + 2 * nkv) + head) * d;
	const float *angles = table + (size_t)position[row] * d;
	const bool mine = i < d / 2;
	float a = mine ? from[i] : 0, b = mine ? from[d / 2 + i] : 0;
	T *to;
	if (head < nq)
		to = q + ((size_t)row * nq + head) * d;
	else if (head < nq + nkv)
		to = k + ((size_t)row * nkv + head - nq) * d;
	else
		to = v + ((size_t)row * nkv + head - nq - nkv) * d;
	const float *norm = head < nq ? heads.q_norm : head < nq + nkv ? heads.k_norm : NULL;
	if (norm) {
		const float scale = 1 / sqrtf(block_sum(a * a + b * b) / (float)d + heads.eps);
		a *= mine ? scale * norm[i] : 0;
		b *= mine ? scale * norm[d / 2 + i] : 0;
	}
	if (!mine)
		return; /* beyond the sum, for which the whole block is needed */
	if (head < nq + nkv) {
		const float c = angles[i], s = angles[d / 2 + i], turned = a * c - b * s;
		b = b * c + a * s;
		a = turned;
	}
	to[i] = narrowed<T>(a);
	to[d / 2 + i] = narrowed<T>(b);
}

void eng_cuda_rope_split(cudaStream_t stream, void *q, void *k, void *v, uint32_t dtype, const float *qkv,
                         const struct eng_heads *heads, const float *table, const uint32_t *position, uint32_t rows)
{
	const dim3 grid(rows, heads->n_heads + 2 * heads->n_kv_heads);
	const uint32_t threads = blocks_of(heads->head_dim / 2, WARP) * WARP;
	if (dtype == SKV_BF16)
		rope_split<<<grid, threads, 0, stream>>>((__nv_bfloat16 *)q, (__nv_bfloat16 *)k, (__nv_bfloat16 *)v,
		                                         qkv, *heads, table, position);
	else
		rope_split<<<grid, threads, 0, stream>>>((float *)q, (float *)k, (float *)v, qkv, *heads, table,
		                                         position);
}

/* ---- feed-forward ---------------------------------------------------------------------------- */

template <typename T> static __global__ void swiglu(T *y, const float *gate_up, uint32_t n)
{
	const uint32_t i = blockIdx.y * THREADS + threadIdx.x;
	const float *gate = gate_up + (size_t)blockIdx.x * 2 * n;
	if (i >= n)
		return;
	/* e^-g is infinite for g below -88: silu is then -0, as it nearly is */
	y[(size_t)blockIdx.x * n + i] = narrowed<T>(gate[i] / (1 + expf(-gate[i])) * gate[n + i]);
}

void eng_cuda_swiglu(cudaStream_t stream, void *y, uint32_t dtype, const float *gate_up, uint32_t rows, uint32_t n)
{
	const dim3 grid(rows, blocks_of(n, THREADS));
	if (dtype == SKV_BF16)
		swiglu<<<grid, THREADS, 0, stream>>>((__nv_bfloat16 *)y, gate_up, n);
	else
		swiglu<<<grid, THREADS, 0, stream>>>((float *)y, gate_up, n);
}

/* ---- what comes out -------------------------------------------------------------------------- */

#define CHOOSE_THREADS 1024u

struct best {
	float logit;
	uint32_t id;
};

static __device__ struct best better(struct best a, struct best b)
{
	return b.logit > a.logit || (b.logit == a.logit && b.id < a.id) ? b : a;
}

static __device__ struct best best_of_warp(struct best a)
{
	for (uint32_t d = WARP / 2; d; d /= 2) {
		struct best b = {__shfl_xor_sync(~0u, a.logit, d), __shfl_xor_sync(~0u, a.id, d)};
		a = better(a, b);
	}
	return a;
}

static __global__ void choose(int32_t *id, uint32_t *position, const float *logits, uint32_t vocab)
{
	__shared__ struct best of_warp[CHOOSE_THREADS / WARP];
	const float *row = logits + (size_t)blockIdx.x * vocab;
	struct best b = {-INFINITY, vocab};
#pragma unroll 8
	for (uint32_t i = threadIdx.x; i < vocab; i += CHOOSE_THREADS)
		b = better(b, {row[i], i});
	b = best_of_warp(b);
	if (threadIdx.x % WARP == 0)
		of_warp[threadIdx.x / WARP] = b;
	__syncthreads();
	if (threadIdx.x < WARP) {
		b = best_of_warp(of_warp[threadIdx.x]);
		if (threadIdx.x == 0) {
			id[blockIdx.x] = b.id < vocab ? (int32_t)b.id : 0; /* nothing but NaN: an id all the same */
			position[blockIdx.x]++;
		}
	}
}

void eng_cuda_choose(cudaStream_t stream, int32_t *id, uint32_t *position, const float *logits, uint32_t rows,
                     uint32_t vocab)
{
	choose<<<rows, CHOOSE_THREADS, 0, stream>>>(id, position, logits, vocab);
}
