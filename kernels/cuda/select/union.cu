/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/union.cu - makes one list of the tokens that a sequence's q heads select, taking turns
 * (LessIsMore).
 *
 * Each head's top-k tokens are selected as for a list of its own (select.cu) and sorted, best first (by CUB; the sort
 * is stable, so ties go to the lower token). The order of a token is the turn in which the first head names it. The
 * top-k tokens by this order, one list per sequence, are the union. As many sequences are processed at a time as the
 * workspace has room for.
 */
#include <cub/device/device_segmented_radix_sort.cuh>
#include "kernels/cuda/runtime/cuda.h"
#include "kernels/cuda/select/topk.cuh"

#define THREADS 256

struct union_params {
	const struct skv_kseq *seq;
	struct skv_select select;
	const float *score; /* [seq][rows][score_stride] scores of tokens */
	uint32_t score_stride, rows;
	bool keys; /* are there keys of select() in place of the scores? */
	/*
	 * The lists of the heads, with `stride` elements each: ids and keys to sort, and where each list begins and
	 * ends.
	 */
	uint32_t stride;
	const uint32_t *count;
	uint32_t *id, *key;
	uint32_t *begin, *end;
	int *order; /* [seq][tokens] as floats: larger means earlier; NaN: no head named the token */
	uint32_t tokens;
};

/*
 * Makes keys for sorting each head's list. Pinned and recent tokens, which are taken in any case, get key 0, below all
 * other keys, so that heads do not name them.
 */
__global__ void __launch_bounds__(THREADS) union_keys_kernel(const __grid_constant__ struct union_params c)
{
	const uint32_t list = blockIdx.y * c.rows + blockIdx.x, first = list * c.stride, n = c.count[list];
	const struct skv_topk_counts x = topk_counts_of(&c.select, true, c.seq[blockIdx.y].len);
	const float *score = c.score + (size_t)list * c.score_stride;

	for (uint32_t r = threadIdx.x; r < n; r += THREADS) {
		const uint32_t u = c.id[first + r];
		const uint32_t key = c.keys ? __float_as_uint(score[u]) : topk_key(&x, u, true, score[u]);
		c.key[first + r] = key == KEY_ALWAYS ? 0 : key;
	}
	if (threadIdx.x == 0) {
		c.begin[list] = first;
		c.end[list] = first + n;
	}
}

__global__ void __launch_bounds__(THREADS) union_order_kernel(const __grid_constant__ struct union_params c)
{
	const uint32_t list = blockIdx.y * c.rows + blockIdx.x, first = list * c.stride, n = c.count[list];

	for (uint32_t rank = threadIdx.x; rank < n && c.key[first + rank]; rank += THREADS)
		atomicMax(&c.order[(size_t)blockIdx.y * c.tokens + c.id[first + rank]],
		          (int)(0x7f7fffff - (rank * c.rows + blockIdx.x))); /* from the largest finite float down */
}

/* Bytes that the arrays of one sequence take. */
static size_t seq_bytes(uint32_t rows, uint32_t stride, uint32_t tokens)
{
	return (size_t)rows * (4 * stride + 3) * sizeof(uint32_t) + tokens * sizeof(int);
}

size_t skv_cuda_union_bytes(const struct skv_shape *sh, uint32_t tokens)
{
	return seq_bytes(sh->n_heads, tokens, tokens) + UNION_SORT_BYTES;
}

/*
 * Sorts the lists of n sequences by their keys, largest first. On return c->id and c->key point to the sorted arrays.
 */
static void sort(struct union_params *c, uint32_t n, uint32_t *other_id, uint32_t *other_key, void *room,
                 cudaStream_t stream)
{
	cub::DoubleBuffer<uint32_t> keys(c->key, other_key), ids(c->id, other_id);
	size_t bytes = UNION_SORT_BYTES;

	cub::DeviceSegmentedRadixSort::SortPairsDescending(room, bytes, keys, ids, (int)(n * c->rows * c->stride),
	                                                   (int)(n * c->rows), c->begin, c->end, 0, 32, stream);
	c->key = keys.Current();
	c->id = ids.Current();
}

/* Makes the unions for the sequences of a batch, for which `mem` has room. */
static void select_part(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_scores *ev,
                        const struct skv_select *select, struct skv_index_list *list, uint8_t *mem, const struct skv_workspace *work)
{
	struct skv_index_list heads = {.rows = ev->rows, .stride = max_selected(select, b->max_len)};
	const size_t lists = (size_t)b->n * ev->rows, all = lists * heads.stride;
	struct skv_scores order = {.rows = 1};
	struct union_params c = {};

	c.seq = b->seq;
	c.select = *select;
	c.score = ev->token;
	c.score_stride = ev->token_stride;
	c.rows = ev->rows;
	c.keys = !keys_fit_shared(b->max_len);
	c.stride = heads.stride;
	c.tokens = skv_pages_of(b->max_len) * SKV_PAGE_TOKENS;
	c.order = (int *)(mem + UNION_SORT_BYTES); /* first in `mem`, for alignment: read 16 bytes at a time */
	c.id = (uint32_t *)(c.order + (size_t)b->n * c.tokens);
	c.key = c.id + 2 * all;
	c.begin = c.id + 4 * all;
	c.end = c.begin + lists;
	c.count = heads.count = c.end + lists;
	heads.ids = c.id;
	skv_cuda_select(sh, b, ev, true, select, &heads, work);
	const dim3 grid(ev->rows, b->n);
	launch_grid(union_keys_kernel, grid, THREADS, 0, stream_of(work), c);
	sort(&c, b->n, c.id + all, c.key + all, mem, stream_of(work));
	cudaMemsetAsync(c.order, 0xff, (size_t)b->n * c.tokens * sizeof(int), stream_of(work));
	launch_grid(union_order_kernel, grid, THREADS, 0, stream_of(work), c);
	order.token = (float *)c.order;
	order.token_stride = c.tokens;
	skv_cuda_select(sh, b, &order, true, select, list, work);
}

void skv_cuda_select_union(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_scores *ev,
                           const struct skv_select *select, struct skv_index_list *list, const struct skv_workspace *work)
{
	const struct workspace_layout l = workspace_layout_of(sh, b->n, b->max_len, 1);
	const size_t room = l.total - l.topk_scores - UNION_SORT_BYTES;
	const size_t most = room / seq_bytes(ev->rows, max_selected(select, b->max_len), l.tokens);
	struct skv_batch some = *b;
	struct skv_scores part_scores = *ev;
	struct skv_index_list to = *list;

	for (uint32_t from = 0; from < b->n; from += some.n) {
		some.seq = b->seq + from;
		some.n = b->n - from < most ? b->n - from : (uint32_t)most;
		part_scores.token = ev->token + (size_t)from * ev->rows * ev->token_stride;
		to.ids = list->ids + (size_t)from * list->stride;
		to.count = list->count + from;
		select_part(sh, &some, &part_scores, select, &to, (uint8_t *)work->mem + l.topk_scores, work);
	}
	list->max_count = max_selected(select, b->max_len);
}
