/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/select.cu - selects the top-k pages or tokens of each list, by one block per list (topk.cuh). If
 * the lists of a GQA group's q heads are to be united, these lists are made in the workspace first, for as many
 * sequences at a time as the workspace has room for. Then a block unites the lists of a group, by a bitmap.
 */
#include "kernels/cuda/runtime/cuda.h"
#include "kernels/cuda/select/topk.cuh"

#define THREADS 512

struct select_params {
	const struct skv_kseq *seq;
	struct skv_scores ev;
	struct skv_select select;
	struct skv_index_list list;
	uint32_t layer;
	bool tokens, shared; /* shared: keys are in shared memory */
	/* Tokens before kseq.n_compressed are quantized, and so count as resident whatever the page table says. */
	bool quantized;
};

/* Returns the key of id u, which may be past the end of the list. Pages below `n_quantized_pages` count as resident. */
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
	SHARED_MEMORY(uint4, shared_keys, 16);
	__shared__ struct topk_smem smem;
	typedef team<THREADS, 0, 0> all;
	const uint32_t i = blockIdx.y, list = i * c.ev.rows + blockIdx.x;
	const struct skv_kseq *s = &c.seq[i];
	const skv_pte *table = s->table + (size_t)c.layer * s->layer_stride;
	const uint32_t n_quantized_pages = c.quantized ? s->n_compressed / SKV_PAGE_TOKENS : 0;
	float *const all_scores = c.tokens ? c.ev.token : c.ev.page;
	float *const score = all_scores + (size_t)list * (c.tokens ? c.ev.token_stride : c.ev.page_stride);
	uint32_t *key = c.shared ? (uint32_t *)shared_keys : (uint32_t *)score; /* else keys replace scores */
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

/* Makes a list for each row of scores, one block per list. */
static void select_rows(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_scores *ev, bool tokens,
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
		launch_grid(select_kernel, dim3(ev->rows, b->n), THREADS, c.shared ? key_bytes(units) : 0, stream_of(work), c);
}

/* ---- the lists of a group's q heads, united --------------------------------------------------- */

#define PART 131072u /* max ids whose bits are in shared memory at a time */
#define PART_WORDS (PART / 32)

struct unite_params {
	struct skv_index_list heads, list; /* heads: one list per q head; list: one list per kv head */
	uint32_t group, units;
};

/* Writes the ids whose bits are set to ids[]; the first bit is that of id `from`. Returns the number of ids written. */
__device__ static uint32_t put_ids(const uint32_t *bits, uint32_t from, struct topk_smem *smem, uint32_t *ids)
{
	constexpr uint32_t per = PART_WORDS / THREADS;
	const uint32_t first = threadIdx.x * per;
	uint64_t mine = 0, total;

#pragma unroll
	for (uint32_t w = 0; w < per; w++)
		mine += __popc(bits[first + w]);
	uint32_t at = (uint32_t)team_scan<team<THREADS, 0, 0>>(smem, mine, &total);
	for (uint32_t w = first; w < first + per; w++)
		for (uint32_t word = bits[w]; word; word &= word - 1)
			ids[at++] = from + w * 32 + __ffs(word) - 1;
	return (uint32_t)total;
}

__global__ void __launch_bounds__(THREADS) unite_kernel(const __grid_constant__ struct unite_params c)
{
	__shared__ uint32_t bits[PART_WORDS];
	__shared__ struct topk_smem smem;
	const uint32_t list = blockIdx.y * c.list.rows + blockIdx.x;
	uint32_t *const ids = c.list.ids + (size_t)list * c.list.stride;
	uint32_t count = 0;

	for (uint32_t from = 0; from < c.units; from += PART) {
		for (uint32_t w = threadIdx.x; w < PART_WORDS; w += THREADS)
			bits[w] = 0;
		__syncthreads();
		for (uint32_t head = list * c.group; head < (list + 1) * c.group; head++)
			for (uint32_t r = threadIdx.x; r < c.heads.count[head]; r += THREADS) {
				const uint32_t u = c.heads.ids[(size_t)head * c.heads.stride + r] - from;
				if (u < PART)
					atomicOr(&bits[u / 32], 1u << u % 32);
			}
		__syncthreads();
		count += put_ids(bits, from, &smem, ids + count);
		__syncthreads();
	}
	if (threadIdx.x == 0)
		c.list.count[list] = count;
}

static void select_united(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_scores *ev, bool tokens,
                          const struct skv_select *select, struct skv_index_list *list, const struct skv_workspace *work)
{
	const struct workspace_layout l = workspace_layout_of(sh, b->n, b->max_len, 1);
	const uint32_t units = tokens ? b->max_len : skv_pages_of(b->max_len), stride = max_selected(select, units);
	const uint32_t group = sh->n_heads / sh->n_kv_heads;
	const size_t most = (l.total - l.topk_scores) / ((size_t)ev->rows * (stride + 1) * sizeof(uint32_t));
	struct skv_batch some = *b;
	struct skv_scores part = *ev;
	struct unite_params c = {.heads = {.rows = ev->rows, .stride = stride}, .list = *list, .group = group, .units = units};

	for (uint32_t from = 0; from < b->n; from += some.n) {
		some.seq = b->seq + from;
		some.n = b->n - from < most ? b->n - from : (uint32_t)most;
		if (tokens)
			part.token = ev->token + (size_t)from * ev->rows * ev->token_stride;
		else
			part.page = ev->page + (size_t)from * ev->rows * ev->page_stride;
		c.heads.ids = (uint32_t *)((uint8_t *)work->mem + l.topk_scores);
		c.heads.count = c.heads.ids + (size_t)some.n * ev->rows * stride;
		c.list.ids = list->ids + (size_t)from * list->rows * list->stride;
		c.list.count = list->count + (size_t)from * list->rows;
		select_rows(sh, &some, &part, tokens, select, &c.heads, work);
		launch_grid(unite_kernel, dim3(list->rows, some.n), THREADS, 0, stream_of(work), c);
	}
	list->max_count = units < group * stride ? units : group * stride;
}

void skv_cuda_select(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_scores *ev, bool tokens,
                     const struct skv_select *select, struct skv_index_list *list, const struct skv_workspace *work)
{
	if (select->unite)
		select_united(sh, b, ev, tokens, select, list, work);
	else
		select_rows(sh, b, ev, tokens, select, list, work);
}
