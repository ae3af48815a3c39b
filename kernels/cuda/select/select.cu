/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/select.cu - the best units of each list: a block takes a list (select.cuh).
 */
#include "kernels/cuda/runtime/cuda.h"
#include "kernels/cuda/select/topk.cuh"

#define THREADS 512

struct call {
	const struct skv_kseq *seq;
	struct skv_evidence ev;
	struct skv_select select;
	struct skv_list list;
	uint32_t layer;
	bool tokens, shared; /* of keys: in shared memory */
	bool packs; /* tokens before kseq.coded are there, whatever the table says */
};

/* The key of unit u, which may be past the end. Pages below `packed` are there. */
DEVICE uint32_t read_key(const struct call *c, const struct skv_topk_counts *x, const skv_pte *table, uint32_t packed,
                         const float *score, uint32_t u)
{
	const uint32_t page = c->tokens ? u / SKV_PAGE_TOKENS : u;
	if (u >= x->n)
		return 0;
	return key_of(x, u, page < packed || skv_pte_resident(table[page]), score[u]);
}

__global__ void __launch_bounds__(THREADS) select_kernel(const __grid_constant__ struct call c)
{
	extern __shared__ uint4 shared_keys[];
	__shared__ struct select_room room;
	typedef team<THREADS, 0, 0> all;
	const uint32_t i = blockIdx.y, list = i * c.ev.rows + blockIdx.x;
	const struct skv_kseq *s = &c.seq[i];
	const skv_pte *table = s->table + (size_t)c.layer * s->layer_stride;
	const uint32_t packed = c.packs ? s->coded / SKV_PAGE_TOKENS : 0;
	float *const all_scores = c.tokens ? c.ev.token : c.ev.page;
	float *const score = all_scores + (size_t)list * (c.tokens ? c.ev.token_stride : c.ev.page_stride);
	uint32_t *key = c.shared ? (uint32_t *)shared_keys : (uint32_t *)score; /* else in place */
	const struct skv_topk_counts x = choice_of(&c.select, c.tokens, s->len);

	count_clear<all>(&room);
	for (uint32_t u = KEY_QUAD * threadIdx.x; u < x.n; u += KEY_QUAD * THREADS) {
		uint32_t k[KEY_QUAD];
#pragma unroll
		for (uint32_t y = 0; y < KEY_QUAD; y++)
			k[y] = read_key(&c, &x, table, packed, score, u + y);
		keep_keys(&room, key, u, make_uint4(k[0], k[1], k[2], k[3]));
	}
	const uint32_t count = choose<all>(key, &x, &room, c.list.ids + (size_t)list * c.list.stride);
	if (threadIdx.x == 0)
		c.list.count[list] = count;
}

cudaError_t skv_cuda_select_init(void)
{
	return cudaFuncSetAttribute(select_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, KEY_BYTES);
}

void skv_cuda_select(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_evidence *ev, bool tokens,
                     const struct skv_select *select, struct skv_list *list, const struct skv_work *work)
{
	const uint32_t units = tokens ? b->max_len : skv_pages_of(b->max_len);

	list->most = select_most(select, units);
	const struct call c = {
		.seq = b->seq,
		.ev = *ev,
		.select = *select,
		.list = *list,
		.layer = sh->layer,
		.tokens = tokens,
		.shared = select_fits(units),
		.packs = sh->code && sh->code->kind == SKV_COMPRESS_QUANT,
	};

	if (b->n > 0)
		select_kernel<<<dim3(ev->rows, b->n), THREADS, c.shared ? key_bytes(units) : 0, stream_of(work)>>>(c);
}
