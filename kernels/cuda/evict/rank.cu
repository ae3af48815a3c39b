/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/evict/rank.cu - ranks tokens by their accumulated scores, before an eviction.
 *
 * A block ranks the tokens of one kv head of a sequence. Scores are smoothed over neighbouring positions, whose tokens
 * may be in any slots. So scores are ordered by position in shared memory, a range of positions at a time. A key's mean
 * cosine similarity to all keys is the product of the normalized key and the mean of all normalized keys: this takes
 * two passes over the keys, in which TEAM lanes share a key. Inactive tokens count among these keys, but not in sums of
 * scores.
 */
#include "kernels/cuda/evict/slot-meta.cuh"
#include "kernels/cuda/runtime/fp8.cuh"

#define THREADS 512
#define SMEM_POSITIONS 10240u /* positions in shared memory at a time, including neighbours */
#define EIGHT 8u      /* elements that a lane reads at a time: 16 bytes, 8 bytes of fp8 */

struct rank_params {
	const struct skv_kseq *seq;
	struct meta_table meta;
	struct skv_rank by;
	float *rank;       /* [seq][kv head][stride] ranks of tokens */
	/* [seq][kv head][similarity_stride] exp(mean cosine similarity) of each token's key. */
	float *similarity;
	uint32_t stride, similarity_stride;
	uint32_t heads, head_dim, dtype, layer;
};

struct head_item {
	const struct skv_kseq *s;
	float *rank, *similarity;
	uint32_t h;
};

/* Returns the sum of `mine` over the block's threads. */
__device__ static float block_sum(float mine)
{
	__shared__ float of_warp[THREADS / 32];
	float sum = 0;
#pragma unroll
	for (int lane = 1; lane < 32; lane *= 2)
		mine += __shfl_xor_sync(~0u, mine, lane);
	__syncthreads(); /* all threads have read the sums of the previous call */
	if (threadIdx.x % 32 == 0)
		of_warp[threadIdx.x / 32] = mine;
	__syncthreads();
#pragma unroll
	for (int w = 0; w < THREADS / 32; w++)
		sum += of_warp[w];
	return sum;
}

/* Calls use(slot, position, score) for each token of the block's kv head. */
template <class F> DEVICE void for_each_token(const struct rank_params *c, const struct head_item *j, F use)
{
	for_each_pair<THREADS>(&c->meta, j->s, j->h, j->s->set, 0, j->s->len, j->s->len,
	                       [=](uint32_t u, struct meta_pair p) {
#pragma unroll
		for (int x = 0; x < 2; x++)
			if (u + x < j->s->len)
				use(u + x, p.pos[x], p.value[x]);
	});
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* Returns the largest position of a token of the block's kv head. */
__device__ static uint32_t last_position(const struct rank_params *c, const struct head_item *j)
{
	__shared__ uint32_t last;
	uint32_t mine = 0;

	if (threadIdx.x == 0)
		last = 0;
	__syncthreads();
	for_each_token(c, j, [&](uint32_t, uint32_t pos, float) { mine = max(mine, pos); });
	atomicMax(&last, mine);
	__syncthreads();
	return last;
}

/* Sets each token's rank to the mean score of `smooth` neighbouring positions. */
__device__ static void smooth(const struct rank_params *c, const struct head_item *j, float *values)
{
	const uint32_t wide = c->by.smooth, half = wide / 2, step = SMEM_POSITIONS - 2 * half;
	const uint32_t last = last_position(c, j);

	for (uint32_t from = 0; from <= last; from += step) { /* values[x] is for position from - half + x */
		for (uint32_t x = threadIdx.x; x < SMEM_POSITIONS; x += THREADS)
			values[x] = 0;
		__syncthreads();
		for_each_token(c, j, [=](uint32_t, uint32_t pos, float value) {
			if (pos + half - from < SMEM_POSITIONS) /* positions below the range wrap to large values */
				values[pos + half - from] = is_inactive(value) ? 0 : value;
		});
		__syncthreads();
		for_each_token(c, j, [=](uint32_t u, uint32_t pos, float value) {
			float sum = 0;
			if (pos - from >= step)
				return;
			for (uint32_t x = 0; x < wide; x++)
				sum += values[pos - from + x];
			j->rank[u] = is_inactive(value) ? -INFINITY : sum / (float)wide;
		});
		__syncthreads();
	}
}

/* ---- similarity ------------------------------------------------------------------------------ */

/*
 * Calls use(slot, x) in all lanes, with eight elements x of the slot's key. Slots at `len` and after it, and elements
 * past the key's end, are passed as zeros. The scale of an fp8 row is left out, since it does not change the key's
 * direction.
 */
template <int TEAM, class F> DEVICE void for_each_key(const struct rank_params *c, const struct head_item *j, F use)
{
	constexpr uint32_t deep = 4, teams = THREADS / TEAM; /* deep: number of loads in flight */
	const skv_pte *table = j->s->table + (size_t)c->layer * j->s->layer_stride;
	const uint32_t d = threadIdx.x % TEAM * EIGHT;

	for (uint32_t first = threadIdx.x / 32 * (32 / TEAM); first < j->s->len; first += deep * teams) {
		uint4 v[deep];
#pragma unroll
		for (uint32_t x = 0; x < deep; x++) {
			const uint32_t u = first + x * teams + threadIdx.x % 32 / TEAM;
			v[x] = make_uint4(0, 0, 0, 0);
			const skv_pte entry = u < j->s->len ? table[u / SKV_PAGE_TOKENS] : 0;
			if (!skv_pte_resident(entry) || d >= c->head_dim)
				continue;
			const uint8_t *page = c->meta.pool + skv_pte_id(entry) * c->meta.page_bytes;
			const uint32_t row = j->h * SKV_PAGE_TOKENS + u % SKV_PAGE_TOKENS;
			v[x] = row_read8(c->dtype, page, row * c->head_dim + d);
		}
#pragma unroll
		for (uint32_t x = 0; x < deep; x++) {
			const float2 e[] = {row_pair(c->dtype, v[x], 0), row_pair(c->dtype, v[x], 1), row_pair(c->dtype, v[x], 2),
			                    row_pair(c->dtype, v[x], 3)};
			use(first + x * teams + threadIdx.x % 32 / TEAM, e);
		}
	}
}

template <int TEAM> DEVICE float team_sum(float x)
{
#pragma unroll
	for (int lane = 1; lane < TEAM; lane *= 2)
		x += __shfl_xor_sync(~0u, x, lane);
	return x;
}

/* Returns the inverse of a key's norm; 0 for a key of zeros, which so is similar to no key. */
template <int TEAM> DEVICE float inverse_length(const float2 e[4])
{
	float square = 0;
#pragma unroll
	for (int k = 0; k < 4; k++)
		square += e[k].x * e[k].x + e[k].y * e[k].y;
	square = team_sum<TEAM>(square);
	return square > 0 ? 1 / sqrtf(square) : 0;
}

/*
 * Computes the mean of all normalized keys; ret is this lane's elements of it. `smem`: THREADS * EIGHT + head_dim
 * floats.
 */
template <int TEAM>
__device__ static void mean_key(const struct rank_params *c, const struct head_item *j, float *smem, float2 ret[4])
{
	constexpr uint32_t teams = THREADS / TEAM;
	const uint32_t lane = threadIdx.x % TEAM, all = TEAM * EIGHT; /* all: elements of a team */
	float2 sum[4] = {};
	float *mean = smem + THREADS * EIGHT;

	for_each_key<TEAM>(c, j, [&](uint32_t, const float2 e[4]) {
		const float by = inverse_length<TEAM>(e);
#pragma unroll
		for (int k = 0; k < 4; k++)
			sum[k] = make_float2(sum[k].x + e[k].x * by, sum[k].y + e[k].y * by);
	});
#pragma unroll
	for (int k = 0; k < 4; k++)
		*(float2 *)&smem[threadIdx.x / TEAM * all + lane * EIGHT + 2 * k] = sum[k];
	__syncthreads();
	for (uint32_t d = threadIdx.x; d < all; d += THREADS) {
		float total = 0;
		for (uint32_t t = 0; t < teams; t++)
			total += smem[t * all + d];
		mean[d] = total / (float)j->s->len;
	}
	__syncthreads();
#pragma unroll
	for (int k = 0; k < 4; k++)
		ret[k] = *(const float2 *)&mean[lane * EIGHT + 2 * k];
}

/* Sets j->similarity to exp(mean cosine similarity) of each token's key, and returns the sum of these values. */
template <int TEAM>
__device__ static float similarities(const struct rank_params *c, const struct head_item *j, float *smem)
{
	float2 mean[4];
	float mine = 0;

	mean_key<TEAM>(c, j, smem, mean);
	for_each_key<TEAM>(c, j, [&](uint32_t u, const float2 e[4]) {
		float dot = 0;
#pragma unroll
		for (int k = 0; k < 4; k++)
			dot += e[k].x * mean[k].x + e[k].y * mean[k].y;
		/* does not overflow: similarities are at most 1 */
		const float x = expf(team_sum<TEAM>(dot) * inverse_length<TEAM>(e));
		if (u >= j->s->len || threadIdx.x % TEAM)
			return;
		j->similarity[u] = x;
		mine += x;
	});
	return block_sum(mine);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Computes the ranks of a kv head's tokens. The grid is kv heads (x) by sequences (y). */
template <int TEAM>
__global__ void __launch_bounds__(THREADS, 2) rank_kernel(const __grid_constant__ struct rank_params c)
{
	__shared__ __align__(16) float smem[SMEM_POSITIONS];
	const struct skv_kseq *s = &c.seq[blockIdx.y];
	const size_t row = (size_t)blockIdx.y * c.heads + blockIdx.x;
	const struct head_item j = {s, c.rank + row * c.stride, c.similarity + row * c.similarity_stride, blockIdx.x};
	const struct head_item *item = &j;
	const float lambda = c.by.lambda;
	float mine = 0;

	if (s->n_retained >= s->len && s->n_active == UINT32_MAX)
		return;
	if (c.by.smooth > 1)
		smooth(&c, item, smem);
	else
		for_each_token(&c, item, [=](uint32_t u, uint32_t, float value) {
			item->rank[u] = is_inactive(value) ? -INFINITY : value;
		});
	if (!(lambda > 0))
		return;
	for_each_token(&c, item,
	               [&](uint32_t u, uint32_t, float value) { mine += is_inactive(value) ? 0 : item->rank[u]; });
	const float values = block_sum(mine), similarity_sum = similarities<TEAM>(&c, item, smem);
	for_each_token(&c, item, [=](uint32_t u, uint32_t, float value) {
		if (is_inactive(value))
			return;
		const float importance = values > 0 ? item->rank[u] / values : 0;
		item->rank[u] = lambda * importance - (1 - lambda) * (item->similarity[u] / similarity_sum);
	});
}

void skv_cuda_rank_tokens(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_rank *by,
                          float *rank, uint32_t stride, const struct skv_workspace *work)
{
	const struct workspace_layout l = workspace_layout_of(sh, b->n, b->max_len, 1);
	const dim3 grid(sh->n_kv_heads, b->n);
	struct rank_params c = {};

	c.seq = b->seq;
	c.meta = meta_table_of(sh);
	c.by = *by;
	c.rank = rank;
	c.stride = stride;
	c.similarity = (float *)((uint8_t *)work->mem + l.topk_scores);
	c.similarity_stride = l.tokens;
	c.heads = sh->n_kv_heads;
	c.head_dim = sh->head_dim;
	c.dtype = sh->dtype;
	c.layer = sh->layer;
	if (b->n == 0)
		return;
	if (sh->head_dim <= 64)
		launch_grid(rank_kernel<8>, grid, THREADS, 0, stream_of(work), c);
	else if (sh->head_dim <= 128)
		launch_grid(rank_kernel<16>, grid, THREADS, 0, stream_of(work), c);
	else
		launch_grid(rank_kernel<32>, grid, THREADS, 0, stream_of(work), c);
}
