/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cuda/select/select.cu - the top-k of each list: a block takes a list (topk.cuh). */
#include "kernels/cuda/runtime/cuda.h"
#include "kernels/cuda/select/topk.cuh"

#define THREADS 512

struct select_params {
	const struct skv_kseq *seq;
	struct skv_scores ev;
	struct skv_select select;
	struct skv_index_list list;
	uint32_t layer;
	bool tokens, shared; /* keys are in shared memory */
	bool quantized; /* tokens before kseq.coded are quantized and resident, whatever the table says */
};

/* The key of id u, which may be past the end. Pages below `n_quantized_pages` are resident. */
DEVICE uint32_t read_key(const struct select_params *c, const struct skv_topk_counts *x, const skv_pte *table,
                         uint32_t n_quantized_pages, const float *score, uint32_t u)
{
	const uint32_t page = c->tokens ? u / SKV_PAGE_TOKENS : u;
	if (u >= x->n)
		return 0;
	return topk_key(x, u, page < n_quantized_pages || skv_pte_resident(table[page]), score[u]);
}

__global__ void __launch_bounds__(THREADS) select_kernel(const __grid_constant__ struct select_params c)
{
	extern __shared__ uint4 shared_keys[];
	__shared__ struct topk_smem smem;
	typedef team<THREADS, 0, 0> all;
	const uint32_t i = blockIdx.y, list = i * c.ev.rows + blockIdx.x;
	const struct skv_kseq *s = &c.seq[i];
	const skv_pte *table = s->table + (size_t)c.layer * s->layer_stride;
	const uint32_t n_quantized_pages = c.quantized ? s->n_compressed / SKV_PAGE_TOKENS : 0;
	float *const all_scores = c.tokens ? c.ev.token : c.ev.page;
	float *const score = all_scores + (size_t)list * (c.tokens ? c.ev.token_stride : c.ev.page_stride);
	uint32_t *key = c.shared ? (uint32_t *)shared_keys : (uint32_t *)score; /* else in place */
	const struct skv_topk_counts x = topk_counts_of(&c.select, c.tokens, s->len);

	clear_bins<all>(&smem);
	for (uint32_t u = KEY_QUAD * threadIdx.x; u < x.n; u += KEY_QUAD * THREADS) {
		uint32_t k[KEY_QUAD];
#pragma unroll
		for (uint32_t y = 0; y < KEY_QUAD; y++)
			k[y] = read_key(&c, &x, table, n_quantized_pages, score, u + y);
		put_keys(&smem, key, u, make_uint4(k[0], k[1], k[2], k[3]));
	}
	const uint32_t count = select_topk<all>(key, &x, &smem, c.list.ids + (size_t)list * c.list.stride);
	if (threadIdx.x == 0)
		c.list.count[list] = count;
}

cudaError_t skv_cuda_select_init(void)
{
	return cudaFuncSetAttribute(select_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, KEY_BYTES);
}

void skv_cuda_select(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_scores *ev,
                     bool tokens,
                     const struct skv_select *select, struct skv_index_list *list, const struct skv_workspace *work)
{
	const uint32_t units = tokens ? b->max_len : skv_pages_of(b->max_len);

	list->max_count = max_selected(select, units);
	const struct select_params c = {
		.seq = b->seq,
		.ev = *ev,
		.select = *select,
		.list = *list,
		.layer = sh->layer,
		.tokens = tokens,
		.shared = keys_fit_shared(units),
		.quantized = sh->codec && sh->codec->kind == SKV_COMPRESS_QUANT,
	};

	if (b->n > 0)
		select_kernel<<<dim3(ev->rows, b->n), THREADS, c.shared ? key_bytes(units) : 0, stream_of(work)>>>(c);
}
