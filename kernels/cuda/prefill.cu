/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/prefill.cu - causal attention of many query rows.
 *
 * FlashAttention-2 over pages. A block takes 64 query rows of one kv head: the rows of a chunk times the q
 * heads of the group, so that short chunks fill a block too. K and V come through shared memory in tiles of
 * 64 tokens (four pages), the next tile copied while one is worked on. Tiles begin at multiples of 64 tokens and
 * a row's arithmetic does not involve its neighbours, so a row's bits do not depend on how a prompt is cut.
 *
 * A row of a tile is stored as 16-byte pieces, piece p of token t at p ^ (t % 8): eight tokens' pieces, which
 * one ldmatrix reads, lie in different banks.
 */
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/cuda.h"

#define LOG2E 1.44269504088896340736f
#define WARPS 4
#define THREADS (32 * WARPS)
#define ROWS (16 * WARPS)
#define TILE 64u
#define TILE_PAGES (TILE / SKV_PAGE_TOKENS)

struct call {
	const struct skv_kseq *seq;
	const uint8_t *pool;
	size_t page_bytes;
	const void *q;
	void *out;
	float scale;
	uint32_t n_heads, group, layer, io_dtype;
};

/* What a block works on. */
struct job {
	const struct skv_kseq *s;
	const skv_pte *table;
	uint32_t h, first; /* kv head; first of the (row, head) pairs */
	uint32_t end;      /* tokens that the last row sees */
};

DEVICE uint32_t shared_address(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes to shared memory in the background; zeros when there is nothing to read. */
DEVICE void copy16(uint32_t to, const void *from, bool there)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0));
}

DEVICE void copies_queued(void)
{
	asm volatile("cp.async.commit_group;");
}

template <int n> DEVICE void copies_wait(void)
{
	asm volatile("cp.async.wait_group %0;" ::"n"(n));
}

DEVICE uint4 matrices(uint32_t at)
{
	uint4 m;
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
	             : "=r"(m.x), "=r"(m.y), "=r"(m.z), "=r"(m.w) : "r"(at));
	return m;
}

DEVICE uint4 matrices_transposed(uint32_t at)
{
	uint4 m;
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
	             : "=r"(m.x), "=r"(m.y), "=r"(m.z), "=r"(m.w) : "r"(at));
	return m;
}

/* Bytes of a token in a tile: a power of two, as the order of its pieces needs. */
template <int D> constexpr uint32_t pitch = D == 96 ? 256 : D * 2;

/* Where piece p of token t lies in a tile. */
template <int D> DEVICE uint32_t piece_at(uint32_t t, uint32_t p)
{
	return t * pitch<D> + (p ^ t % 8) * 16;
}

/* K and V of two tiles. */
template <int D> constexpr int shared_bytes = 4 * TILE * pitch<D>;

template <int D>
__device__ static void load_tile(const struct call *c, const struct job *j, uint32_t tile, uint32_t k_at, uint32_t v_at)
{
	constexpr uint32_t pieces = D / 8;
	for (uint32_t e = threadIdx.x; e < TILE * pieces; e += THREADS) {
		const uint32_t t = e / pieces, p = e % pieces, token = tile * TILE + t;
		const skv_pte entry = token < j->end ? j->table[token / SKV_PAGE_TOKENS] : 0;
		const bool there = skv_pte_resident(entry);
		const uint8_t *row = c->pool + (there ? skv_pte_id(entry) * c->page_bytes : 0) +
		                     (j->h * SKV_PAGE_TOKENS + token % SKV_PAGE_TOKENS) * (D * 2) + p * 16;
		copy16(k_at + piece_at<D>(t, p), row, there);
		copy16(v_at + piece_at<D>(t, p), row + c->page_bytes / 2, there);
	}
}

/* A warp's 16 rows. A lane (g, c) has parts of rows g and g + 8. */
template <class T, int D> struct rows {
	uint32_t q[D / 16][4];
	float acc[D / 8][4];
	float max[2], sum[2];
	uint32_t token[2]; /* the last that the row sees, by number */
	uint32_t out[2];   /* index of the row of q and out; 0xffffffff past the end */
};

template <class T, int D> __device__ static void rows_begin(struct rows<T, D> *r, const struct call *c, const struct job *j)
{
	const uint32_t lane = threadIdx.x % 32, col = lane % 4 * 2;
#pragma unroll
	for (int x = 0; x < 2; x++) {
		const uint32_t pair = j->first + threadIdx.x / 32 * 16 + lane / 4 + 8 * x, row = pair / c->group;
		const bool there = row < j->s->n_q;
		r->token[x] = j->s->len - j->s->n_q + min(row, j->s->n_q - 1);
		r->out[x] = there ? (j->s->row + row) * c->n_heads + j->h * c->group + pair % c->group : 0xffffffff;
		r->max[x] = -INFINITY;
		r->sum[x] = 0;
		const size_t from = (size_t)(there ? r->out[x] : 0) * D + col;
#pragma unroll
		for (int k = 0; k < D / 16; k++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				const size_t at = from + 16 * k + 8 * half;
				r->q[k][2 * half + x] = there ? T::pair(io_load(c->io_dtype, c->q, at), io_load(c->io_dtype, c->q, at + 1)) : 0;
			}
	}
#pragma unroll
	for (int a = 0; a < D / 8; a++)
#pragma unroll
		for (int x = 0; x < 4; x++)
			r->acc[a][x] = 0;
}

/* s[n]: tokens 8 n + 2 c and + 1 of rows g, then g + 8. */
template <class T, int D> __device__ static void scores(const struct rows<T, D> *r, uint32_t k_at, float s[TILE / 8][4])
{
	const uint32_t lane = threadIdx.x % 32, t = lane / 16 * 8 + lane % 8, p = lane / 8 % 2;
#pragma unroll
	for (int n = 0; n < (int)TILE / 16; n++) {
#pragma unroll
		for (int x = 0; x < 4; x++)
			s[2 * n][x] = s[2 * n + 1][x] = 0;
#pragma unroll
		for (int k = 0; k < D / 16; k++) {
			const uint4 b = matrices(k_at + piece_at<D>(16 * n + t, 2 * k + p));
			const uint32_t *q = r->q[k];
			T::product(s[2 * n], q[0], q[1], q[2], q[3], b.x, b.y);
			T::product(s[2 * n + 1], q[0], q[1], q[2], q[3], b.z, b.w);
		}
	}
}

/* Scale; what a row may not see, or is not there, takes no part. `there`: a bit a page. */
template <class T, int D>
__device__ static void mask(const struct rows<T, D> *r, const struct call *c, uint32_t tile, uint32_t there, float s[TILE / 8][4])
{
	const uint32_t first = tile * TILE + threadIdx.x % 4 * 2;
#pragma unroll
	for (int n = 0; n < (int)TILE / 8; n++)
#pragma unroll
		for (int x = 0; x < 4; x++) {
			const bool seen = first + 8 * n + x % 2 <= r->token[x / 2] && (there >> n / 2 & 1);
			s[n][x] = seen ? s[n][x] * c->scale : -INFINITY;
		}
}

/* Softmax of the tile: s becomes weights; maximum, sum and output follow. */
template <class T, int D> __device__ static void weigh(struct rows<T, D> *r, float s[TILE / 8][4])
{
#pragma unroll
	for (int x = 0; x < 2; x++) {
		float max = r->max[x], sum = 0;
#pragma unroll
		for (int n = 0; n < (int)TILE / 8; n++)
			max = fmaxf(max, fmaxf(s[n][2 * x], s[n][2 * x + 1]));
		max = fmaxf(max, __shfl_xor_sync(~0u, max, 1));
		max = fmaxf(max, __shfl_xor_sync(~0u, max, 2));
		const float base = max == -INFINITY ? 0 : max, fix = exp2_fast(r->max[x] - base);
#pragma unroll
		for (int n = 0; n < (int)TILE / 8; n++)
#pragma unroll
			for (int y = 2 * x; y < 2 * x + 2; y++) {
				s[n][y] = exp2_fast(s[n][y] - base);
				sum += s[n][y];
			}
		r->sum[x] = r->sum[x] * fix + sum;
		r->max[x] = max;
#pragma unroll
		for (int a = 0; a < D / 8; a++) {
			r->acc[a][2 * x] *= fix;
			r->acc[a][2 * x + 1] *= fix;
		}
	}
}

template <class T, int D> __device__ static void add_values(struct rows<T, D> *r, uint32_t v_at, const float s[TILE / 8][4])
{
	const uint32_t lane = threadIdx.x % 32, t = lane % 16, p = lane / 16;
#pragma unroll
	for (int n = 0; n < (int)TILE / 16; n++) {
		const float *a = s[2 * n], *b = s[2 * n + 1];
		const uint32_t w0 = T::pair(a[0], a[1]), w1 = T::pair(a[2], a[3]), w2 = T::pair(b[0], b[1]),
		               w3 = T::pair(b[2], b[3]);
#pragma unroll
		for (int d = 0; d < D / 16; d++) {
			const uint4 v = matrices_transposed(v_at + piece_at<D>(16 * n + t, 2 * d + p));
			T::product(r->acc[2 * d], w0, w1, w2, w3, v.x, v.y);
			T::product(r->acc[2 * d + 1], w0, w1, w2, w3, v.z, v.w);
		}
	}
}

template <class T, int D> __device__ static void rows_end(struct rows<T, D> *r, const struct call *c)
{
	const uint32_t col = threadIdx.x % 4 * 2;
#pragma unroll
	for (int x = 0; x < 2; x++) {
		float sum = r->sum[x];
		sum += __shfl_xor_sync(~0u, sum, 1);
		sum += __shfl_xor_sync(~0u, sum, 2);
		if (r->out[x] == 0xffffffff)
			continue;
		const float share = sum > 0 ? 1 / sum : 0;
#pragma unroll
		for (int a = 0; a < D / 8; a++) {
			const size_t at = (size_t)r->out[x] * D + 8 * a + col;
			io_store(c->io_dtype, c->out, at, r->acc[a][2 * x] * share);
			io_store(c->io_dtype, c->out, at + 1, r->acc[a][2 * x + 1] * share);
		}
	}
}

/* Which pages of a tile are there, a bit each. */
__device__ static uint32_t pages_there(const struct job *j, uint32_t tile)
{
	uint32_t there = 0;
#pragma unroll
	for (uint32_t p = 0; p < TILE_PAGES; p++) {
		const uint32_t page = tile * TILE_PAGES + p;
		if (page * SKV_PAGE_TOKENS < j->end && skv_pte_resident(j->table[page]))
			there |= 1u << p;
	}
	return there;
}

template <class T, int D>
__global__ void __launch_bounds__(THREADS, D <= 128 ? 2 : 1) prefill_kernel(const __grid_constant__ struct call c)
{
	extern __shared__ __align__(128) uint8_t memory[];
	constexpr uint32_t bytes = TILE * pitch<D>;
	const uint32_t at = shared_address(memory);
	struct rows<T, D> r;
	struct job j;

	j.s = &c.seq[blockIdx.z];
	j.h = blockIdx.y;
	/* the longest rows first: what is left at the end is short */
	const uint32_t blocks = (j.s->n_q * c.group + ROWS - 1) / ROWS;
	if (blockIdx.x >= blocks)
		return;
	j.first = (blocks - 1 - blockIdx.x) * ROWS;
	j.table = j.s->table + (size_t)c.layer * j.s->layer_stride;
	j.end = j.s->len - j.s->n_q + min((j.first + ROWS - 1) / c.group, j.s->n_q - 1) + 1;
	const uint32_t tiles = (j.end + TILE - 1) / TILE;

	load_tile<D>(&c, &j, 0, at, at + bytes);
	copies_queued();
	rows_begin<T, D>(&r, &c, &j);
	for (uint32_t tile = 0; tile < tiles; tile++) {
		const uint32_t now = at + tile % 2 * 2 * bytes, next = at + (tile + 1) % 2 * 2 * bytes;
		float s[TILE / 8][4];
		if (tile + 1 < tiles)
			load_tile<D>(&c, &j, tile + 1, next, next + bytes);
		copies_queued();
		copies_wait<1>();
		__syncthreads();
		scores<T, D>(&r, now, s);
		mask<T, D>(&r, &c, tile, pages_there(&j, tile), s);
		weigh<T, D>(&r, s);
		add_values<T, D>(&r, now + bytes, s);
		__syncthreads();
	}
	rows_end<T, D>(&r, &c);
}

template <class T, int D> static cudaError_t init(void)
{
	return cudaFuncSetAttribute(prefill_kernel<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes<D>);
}

template <class T> static cudaError_t init_dtype(void)
{
	cudaError_t e = init<T, 64>();
	e = e ? e : init<T, 96>();
	e = e ? e : init<T, 128>();
	return e ? e : init<T, 256>();
}

cudaError_t skv_cuda_prefill_init(void)
{
	cudaError_t e = init_dtype<F16>();
	return e ? e : init_dtype<BF16>();
}

template <class T, int D> static void launch(const struct call *c, dim3 grid, cudaStream_t stream)
{
	prefill_kernel<T, D><<<grid, THREADS, shared_bytes<D>, stream>>>(*c);
}

template <class T> static void launch_dtype(const struct call *c, uint32_t head_dim, dim3 grid, cudaStream_t stream)
{
	if (head_dim == 64)
		launch<T, 64>(c, grid, stream);
	else if (head_dim == 96)
		launch<T, 96>(c, grid, stream);
	else if (head_dim == 128)
		launch<T, 128>(c, grid, stream);
	else
		launch<T, 256>(c, grid, stream);
}

void skv_cuda_prefill_dense(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                            const struct skv_work *work)
{
	const struct call c = {
		.seq = b->seq,
		.pool = sh->pool,
		.page_bytes = sh->page_bytes,
		.q = q,
		.out = out,
		.scale = sh->scale * LOG2E,
		.n_heads = sh->n_heads,
		.group = sh->n_heads / sh->n_kv_heads,
		.layer = sh->layer,
		.io_dtype = sh->io_dtype,
	};
	const dim3 grid(ceil_div(b->max_q * c.group, ROWS), sh->n_kv_heads, b->n);

	if (b->n == 0)
		return;
	if (sh->dtype == SKV_F16)
		launch_dtype<F16>(&c, sh->head_dim, grid, stream_of(work));
	else
		launch_dtype<BF16>(&c, sh->head_dim, grid, stream_of(work));
}
