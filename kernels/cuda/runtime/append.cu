/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/runtime/append.cu - appends rows of K and V to their pages, and copies pages. */
#include "kernels/cuda/runtime/cuda.h"
#include "kernels/cuda/runtime/fp8.cuh"

#define THREADS 128
#define COPY_PAIRS 256u /* page copies per launch: as many as fit into the kernel's parameters */

struct append_params {
	const struct skv_kseq *seq;
	const uint32_t *slot; /* [seq][kv head] slot of the new token; NULL: its position is its slot */
	const void *k, *v;
	uint8_t *pool;
	size_t page_bytes;
	uint32_t width, head_dim, dtype, io_dtype, layer; /* width: n_kv_heads * head_dim */
	uint32_t k_stride, v_stride; /* elements from one row of k, and of v, to the next */
};

/*
 * Appends a token's K (or V) rows of all kv heads, two elements per thread. The grid is rows of a sequence (x) by
 * sequences (y) by K and V (z).
 */
__global__ void __launch_bounds__(THREADS) append_kernel(const __grid_constant__ struct append_params c)
{
	const struct skv_kseq *s = &c.seq[blockIdx.y];
	if (blockIdx.x >= s->n_q)
		return;
	const skv_pte *table = s->table + (size_t)c.layer * s->layer_stride;
	const uint32_t *slot = c.slot && s->n_q == 1 ? c.slot + (size_t)blockIdx.y * (c.width / c.head_dim) : NULL;
	const void *from = blockIdx.z ? c.v : c.k;
	const size_t row = (size_t)(s->row + blockIdx.x) * (blockIdx.z ? c.v_stride : c.k_stride);

	for (uint32_t e = 2 * threadIdx.x; e < c.width; e += 2 * THREADS) {
		const uint32_t h = e / c.head_dim, token = slot ? slot[h] : s->len - s->n_q + blockIdx.x;
		const skv_pte entry = table[token / SKV_PAGE_TOKENS];
		if (!skv_pte_resident(entry))
			continue;
		uint8_t *page = c.pool + skv_pte_id(entry) * c.page_bytes + (blockIdx.z ? c.page_bytes / 2 : 0);
		const float a = io_load(c.io_dtype, from, row + e), b = io_load(c.io_dtype, from, row + e + 1);
		const size_t at = (size_t)(h * SKV_PAGE_TOKENS + token % SKV_PAGE_TOKENS) * c.head_dim + e % c.head_dim;
		((uint32_t *)page)[at / 2] = c.dtype == SKV_F16 ? F16::pair(a, b) : BF16::pair(a, b);
	}
}

/* Appends a token's K (or V) rows to fp8 pages, a row per warp. The grid is that of append_kernel(). */
__global__ void __launch_bounds__(THREADS) append_fp8_kernel(const __grid_constant__ struct append_params c)
{
	const struct skv_kseq *s = &c.seq[blockIdx.y];
	if (blockIdx.x >= s->n_q)
		return;
	const skv_pte *table = s->table + (size_t)c.layer * s->layer_stride;
	const uint32_t heads = c.width / c.head_dim, rows = 2 * heads * SKV_PAGE_TOKENS;
	const uint32_t *slot = c.slot && s->n_q == 1 ? c.slot + (size_t)blockIdx.y * heads : NULL;
	const void *from = blockIdx.z ? c.v : c.k;
	const size_t in = (size_t)(s->row + blockIdx.x) * (blockIdx.z ? c.v_stride : c.k_stride);

	for (uint32_t h = threadIdx.x / 32; h < heads; h += THREADS / 32) {
		const uint32_t token = slot ? slot[h] : s->len - s->n_q + blockIdx.x;
		const skv_pte entry = table[token / SKV_PAGE_TOKENS];
		if (!skv_pte_resident(entry))
			continue;
		const uint32_t row = (blockIdx.z * heads + h) * SKV_PAGE_TOKENS + token % SKV_PAGE_TOKENS;
		uint8_t *page = c.pool + skv_pte_id(entry) * c.page_bytes;
		store_fp8_row<0>(c.io_dtype, from, in + h * c.head_dim, c.head_dim, page + (size_t)row * c.head_dim,
		                 page + (size_t)rows * c.head_dim + row);
	}
}

void skv_cuda_append(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_slot_mapping *slots,
                     const void *k, const void *v, const struct skv_workspace *work)
{
	const struct append_params c = {
		.seq = b->seq,
		.slot = slots ? slots->slot : NULL,
		.k = k,
		.v = v,
		.pool = sh->pool,
		.page_bytes = sh->page_bytes,
		.width = sh->n_kv_heads * sh->head_dim,
		.head_dim = sh->head_dim,
		.dtype = sh->dtype,
		.io_dtype = sh->io_dtype,
		.layer = sh->layer,
		.k_stride = skv_k_stride(sh),
		.v_stride = skv_v_stride(sh),
	};

	if (sh->sketch_bits && b->n > 0)
		skv_cuda_append_sketches(sh, b, k, v, work);
	else if (b->n > 0 && sh->dtype == SKV_FP8)
		launch_grid(append_fp8_kernel, dim3(b->max_q, b->n, 2), THREADS, 0, stream_of(work), c);
	else if (b->n > 0)
		launch_grid(append_kernel, dim3(b->max_q, b->n, 2), THREADS, 0, stream_of(work), c);
}

struct copy_params {
	uint8_t *pool;
	size_t page_bytes;
	uint32_t dst[COPY_PAIRS], src[COPY_PAIRS];
};

__global__ void __launch_bounds__(THREADS) copy_kernel(const __grid_constant__ struct copy_params c)
{
	uint4 *to = (uint4 *)(c.pool + c.dst[blockIdx.x] * c.page_bytes);
	const uint4 *from = (const uint4 *)(c.pool + c.src[blockIdx.x] * c.page_bytes);

	for (size_t at = threadIdx.x; at < c.page_bytes / sizeof(uint4); at += THREADS)
		to[at] = from[at];
}

void skv_cuda_copy_pages(const struct skv_shape *sh, const uint32_t *dst, const uint32_t *src, uint32_t n,
                         const struct skv_workspace *work)
{
	struct copy_params c = {.pool = sh->pool, .page_bytes = sh->page_bytes};

	for (uint32_t from = 0; from < n; from += COPY_PAIRS) {
		const uint32_t now = n - from < COPY_PAIRS ? n - from : COPY_PAIRS;
		for (uint32_t i = 0; i < now; i++) {
			c.dst[i] = dst[from + i];
			c.src[i] = src[from + i];
		}
		launch_grid(copy_kernel, now, THREADS, 0, stream_of(work), c);
	}
}
