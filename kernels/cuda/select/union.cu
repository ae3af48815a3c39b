/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/union.cu - one list of the tokens that a sequence's q heads want, named in turns.
 *
 * Each head's best tokens are selected as for a list of its own (select.cu) and sorted, the best first (CUB, stable,
 * so that of equals the lower token comes first). A token's place is where the first of the heads names it; what is
 * selected then by places, one list a sequence, is the union. So many sequences are taken at a time as the scratch
 * has room for.
 */
#include <cub/device/device_segmented_radix_sort.cuh>
#include "kernels/cuda/runtime/cuda.h"
#include "kernels/cuda/select/topk.cuh"

#define THREADS 256

struct call {
	const struct skv_kseq *seq;
	struct skv_select select;
	const float *score; /* [seq][rows][score_stride] */
	uint32_t score_stride, rows;
	bool keys; /* selecting has put keys in place of the scores */
	/* lists of the heads, stride elements each: what is sorted, and where one begins and ends */
	uint32_t stride;
	const uint32_t *count;
	uint32_t *id, *key;
	uint32_t *begin, *end;
	int *place; /* [seq][tokens]: as a float, the larger the earlier; a NaN for who was not named */
	uint32_t tokens;
};

/* A token that is taken in any case gets a key below all others: it is not named. */
__global__ void __launch_bounds__(THREADS) keys_kernel(const __grid_constant__ struct call c)
{
	const uint32_t list = blockIdx.y * c.rows + blockIdx.x, first = list * c.stride, n = c.count[list];
	const struct skv_topk_counts x = choice_of(&c.select, true, c.seq[blockIdx.y].len);
	const float *score = c.score + (size_t)list * c.score_stride;

	for (uint32_t r = threadIdx.x; r < n; r += THREADS) {
		const uint32_t u = c.id[first + r];
		const uint32_t key = c.keys ? __float_as_uint(score[u]) : key_of(&x, u, true, score[u]);
		c.key[first + r] = key == KEY_ALWAYS ? 0 : key;
	}
	if (threadIdx.x == 0) {
		c.begin[list] = first;
		c.end[list] = first + n;
	}
}

__global__ void __launch_bounds__(THREADS) places_kernel(const __grid_constant__ struct call c)
{
	const uint32_t list = blockIdx.y * c.rows + blockIdx.x, first = list * c.stride, n = c.count[list];

	for (uint32_t rank = threadIdx.x; rank < n && c.key[first + rank]; rank += THREADS)
		atomicMax(&c.place[(size_t)blockIdx.y * c.tokens + c.id[first + rank]],
		          (int)(0x7f7fffff - (rank * c.rows + blockIdx.x))); /* from the largest finite number down */
}

/* Bytes of the arrays of a sequence. */
static size_t seq_bytes(uint32_t rows, uint32_t stride, uint32_t tokens)
{
	return (size_t)rows * (4 * stride + 3) * sizeof(uint32_t) + tokens * sizeof(int);
}

size_t skv_cuda_union_bytes(const struct skv_shape *sh, uint32_t tokens)
{
	return seq_bytes(sh->n_heads, tokens, tokens) + UNION_SORT_BYTES;
}

/* Sort the lists of n sequences by their keys, the largest first; c->id and c->key are what is sorted then. */
static void sort(struct call *c, uint32_t n, uint32_t *other_id, uint32_t *other_key, void *room, cudaStream_t stream)
{
	cub::DoubleBuffer<uint32_t> keys(c->key, other_key), ids(c->id, other_id);
	size_t bytes = UNION_SORT_BYTES;

	cub::DeviceSegmentedRadixSort::SortPairsDescending(room, bytes, keys, ids, (int)(n * c->rows * c->stride),
	                                                   (int)(n * c->rows), c->begin, c->end, 0, 32, stream);
	c->key = keys.Current();
	c->id = ids.Current();
}

/* Sequences of a batch, as many as `mem` has room for. */
static void part(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_evidence *ev,
                 const struct skv_select *select, struct skv_list *list, uint8_t *mem, const struct skv_work *work)
{
	struct skv_list heads = {.rows = ev->rows, .stride = select_most(select, b->max_len)};
	const size_t lists = (size_t)b->n * ev->rows, all = lists * heads.stride;
	struct skv_evidence places = {.rows = 1};
	struct call c = {};

	c.seq = b->seq;
	c.select = *select;
	c.score = ev->token;
	c.score_stride = ev->token_stride;
	c.rows = ev->rows;
	c.keys = !select_fits(b->max_len);
	c.stride = heads.stride;
	c.tokens = skv_pages_of(b->max_len) * SKV_PAGE_TOKENS;
	c.place = (int *)(mem + UNION_SORT_BYTES); /* first, since it is read 16 bytes at a time */
	c.id = (uint32_t *)(c.place + (size_t)b->n * c.tokens);
	c.key = c.id + 2 * all;
	c.begin = c.id + 4 * all;
	c.end = c.begin + lists;
	c.count = heads.count = c.end + lists;
	heads.ids = c.id;
	skv_cuda_select(sh, b, ev, true, select, &heads, work);
	const dim3 grid(ev->rows, b->n);
	keys_kernel<<<grid, THREADS, 0, stream_of(work)>>>(c);
	sort(&c, b->n, c.id + all, c.key + all, mem, stream_of(work));
	cudaMemsetAsync(c.place, 0xff, (size_t)b->n * c.tokens * sizeof(int), stream_of(work));
	places_kernel<<<grid, THREADS, 0, stream_of(work)>>>(c);
	places.token = (float *)c.place;
	places.token_stride = c.tokens;
	skv_cuda_select(sh, b, &places, true, select, list, work);
}

void skv_cuda_select_union(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_evidence *ev,
                           const struct skv_select *select, struct skv_list *list, const struct skv_work *work)
{
	const struct layout l = layout_of(sh, b->n, b->max_len, 1);
	const size_t room = l.total - l.chosen - UNION_SORT_BYTES;
	const size_t most = room / seq_bytes(ev->rows, select_most(select, b->max_len), l.tokens);
	struct skv_batch some = *b;
	struct skv_evidence seen = *ev;
	struct skv_list to = *list;

	for (uint32_t from = 0; from < b->n; from += some.n) {
		some.seq = b->seq + from;
		some.n = b->n - from < most ? b->n - from : (uint32_t)most;
		seen.token = ev->token + (size_t)from * ev->rows * ev->token_stride;
		to.ids = list->ids + (size_t)from * list->stride;
		to.count = list->count + from;
		part(sh, &some, &seen, select, &to, (uint8_t *)work->mem + l.chosen, work);
	}
	list->most = select_most(select, b->max_len);
}
