/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/evict/accumulate.cu - values of tokens: the attention that they get.
 *
 * A decode step leaves weights, which are added to the notes in one pass. A prompt's rows vote in two passes over the
 * keys, as attention itself would make one: the first has the denominators of the rows' softmax, in a few chunks of the
 * keys; the second has a block for each 64 keys, which goes through all rows that see them and adds up its columns. So
 * every value is the work of one block, which adds in one order.
 */
#include "kernels/cuda/evict/slot-meta.cuh"
#include "kernels/cuda/runtime/rows.cuh"

#define TALLY_THREADS 256
#define TALLY_PAIRS 2 /* of notes, a thread's, on their way at once */

/* ---- a decode step --------------------------------------------------------------------------- */

struct tally {
	const struct skv_kseq *seq;
	struct notes notes;
	const float *token; /* [seq][kv head][stride] */
	uint32_t stride, heads;
	float group;
};

/* Grid: parts of the slots, kv heads, sequences. */
__global__ void __launch_bounds__(TALLY_THREADS) tally_kernel(const __grid_constant__ struct tally c)
{
	const struct skv_kseq *s = &c.seq[blockIdx.z];
	const uint32_t first = 2 * (blockIdx.x * TALLY_PAIRS * TALLY_THREADS + threadIdx.x);
	const float *token = c.token + ((size_t)blockIdx.z * c.heads + blockIdx.y) * c.stride;
	struct skv_note *at[TALLY_PAIRS];
	struct pair note[TALLY_PAIRS];
	float2 vote[TALLY_PAIRS];

	if (s->tally == SKV_TALLY_NONE)
		return;
#pragma unroll
	for (int x = 0; x < TALLY_PAIRS; x++) {
		const uint32_t u = first + x * 2 * TALLY_THREADS;
		at[x] = NULL;
		if (u >= s->len)
			continue;
		at[x] = note_at(&c.notes, s, blockIdx.y, s->set, u);
		note[x] = pair_load(at[x]);
		vote[x] = *(const float2 *)(token + u); /* 0 from len on */
	}
#pragma unroll
	for (int x = 0; x < TALLY_PAIRS; x++) {
		if (!at[x])
			continue;
		const bool add = s->tally == SKV_TALLY_ADD;
		note[x].value[0] = (add ? fabsf(note[x].value[0]) : 0) + vote[x].x / c.group;
		note[x].value[1] = (add ? fabsf(note[x].value[1]) : 0) + vote[x].y / c.group;
		pair_store(at[x], &note[x]);
	}
}

void skv_cuda_tally(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_evidence *ev,
                    const struct skv_work *work)
{
	struct tally c = {};

	c.seq = b->seq;
	c.notes = notes_of(sh);
	c.token = ev->token;
	c.stride = ev->token_stride;
	c.heads = sh->n_kv_heads;
	c.group = (float)(sh->n_heads / sh->n_kv_heads);
	const dim3 grid(ceil_div(b->max_len, 2 * TALLY_PAIRS * TALLY_THREADS), c.heads, b->n);
	if (b->n > 0)
		tally_kernel<<<grid, TALLY_THREADS, 0, stream_of(work)>>>(c);
}

/* ---- a prompt -------------------------------------------------------------------------------- */

#define CHUNK_LEAST 32u /* tiles: a chunk of the keys has that many, or more if there would be too many chunks */
#define KEY_TILES 2     /* of a block that adds columns up */

struct votes {
	struct call call;
	struct notes notes;
	uint32_t window;
	float2 *part; /* [row of q][head][CHUNKS_MOST]: maximum and sum of a row's weights in a chunk of the keys */
};

/* Block `nth` of the rows that vote: false if there is none. */
DEVICE bool rows_of(const struct votes *c, uint32_t nth, struct job *j)
{
	const uint32_t n_q = j->s->n_q, voting = c->window ? min(c->window, n_q) : n_q;

	j->skip = n_q - voting;
	j->first = nth * ROWS;
	j->end = j->s->len - n_q + min(j->skip + (j->first + ROWS - 1) / c->call.group, n_q - 1) + 1;
	return j->first < voting * c->call.group;
}

DEVICE void job_begin(const struct votes *c, struct job *j)
{
	j->s = &c->call.seq[blockIdx.z];
	j->h = blockIdx.y;
	j->table = j->s->table + (size_t)c->call.layer * j->s->layer_stride;
}

/* Grid: chunks of the keys, of each block of rows; kv heads, sequences. */
template <class T, int D> __global__ void __launch_bounds__(THREADS) sums_kernel(const __grid_constant__ struct votes c)
{
	extern __shared__ __align__(128) uint8_t memory[];
	constexpr uint32_t bytes = TILE * pitch<D>;
	const uint32_t at = shared_address(memory), chunk = blockIdx.x % CHUNKS_MOST;
	struct rows<T, D> r;
	struct job j;

	job_begin(&c, &j);
	if (!rows_of(&c, blockIdx.x / CHUNKS_MOST, &j))
		return;
	const uint32_t tiles = (j.end + TILE - 1) / TILE, all = (j.s->len + TILE - 1) / TILE;
	const uint32_t each = max(CHUNK_LEAST, (all + CHUNKS_MOST - 1) / CHUNKS_MOST);
	const uint32_t from = chunk * each, to = min(tiles, from + each);

	rows_begin<T, D>(&r, &c.call, &j);
	if (from < to)
		load_tile<D, false>(&c.call, &j, from, at + from % 2 * bytes, 0);
	copies_queued();
	for (uint32_t tile = from; tile < to; tile++) {
		float s[TILE / 8][4];
		if (tile + 1 < to)
			load_tile<D, false>(&c.call, &j, tile + 1, at + (tile + 1) % 2 * bytes, 0);
		copies_queued();
		copies_wait<1>();
		__syncthreads();
		scores<T, D>(&r, at + tile % 2 * bytes, s);
		mask<T, D>(&r, &c.call, tile, pages_there(&j, tile), s);
		weigh<T, D>(&r, s);
		__syncthreads();
	}
#pragma unroll
	for (int x = 0; x < 2; x++) {
		float sum = r.sum[x];
		sum += __shfl_xor_sync(~0u, sum, 1);
		sum += __shfl_xor_sync(~0u, sum, 2);
		if (threadIdx.x % 4 == 0 && r.out[x] != 0xffffffff)
			c.part[(size_t)r.out[x] * CHUNKS_MOST + chunk] = make_float2(r.max[x], sum);
	}
}

/* The logarithm of a row's denominator, from its chunks: four lanes have two each. Infinite where there is no row. */
DEVICE float denominator(const struct votes *c, uint32_t out)
{
	const float2 none = make_float2(-INFINITY, 0), *part = c->part + (size_t)out * CHUNKS_MOST + threadIdx.x % 4;
	const float2 a = out == 0xffffffff ? none : part[0], b = out == 0xffffffff ? none : part[4];
	float max = fmaxf(a.x, b.x);
	max = fmaxf(max, __shfl_xor_sync(~0u, max, 1));
	max = fmaxf(max, __shfl_xor_sync(~0u, max, 2));
	const float base = max == -INFINITY ? 0 : max;
	float sum = a.y * exp2_fast(a.x - base) + b.y * exp2_fast(b.x - base);
	sum += __shfl_xor_sync(~0u, sum, 1);
	sum += __shfl_xor_sync(~0u, sum, 2);
	return sum > 0 ? base + log2f(sum) : INFINITY;
}

/* Weights of a tile's scores, added up by columns, 8 n + 2 c and + 1, of rows g and g + 8. */
DEVICE void add_columns(const float s[TILE / 8][4], const float lse[2], float col[TILE / 8][2])
{
#pragma unroll
	for (int n = 0; n < (int)TILE / 8; n++)
#pragma unroll
		for (int x = 0; x < 4; x++)
			col[n][x % 2] += exp2_fast(s[n][x] - lse[x / 2]);
}

/* The block's columns, of KEY_TILES tiles, from all of its lanes. */
DEVICE void fold_columns(const float col[KEY_TILES][TILE / 8][2], float votes[WARPS][KEY_TILES * TILE])
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
					votes[threadIdx.x / 32][t * TILE + 8 * n + threadIdx.x % 4 * 2 + x] = sum;
			}
	__syncthreads();
}

/* Grid: KEY_TILES tiles of keys, kv heads, sequences. */
template <class T, int D>
__global__ void __launch_bounds__(THREADS) columns_kernel(const __grid_constant__ struct votes c)
{
	extern __shared__ __align__(128) uint8_t memory[];
	__shared__ float votes[WARPS][KEY_TILES * TILE];
	constexpr uint32_t bytes = TILE * pitch<D>;
	const uint32_t at = shared_address(memory), tile = blockIdx.x * KEY_TILES, first = tile * TILE;
	uint32_t there[KEY_TILES];
	float col[KEY_TILES][TILE / 8][2] = {};
	struct job j;

	job_begin(&c, &j);
	if (first >= j.s->len)
		return;
	j.end = j.s->len;
#pragma unroll
	for (int t = 0; t < KEY_TILES; t++) {
		load_tile<D, false>(&c.call, &j, tile + t, at + t * bytes, 0);
		there[t] = pages_there(&j, tile + t);
	}
	copies_queued();
	copies_wait<0>();
	__syncthreads();
	rows_of(&c, 0, &j);
	const uint32_t before = j.s->len - j.s->n_q + j.skip; /* tokens before the first row that votes */
	for (uint32_t nth = first > before ? (first - before) * c.call.group / ROWS : 0; rows_of(&c, nth, &j); nth++) {
		struct rows<T, D> r;
		rows_begin<T, D>(&r, &c.call, &j);
		const float lse[2] = {denominator(&c, r.out[0]), denominator(&c, r.out[1])};
#pragma unroll
		for (int t = 0; t < KEY_TILES; t++) {
			float s[TILE / 8][4];
			scores<T, D>(&r, at + t * bytes, s);
			mask<T, D>(&r, &c.call, tile + t, there[t], s);
			add_columns(s, lse, col[t]);
		}
	}
	fold_columns(col, votes);
	const bool anew = c.window && j.s->n_q >= c.window;
	for (uint32_t x = threadIdx.x; x < KEY_TILES * TILE && first + x < j.s->len; x += THREADS) {
		struct skv_note *note = note_at(&c.notes, j.s, j.h, j.s->set, first + x);
		float sum = 0;
#pragma unroll
		for (int w = 0; w < WARPS; w++)
			sum += votes[w][x];
		note->value = (anew ? 0 : fabsf(note->value)) + sum / (float)c.call.group;
	}
}

template <class T, int D> static cudaError_t init(void)
{
	const int bytes = KEY_TILES * TILE * pitch<D>;
	const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
	const cudaError_t e = cudaFuncSetAttribute(sums_kernel<T, D>, most, bytes);
	return e ? e : cudaFuncSetAttribute(columns_kernel<T, D>, most, bytes);
}

template <class T> static cudaError_t init_dtype(void)
{
	cudaError_t e = init<T, 64>();
	e = e ? e : init<T, 96>();
	e = e ? e : init<T, 128>();
	return e ? e : init<T, 256>();
}

cudaError_t skv_cuda_votes_init(void)
{
	cudaError_t e = init_dtype<F16>();
	return e ? e : init_dtype<BF16>();
}

/* Both passes have two tiles of keys in shared memory. */
template <class T, int D> static void launch(const struct votes *c, dim3 rows, dim3 keys, cudaStream_t stream)
{
	sums_kernel<T, D><<<rows, THREADS, KEY_TILES * TILE * pitch<D>, stream>>>(*c);
	columns_kernel<T, D><<<keys, THREADS, KEY_TILES * TILE * pitch<D>, stream>>>(*c);
}

template <class T>
static void launch_dtype(const struct votes *c, uint32_t head_dim, dim3 rows, dim3 keys, cudaStream_t stream)
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

void skv_cuda_tally_prompt(const struct skv_shape *sh, const struct skv_batch *b, const void *q, uint32_t window,
                           const struct skv_work *work)
{
	const struct layout l = layout_of(sh, b->n, b->max_len, 1);
	const uint32_t voting = window && window < b->max_q ? window : b->max_q;
	struct votes c = {};

	c.call.seq = b->seq;
	c.call.pool = sh->pool;
	c.call.page_bytes = sh->page_bytes;
	c.call.q = q;
	c.call.scale = sh->scale * LOG2E;
	c.call.n_heads = sh->n_heads;
	c.call.group = sh->n_heads / sh->n_kv_heads;
	c.call.layer = sh->layer;
	c.call.io_dtype = sh->io_dtype;
	c.notes = notes_of(sh);
	c.window = window;
	c.part = (float2 *)((uint8_t *)work->mem + l.part);
	const dim3 rows(ceil_div(voting * c.call.group, ROWS) * CHUNKS_MOST, sh->n_kv_heads, b->n);
	const dim3 keys(ceil_div(b->max_len, KEY_TILES * TILE), sh->n_kv_heads, b->n);
	if (b->n == 0)
		return;
	if (sh->dtype == SKV_F16)
		launch_dtype<F16>(&c, sh->head_dim, rows, keys, stream_of(work));
	else
		launch_dtype<BF16>(&c, sh->head_dim, rows, keys, stream_of(work));
}
