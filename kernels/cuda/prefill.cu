/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/prefill.cu - causal attention of many query rows.
 *
 * FlashAttention-2 over pages. A block takes 64 query rows of one kv head (rows.cuh); the next tile of K and V is copied
 * while one is worked on. A row's arithmetic does not involve its neighbours.
 */
#include "kernels/cuda/rows.cuh"

DEVICE uint4 matrices_transposed(uint32_t at)
{
	uint4 m;
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
	             : "=r"(m.x), "=r"(m.y), "=r"(m.z), "=r"(m.w) : "r"(at));
	return m;
}

/* K and V of two tiles. */
template <int D> constexpr int shared_bytes = 4 * TILE * pitch<D>;

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
	j.skip = 0;
	/* the longest rows first: what is left at the end is short */
	const uint32_t blocks = (j.s->n_q * c.group + ROWS - 1) / ROWS;
	if (blockIdx.x >= blocks)
		return;
	j.first = (blocks - 1 - blockIdx.x) * ROWS;
	j.table = j.s->table + (size_t)c.layer * j.s->layer_stride;
	j.end = j.s->len - j.s->n_q + min((j.first + ROWS - 1) / c.group, j.s->n_q - 1) + 1;
	const uint32_t tiles = (j.end + TILE - 1) / TILE;

	load_tile<D, true>(&c, &j, 0, at, at + bytes);
	copies_queued();
	rows_begin<T, D>(&r, &c, &j);
	for (uint32_t tile = 0; tile < tiles; tile++) {
		const uint32_t now = at + tile % 2 * 2 * bytes, next = at + (tile + 1) % 2 * 2 * bytes;
		float s[TILE / 8][4];
		if (tile + 1 < tiles)
			load_tile<D, true>(&c, &j, tile + 1, next, next + bytes);
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
