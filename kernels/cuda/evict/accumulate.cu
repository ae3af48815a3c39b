/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/evict/accumulate.cu - adds attention weights to the accumulated scores of tokens (H2O, SnapKV).
 *
 * A decode step has computed softmax weights, which are added to the slot metadata in one pass. The rows of a prompt's
 * observation window take two passes over the keys. The first pass computes the denominators of the rows' softmax, over
 * a few chunks of the keys. The second pass has a block for each 128 keys, which processes all rows that attend to
 * these keys and adds up each key's weights. So every score is computed by one block, which adds in a fixed order.
 */
#include "kernels/cuda/evict/slot-meta.cuh"
#include "kernels/cuda/runtime/rows.cuh"

#define ACCUMULATE_THREADS 256
#define ACCUMULATE_PAIRS 2 /* pairs of entries whose metadata a thread has in flight */

/* ---- a decode step --------------------------------------------------------------------------- */

struct accumulate_params {
	const struct skv_kseq *seq;
	struct meta_table meta;
	const float *token; /* [seq][kv head][stride] attention weights */
	uint32_t stride, heads;
	float group;
};

/*
 * Adds a decode step's weights to accumulated scores. The grid is parts of the slots (x) by kv heads (y) by sequences
 * (z).
 */
__global__ void __launch_bounds__(ACCUMULATE_THREADS)
accumulate_kernel(const __grid_constant__ struct accumulate_params c)
{
	const struct skv_kseq *s = &c.seq[blockIdx.z];
	const uint32_t first = 2 * (blockIdx.x * ACCUMULATE_PAIRS * ACCUMULATE_THREADS + threadIdx.x);
	const float *token = c.token + ((size_t)blockIdx.z * c.heads + blockIdx.y) * c.stride;
	struct skv_slot_meta *at[ACCUMULATE_PAIRS];
	struct meta_pair meta[ACCUMULATE_PAIRS];
	float2 weight[ACCUMULATE_PAIRS];

	if (s->accumulate == SKV_ACCUMULATE_NONE)
		return;
#pragma unroll
	for (int x = 0; x < ACCUMULATE_PAIRS; x++) {
		const uint32_t u = first + x * 2 * ACCUMULATE_THREADS;
		at[x] = NULL;
		if (u >= s->len)
			continue;
		at[x] = meta_at(&c.meta, s, blockIdx.y, s->set, u);
		meta[x] = load_pair(at[x]);
		weight[x] = *(const float2 *)(token + u); /* weights at `len` and after it are 0 */
	}
#pragma unroll
	for (int x = 0; x < ACCUMULATE_PAIRS; x++) {
		if (!at[x])
			continue;
		const bool add = s->accumulate == SKV_ACCUMULATE_ADD;
		meta[x].value[0] = (add ? fabsf(meta[x].value[0]) : 0) + weight[x].x / c.group;
		meta[x].value[1] = (add ? fabsf(meta[x].value[1]) : 0) + weight[x].y / c.group;
		store_pair(at[x], &meta[x]);
	}
}

void skv_cuda_accumulate_scores(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_scores *ev,
                                const struct skv_workspace *work)
{
	struct accumulate_params c = {};

	c.seq = b->seq;
	c.meta = meta_table_of(sh);
	c.token = ev->token;
	c.stride = ev->token_stride;
	c.heads = sh->n_kv_heads;
	c.group = (float)(sh->n_heads / sh->n_kv_heads);
	const dim3 grid(ceil_div(b->max_len, 2 * ACCUMULATE_PAIRS * ACCUMULATE_THREADS), c.heads, b->n);
	if (b->n > 0)
		launch_grid(accumulate_kernel, grid, ACCUMULATE_THREADS, 0, stream_of(work), c);
}

/* ---- a prompt -------------------------------------------------------------------------------- */

#define MIN_CHUNK_TILES 32u /* min tiles of a chunk of the keys, if PROMPT_CHUNKS chunks suffice */
#define KEY_TILES 2     /* tiles of 64 keys in a block of the second pass */

struct prompt_params {
	struct rows_params call;
	struct meta_table meta;
	const float *sinks;
	uint32_t window;
	float2 *part; /* [row of q][head][PROMPT_CHUNKS]: maximum and sum of a row's weights in a chunk of keys */
};

/* Sets *j to the nth block of rows in the observation window; returns false if the window has fewer blocks. */
DEVICE bool observed_rows(const struct prompt_params *c, uint32_t nth, struct rows_item *j)
{
	const uint32_t n_q = j->s->n_q, n_observed = c->window ? min(c->window, n_q) : n_q;

	j->skip = n_q - n_observed;
	j->first = nth * ROWS;
	j->end = j->s->len - n_q + min(j->skip + (j->first + ROWS - 1) / c->call.group, n_q - 1) + 1;
	return j->first < n_observed * c->call.group;
}

DEVICE void begin_item(const struct prompt_params *c, struct rows_item *j)
{
	j->s = &c->call.seq[blockIdx.z];
	j->h = blockIdx.y;
	j->table = j->s->table + (size_t)c->call.layer * j->s->layer_stride;
}

/*
 * First pass: maximum and sum of the rows' weights. The grid is blocks of rows times chunks of keys (x) by kv heads (y)
 * by sequences (z).
 */
template <class T, int D>
__global__ void __launch_bounds__(THREADS) denominators_kernel(const __grid_constant__ struct prompt_params c)
{
	SHARED_MEMORY(uint8_t, memory, 128);
	constexpr uint32_t bytes = TILE * pitch<D>;
	const uint32_t at = shared_address(memory), chunk = blockIdx.x % PROMPT_CHUNKS;
	struct rows<T, D> r;
	struct rows_item j;

	begin_item(&c, &j);
	if (!observed_rows(&c, blockIdx.x / PROMPT_CHUNKS, &j))
		return;
	const uint32_t tiles = (j.end + TILE - 1) / TILE, all = (j.s->len + TILE - 1) / TILE;
	const uint32_t each = max(MIN_CHUNK_TILES, (all + PROMPT_CHUNKS - 1) / PROMPT_CHUNKS);
	const uint32_t from = chunk * each, to = min(tiles, from + each);

	begin_rows<T, D>(&r, &c.call, &j);
	if (from < to)
		load_tile<T, D>(&c.call, &j, from, at + from % 2 * bytes);
	cp_async_commit();
	for (uint32_t tile = from; tile < to; tile++) {
		float s[TILE / 8][4];
		if (tile + 1 < to)
			load_tile<T, D>(&c.call, &j, tile + 1, at + (tile + 1) % 2 * bytes);
		cp_async_commit();
		cp_async_wait<1>();
		__syncthreads();
		qk_scores<T, D>(&r, at + tile % 2 * bytes, s);
		mask<T, D>(&r, &c.call, tile, pages_resident(&j, tile), s);
		softmax_step<T, D>(&r, s);
		__syncthreads();
	}
#pragma unroll
	for (int x = 0; x < 2; x++) {
		float sum = r.sum[x];
		sum += __shfl_xor_sync(~0u, sum, 1);
		sum += __shfl_xor_sync(~0u, sum, 2);
		if (threadIdx.x % 4 == 0 && r.out[x] != 0xffffffff)
			c.part[(size_t)r.out[x] * PROMPT_CHUNKS + chunk] = make_float2(r.max[x], sum);
	}
}

/*
 * Returns log2 of a row's softmax denominator, from its chunks, of which each of four lanes has two. The result is
 * infinite if the row does not exist, so that its weights are 0.
 */
DEVICE float log_denominator(const struct prompt_params *c, uint32_t out)
{
	const float2 none = make_float2(-INFINITY, 0), *part = c->part + (size_t)out * PROMPT_CHUNKS + threadIdx.x % 4;
	const float2 a = out == 0xffffffff ? none : part[0], b = out == 0xffffffff ? none : part[4];
	float max = fmaxf(a.x, b.x);
	max = fmaxf(max, __shfl_xor_sync(~0u, max, 1));
	max = fmaxf(max, __shfl_xor_sync(~0u, max, 2));
	const float base = max == -INFINITY ? 0 : max;
	float sum = a.y * exp2_fast(a.x - base) + b.y * exp2_fast(b.x - base);
	sum += __shfl_xor_sync(~0u, sum, 1);
	sum += __shfl_xor_sync(~0u, sum, 2);
	return sum > 0 ? add_sink(c->sinks, out % c->call.n_heads, base + log2f(sum)) : INFINITY;
}

/* Adds the weights of a tile to column sums: of columns 8 n + 2 c and 8 n + 2 c + 1, over rows g and g + 8. */
DEVICE void add_columns(const float s[TILE / 8][4], const float lse[2], float col[TILE / 8][2])
{
#pragma unroll
	for (int n = 0; n < (int)TILE / 8; n++)
#pragma unroll
		for (int x = 0; x < 4; x++)
			col[n][x % 2] += exp2_fast(s[n][x] - lse[x / 2]);
}

/* Adds up the column sums of the block's tiles over the lanes of each warp. */
DEVICE void fold_columns(const float col[KEY_TILES][TILE / 8][2], float column_sums[WARPS][KEY_TILES * TILE])
{
#pragma unroll
	for (int t = 0; t < KEY_TILES; t++)
#pragma unroll
		for (int n = 0; n < (int)TILE / 8; n++)
#pragma unroll
			for (int x = 0; x < 2; x++) {
				float sum = col[t][n][x];
#pragma unroll
				for (int lane = 4; lane < 32; lane *= 2)
					sum += __shfl_xor_sync(~0u, sum, lane);
				if (threadIdx.x % 32 < 4)
					column_sums[threadIdx.x / 32][t * TILE + 8 * n + threadIdx.x % 4 * 2 + x] = sum;
			}
	__syncthreads();
}

/*
 * Second pass: adds the rows' weights to the scores of keys. The grid is KEY_TILES tiles of keys (x) by kv heads (y) by
 * sequences (z).
 */
template <class T, int D>
__global__ void __launch_bounds__(THREADS) column_sums_kernel(const __grid_constant__ struct prompt_params c)
{
	SHARED_MEMORY(uint8_t, memory, 128);
	__shared__ float column_sums[WARPS][KEY_TILES * TILE];
	constexpr uint32_t bytes = TILE * pitch<D>;
	const uint32_t at = shared_address(memory), tile = blockIdx.x * KEY_TILES, first = tile * TILE;
	uint32_t resident[KEY_TILES];
	float col[KEY_TILES][TILE / 8][2] = {};
	struct rows_item j;

	begin_item(&c, &j);
	if (first >= j.s->len)
		return;
	j.end = j.s->len;
#pragma unroll
	for (int t = 0; t < KEY_TILES; t++) {
		load_tile<T, D>(&c.call, &j, tile + t, at + t * bytes);
		resident[t] = pages_resident(&j, tile + t);
	}
	cp_async_commit();
	cp_async_wait<0>();
	__syncthreads();
	observed_rows(&c, 0, &j);
	const uint32_t before = j.s->len - j.s->n_q + j.skip; /* number of tokens before the first observed row */
	for (uint32_t nth = first > before ? (first - before) * c.call.group / ROWS : 0; observed_rows(&c, nth,
	                                                                                               &j); nth++) {
		struct rows<T, D> r;
		begin_rows<T, D>(&r, &c.call, &j);
		const float lse[2] = {log_denominator(&c, r.out[0]), log_denominator(&c, r.out[1])};
#pragma unroll
		for (int t = 0; t < KEY_TILES; t++) {
			float s[TILE / 8][4];
			qk_scores<T, D>(&r, at + t * bytes, s);
			mask<T, D>(&r, &c.call, tile + t, resident[t], s);
			add_columns(s, lse, col[t]);
		}
	}
	fold_columns(col, column_sums);
	const bool reset = c.window && j.s->n_q >= c.window;
	for (uint32_t x = threadIdx.x; x < KEY_TILES * TILE && first + x < j.s->len; x += THREADS) {
		struct skv_slot_meta *meta = meta_at(&c.meta, j.s, j.h, j.s->set, first + x);
		float sum = 0;
#pragma unroll
		for (int w = 0; w < WARPS; w++)
			sum += column_sums[w][x];
		meta->score = (reset ? 0 : fabsf(meta->score)) + sum / (float)c.call.group;
	}
}

template <class T, int D> static cudaError_t init(void)
{
	const int bytes = KEY_TILES * TILE * pitch<D>;
	const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
	const cudaError_t e = cudaFuncSetAttribute(denominators_kernel<T, D>, most, bytes);
	return e ? e : cudaFuncSetAttribute(column_sums_kernel<T, D>, most, bytes);
}

template <class T> static cudaError_t init_dtype(void)
{
	cudaError_t e = init<T, 64>();
	e = e ? e : init<T, 96>();
	e = e ? e : init<T, 128>();
	return e ? e : init<T, 256>();
}

cudaError_t skv_cuda_accumulate_init(void)
{
	cudaError_t e = init_dtype<F16>();
	e = e ? e : init_dtype<BF16>();
	return e ? e : init_dtype<FP8>();
}

/* Launches both passes; each of them has two tiles of keys in shared memory. */
template <class T, int D> static void launch(const struct prompt_params *c, dim3 rows, dim3 keys, cudaStream_t stream)
{
	launch_grid(denominators_kernel<T, D>, rows, THREADS, KEY_TILES * TILE * pitch<D>, stream, *c);
	launch_grid(column_sums_kernel<T, D>, keys, THREADS, KEY_TILES * TILE * pitch<D>, stream, *c);
}

template <class T>
static void launch_dtype(const struct prompt_params *c, uint32_t head_dim, dim3 rows, dim3 keys, cudaStream_t stream)
{
	if (head_dim == 64)
		launch<T, 64>(c, rows, keys, stream);
	else if (head_dim == 96)
		launch<T, 96>(c, rows, keys, stream);
	else if (head_dim == 128)
		launch<T, 128>(c, rows, keys, stream);
	else
		launch<T, 256>(c, rows, keys, stream);
}

void skv_cuda_accumulate_prompt(const struct skv_shape *sh, const struct skv_batch *b, const void *q, uint32_t window,
                                const struct skv_workspace *work)
{
	const struct workspace_layout l = workspace_layout_of(sh, b->n, b->max_len, 1);
	const uint32_t n_observed = window && window < b->max_q ? window : b->max_q;
	struct prompt_params c = {};

	c.call = rows_params_of(sh, b, q);
	c.meta = meta_table_of(sh);
	c.sinks = sh->sinks;
	c.window = window;
	c.part = (float2 *)((uint8_t *)work->mem + l.partial);
	const dim3 rows(ceil_div(n_observed * c.call.group, ROWS) * PROMPT_CHUNKS, sh->n_kv_heads, b->n);
	const dim3 keys(ceil_div(b->max_len, KEY_TILES * TILE), sh->n_kv_heads, b->n);
	if (b->n == 0)
		return;
	if (sh->dtype == SKV_F16)
		launch_dtype<F16>(&c, sh->head_dim, rows, keys, stream_of(work));
	else if (sh->dtype == SKV_FP8)
		launch_dtype<FP8>(&c, sh->head_dim, rows, keys, stream_of(work));
	else
		launch_dtype<BF16>(&c, sh->head_dim, rows, keys, stream_of(work));
}
