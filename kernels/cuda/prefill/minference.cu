/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/prefill/minference.cu - makes MInference's lists of tiles (vertical-slash): for a segment of a prompt,
 * the top-k columns (tokens) and diagonals (distances) by the attention weights of the segment's first rows.
 *
 * A work item is a segment's first 64 rows for one q head. With the denominators of the rows' softmax (weights.cuh), a
 * second pass over the keys adds up weights by columns and by diagonals, row after row, so that equal weights have
 * equal sums. A diagonal lies in two tiles of keys: a block takes a run of tiles in order, and also processes the tile
 * before the run.
 *
 * A selected distance leads from a tile of rows to one or two blocks of 64 tokens, which are the same number of blocks
 * before any tile of rows. So the selection is a bit set of distances in blocks, for all tiles of a segment.
 */
#include "kernels/cuda/select/topk.cuh"
#include "kernels/cuda/prefill/weights.cuh"

#define SELECT_THREADS 1024
#define LIST_WARPS 4u
#define WIDTH 72 /* floats of a row of weights: pairs that a warp writes are in different banks */

static_assert(SKV_MINFERENCE_ROWS == ROWS && ROWS == TILE && THREADS == 2 * TILE,
              "a thread has a column or a diagonal");

enum { COLUMNS, DIAGONALS };

struct minference_params : weights_params {
	struct skv_tile_lists lists, extra;
	uint32_t most[2]; /* max selected columns, and max selected diagonals */
	uint32_t segments; /* max number of segments of a sequence */
	uint32_t stride, words;
	float *sum;       /* [item of the band][2][stride] sums of weights by columns, and by diagonals */
	uint32_t *chosen; /* [item of the band]: [most[0]] columns, [most[1]] diagonals */
	uint32_t *count;  /* [item of the band]: number of selected columns */
	/* [item of the band][words]: bit k is set if the k-th block before a tile is selected. */
	uint32_t *near;
	bool shared;      /* keys are in shared memory */

	/*
	 * Sets *j to an item's segment: j->first is the segment's first row, j->skip the multiple of the segment's
	 * length at which the segment begins.
	 */
	__device__ void item(uint32_t nth, struct rows_item *j) const
	{
		const uint32_t number = (first + nth) / call.n_heads;
		j->s = &call.seq[number / segments];
		j->h = head(nth, 0) / call.group;
		j->table = j->s->table + (size_t)call.layer * j->s->layer_stride;
		j->skip = ((j->s->len - j->s->n_q) / sp.segment + number % segments) * sp.segment;
		j->first = skv_first_row(j->s, j->skip, sp.segment);
		/*
		 * Lists are needed only if the call has the last of the segment's first 64 rows, for that row and the
		 * rows after it.
		 */
		j->end = min(j->s->len, j->skip + sp.segment) >= j->first + ROWS ? j->first + ROWS : 0;
	}
	__device__ uint32_t head(uint32_t nth, uint32_t) const
	{
		return (first + nth) % call.n_heads;
	}
	/* Returns row r of the block's item. */
	__device__ struct representative row(const struct rows_item *j, uint32_t r) const
	{
		return {j->first + r, head(blockIdx.x, r), j->end ? j->first + r + 1 : 0};
	}
};

/*
 * Adds up the weights of an item's rows by columns and by diagonals. The grid is the band's items (x) by runs of keys
 * (y).
 */
template <class T, int D>
__global__ void __launch_bounds__(THREADS)
column_diagonal_sums_kernel(const __grid_constant__ struct minference_params c)
{
	SHARED_MEMORY(uint8_t, memory, 128);
	float *const w = (float *)(memory + 2 * TILE * pitch<D>);
	float *const column = c.sum + (size_t)blockIdx.x * 2 * c.stride, *const diagonal = column + c.stride;
	const uint32_t mine = threadIdx.x % TILE, first = blockIdx.y * RUN;
	float before = 0; /* the diagonal's sum in the previous tile */
	struct rows<T, D> r;
	float lse[2];
	struct rows_item j;

	c.item(blockIdx.x, &j);
	const uint32_t to = min((j.end + TILE - 1) / TILE, first + RUN);
	if (first >= to)
		return;
	begin_representatives<T, D>(&r, &c, j.s, [&](uint32_t x) { return c.row(&j, x); });
	lse_load(&c, blockIdx.x, lse);
	const auto add = [&](uint32_t tile, float (&s)[TILE / 8][4]) {
		scores_to_weights(s, lse);
		store_tile<WIDTH>(s, w);
		__syncthreads();
		if (threadIdx.x < TILE) {
			/*
			 * The distance from row `mine` to this tile's first token. The diagonal continues in the next
			 * tile, where the distance to the first token is 64 less.
			 */
			const uint32_t distance = j.first + mine - tile * TILE;
			float sum = before;
			before = 0;
#pragma unroll 8
			for (uint32_t i = 0; i < ROWS; i++) {
				const float x = w[i * WIDTH + (i - mine) % TILE];
				sum += i < mine ? 0 : x;
				before += i < mine ? x : 0;
			}
			if (tile >= first && distance < j.end) /* a negative distance wraps to a large number */
				diagonal[distance] = sum;
		} else {
			float sum = 0;
#pragma unroll 8
			for (uint32_t i = 0; i < ROWS; i++)
				sum += w[i * WIDTH + mine];
			if (tile >= first)
				column[tile * TILE + mine] = sum;
		}
	};
	for_each_tile_scores<T, D>(&r, &c.call, &j, first ? first - 1 : 0, to, shared_address(memory), add);
}

/* Sets the bits of the one or two blocks before a tile that a selected distance leads to. */
DEVICE void add_near_blocks(uint32_t *near, uint32_t distance)
{
	const uint32_t k = distance / TILE;
	atomicOr(&near[k / 32], 1u << k % 32);
	if (distance % TILE)
		atomicOr(&near[(k + 1) / 32], 1u << (k + 1) % 32);
}

/* Selects columns or diagonals of an item. The grid is columns and diagonals (x) by the band's items (y). */
__global__ void __launch_bounds__(SELECT_THREADS)
minference_select_kernel(const __grid_constant__ struct minference_params c)
{
	SHARED_MEMORY(uint4, shared_keys, 16);
	__shared__ struct topk_smem smem;
	typedef team<SELECT_THREADS, 0, 0> all;
	float *const score = c.sum + ((size_t)blockIdx.y * 2 + blockIdx.x) * c.stride;
	uint32_t *key = c.shared ? (uint32_t *)shared_keys : (uint32_t *)score; /* else keys replace scores */
	uint32_t *const near = c.near + (size_t)blockIdx.y * c.words;
	uint32_t *const ids = c.chosen + (size_t)blockIdx.y * (c.most[0] + c.most[1]) +
	                      (blockIdx.x == DIAGONALS ? c.most[0] : 0);
	struct rows_item j;

	c.item(blockIdx.y, &j);
	const struct skv_topk_counts x = {j.end, SKV_MINFERENCE_FORCED, 0, c.most[blockIdx.x] - SKV_MINFERENCE_FORCED};
	if (j.end == 0)
		return;
	if (blockIdx.x == DIAGONALS)
		for (uint32_t k = threadIdx.x; k < c.words; k += SELECT_THREADS)
			near[k] = 0;
	clear_bins<all>(&smem);
	for (uint32_t u = KEY_QUAD * threadIdx.x; u < j.end; u += KEY_QUAD * SELECT_THREADS) {
		const float4 s = *(const float4 *)&score[u];
		put_keys(&smem, key, u,
		         make_uint4(topk_key(&x, u, true, s.x), topk_key(&x, u + 1, true, s.y),
		                    topk_key(&x, u + 2, true, s.z),
		                    topk_key(&x, u + 3, true, s.w)));
	}
	const uint32_t count = select_topk<all>(key, &x, &smem, ids);
	__syncthreads();
	if (blockIdx.x == COLUMNS && threadIdx.x == 0)
		c.count[blockIdx.y] = count;
	if (blockIdx.x == DIAGONALS)
		for (uint32_t i = threadIdx.x; i < count; i += SELECT_THREADS)
			add_near_blocks(near, ids[i]);
}

DEVICE bool is_near_block(const uint32_t *near, uint32_t k)
{
	return near[k / 32] >> k % 32 & 1;
}

/* A warp appends the `id` of each lane whose `take` is set to the list, at ids[*at]. */
DEVICE void append_selected(bool take, uint32_t id, uint32_t *ids, uint32_t *at)
{
	const uint32_t taken = __ballot_sync(~0u, take);
	if (take)
		ids[*at + __popc(taken & ((1u << threadIdx.x % 32) - 1))] = id;
	*at += __popc(taken);
}

/*
 * Writes the lists of a segment's tiles, one warp per tile. The grid is groups of LIST_WARPS tiles (x) by the band's
 * items (y).
 */
__global__ void __launch_bounds__(32 * LIST_WARPS)
minference_lists_kernel(const __grid_constant__ struct minference_params c)
{
	const uint32_t lane = threadIdx.x % 32, nth = blockIdx.x * LIST_WARPS + threadIdx.x / 32;
	const uint32_t *near = c.near + (size_t)blockIdx.y * c.words;
	const uint32_t *chosen = c.chosen + (size_t)blockIdx.y * (c.most[0] + c.most[1]);
	uint32_t units = 0, more = 0;
	struct rows_item j;

	c.item(blockIdx.y, &j);
	const uint32_t tile = j.skip / TILE + nth, call = (j.s->len - j.s->n_q) / TILE;
	if (nth >= c.sp.segment / TILE || tile < call || tile * TILE >= j.s->len)
		return;
	const size_t list = ((size_t)(j.s - c.call.seq) * c.lists.tiles + tile - call) * c.lists.rows + c.head(blockIdx.y, 0);
	const size_t extra = ((size_t)(j.s - c.call.seq) * c.extra.tiles + tile - call) * c.extra.rows + c.head(blockIdx.y, 0);
	uint32_t *unit_ids = c.lists.ids + list * c.lists.stride, *more_ids = c.extra.ids + extra * c.extra.stride;
	if (tile * TILE + TILE >= j.end && j.end) { /* rows before the last of the dense rows need no list */
		for (uint32_t u = lane; u < tile + lane; u += 32)
			append_selected(u < tile && is_near_block(near, tile - u), u, unit_ids, &units);
		const uint32_t n = c.count[blockIdx.y];
		for (uint32_t i = lane; i < n + lane; i += 32) {
			const uint32_t t = i < n ? chosen[i] : 0;
			append_selected(i < n && t < tile * TILE && !is_near_block(near, tile - t / TILE), t,
			                more_ids, &more);
		}
	}
	if (lane == 0) {
		c.lists.count[list] = units;
		c.extra.count[extra] = more;
	}
}

template <int D> constexpr int shared_bytes = 2 * TILE * pitch<D> + ROWS * WIDTH * sizeof(float);

cudaError_t skv_cuda_minference_init(void)
{
	const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
	const cudaError_t e = for_shapes([](auto t, auto d) {
		typedef decltype(t) T;
		constexpr int D = d;
		const cudaError_t e = cudaFuncSetAttribute(denominators_kernel<T, D, struct minference_params>,
		                                           most, 2 * TILE * pitch<D>);
		return e ? e : cudaFuncSetAttribute(column_diagonal_sums_kernel<T, D>, most, shared_bytes<D>);
	});
	return e ? e : cudaFuncSetAttribute(minference_select_kernel, most, KEY_BYTES);
}

/*
 * Sets the parameters that follow from bounds and from the numbers of selected columns and diagonals. Returns an item's
 * bytes of workspace.
 */
static size_t init_minference_params(struct minference_params *c, const struct skv_batch *b,
                                     const struct skv_sparse *sp, uint32_t vertical, uint32_t slash)
{
	c->blocks = 1;
	c->runs = ceil_div(b->max_len, RUN * TILE);
	c->segments = skv_max_tiles(b->max_q, sp->segment);
	c->stride = ceil_div(b->max_len, TILE) * TILE;
	c->words = c->stride / TILE / 32 + 1;
	c->most[COLUMNS] = vertical < c->stride ? vertical : c->stride;
	c->most[DIAGONALS] = slash < c->stride ? slash : c->stride;
	return denominators_bytes(1, c->runs) +
	       (2 * (size_t)c->stride + c->most[0] + c->most[1] + c->words + 1) * sizeof(uint32_t);
}

static uint32_t n_items_of(const struct minference_params *c, const struct skv_shape *sh, const struct skv_batch *b)
{
	return b->n * c->segments * sh->n_heads;
}

size_t skv_cuda_minference_bytes(const struct skv_shape *sh, const struct skv_batch *bounds,
                                 const struct skv_sparse *sp)
{
	struct minference_params c = {};

	if (!sp->segment)
		return 0;
	const size_t bytes = init_minference_params(&c, bounds, sp, SKV_MAX_TOKENS, SKV_MAX_TOKENS);
	return band_bytes(n_items_of(&c, sh, bounds), bytes);
}

void skv_cuda_minference_lists(const struct skv_shape *sh, const struct skv_batch *b, const void *q,
                               const struct skv_sparse *sp,
                               uint32_t vertical, uint32_t slash, const struct skv_tile_lists *units, const struct skv_tile_lists *more,
                               const struct skv_workspace *work)
{
	uint8_t *const mem = (uint8_t *)work->mem + skv_cuda_workspace_offset(sh);
	cudaStream_t stream = stream_of(work);
	struct minference_params c = {};

	init_weights_params(&c, sh, b, q, sp);
	c.lists = *units;
	c.extra = *more;
	c.shared = keys_fit_shared(b->max_len);
	const size_t bytes = init_minference_params(&c, b, sp, vertical, slash);
	const uint32_t items = n_items_of(&c, sh, b), band = band_size(items, bytes);
	c.sum = (float *)denominators_at(&c, mem, band);
	c.chosen = (uint32_t *)(c.sum + (size_t)band * 2 * c.stride);
	c.near = c.chosen + (size_t)band * (c.most[0] + c.most[1]);
	c.count = c.near + (size_t)band * c.words;
	for (c.first = 0; c.first < items; c.first += band) {
		const uint32_t now = items - c.first < band ? items - c.first : band;
		for_shape(sh, [&](auto t, auto d) {
			typedef decltype(t) T;
			constexpr int D = d;
			denominators<T, D>(&c, now, stream);
			launch_grid(column_diagonal_sums_kernel<T, D>, dim3(now, c.runs), THREADS, shared_bytes<D>, stream, c);
		});
		launch_grid(minference_select_kernel, dim3(2, now), SELECT_THREADS, c.shared ? key_bytes(b->max_len) : 0, stream, c);
		launch_grid(minference_lists_kernel, dim3(ceil_div(sp->segment / TILE, LIST_WARPS), now), 32 * LIST_WARPS, 0, stream, c);
	}
}
