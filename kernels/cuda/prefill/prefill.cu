/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/prefill/prefill.cu - prefill: causal attention of many query rows, dense and sparse (tiles.cuh).
 *
 * The kernel has the structure of FlashAttention-2, over pages and lists, for any device: a block takes 64 query rows
 * (rows.cuh), and copies the next tile of K and V while it works on the current one. A row's arithmetic does not
 * involve other rows. On Hopper, prefill-sm90.cu has a faster kernel for 16-bit pages and head dims 64 and 128.
 */
#include "kernels/cuda/prefill/prefill.h"
#include "kernels/device.h"
#include "kernels/cuda/prefill/output.cuh"
#include "kernels/cuda/runtime/rows.cuh"

/* Bytes of shared memory: two tiles of K and two of V. */
template <int D> constexpr int shared_bytes = 4 * TILE * pitch<D>;

template <class T, int D> __device__ static void add_values(struct rows<T, D> *r, uint32_t v_at,
                                                            const float s[TILE / 8][4])
{
	const uint32_t lane = threadIdx.x % 32, t = lane % 16, p = lane / 16;
#pragma unroll
	for (int n = 0; n < (int)TILE / 16; n++) {
		const float *a = s[2 * n], *b = s[2 * n + 1];
		const uint32_t w0 = T::pair(a[0], a[1]), w1 = T::pair(a[2], a[3]), w2 = T::pair(b[0], b[1]),
		               w3 = T::pair(b[2], b[3]);
#pragma unroll
		for (int d = 0; d < D / 16; d++) {
			const uint4 v = ldmatrix_x4_trans(v_at + piece_at<D>(16 * n + t, 2 * d + p));
			T::mma(r->acc[2 * d], w0, w1, w2, w3, v.x, v.y);
			T::mma(r->acc[2 * d + 1], w0, w1, w2, w3, v.z, v.w);
		}
	}
}

/*
 * Returns the location of a token's K row: the row's index among the rows of all pages; 0xffffffff if the token is not
 * resident. fp8 pages do not consist of rows alone, and they may have more than 2^32 rows. So for fp8 the location is
 * the page and the token in it.
 */
template <class T, int D>
DEVICE uint32_t locate_token(const struct prefill_params *c, const struct work_item *x, uint32_t token)
{
	if constexpr (is_fp8<T>) {
		const skv_pte *table = x->s->table + (size_t)c->layer * x->s->layer_stride;
		const skv_pte entry = token < x->s->len ? table[token / SKV_PAGE_TOKENS] : 0;
		return skv_pte_resident(entry) ? skv_pte_id(entry) * SKV_PAGE_TOKENS + token % SKV_PAGE_TOKENS : 0xffffffff;
	} else {
		return token_row<D>(c, x, (uint32_t)(c->page_bytes / (D * 2)), token);
	}
}

/* Begins to copy the K and V rows of a tile's tokens to shared memory. */
template <class T, int D>
__device__ static void copy_located_tile(const struct prefill_params *c, const struct work_item *x,
                                         const struct located_tile<TILE> *located, uint32_t k_at, uint32_t v_at)
{
	constexpr uint32_t pieces = D / 8;
	const uint32_t all = c->shape.n_kv_heads * SKV_PAGE_TOKENS; /* number of K rows of a page */
	for (uint32_t e = threadIdx.x; e < TILE * pieces; e += THREADS) {
		const uint32_t t = e / pieces, p = e % pieces, at = located->row[t];
		const bool resident = at != 0xffffffff;
		const uint8_t *page = c->pool;
		uint32_t row = resident ? at : 0;
		if constexpr (is_fp8<T>) {
			page += (size_t)(row / SKV_PAGE_TOKENS) * c->page_bytes;
			row = x->h * SKV_PAGE_TOKENS + row % SKV_PAGE_TOKENS;
		}
		load_row_piece<T, D>(k_at + piece_at<D>(t, p), page, row, 2 * all, p, resident);
		load_row_piece<T, D>(v_at + piece_at<D>(t, p), page, row + all, 2 * all, p, resident);
	}
}

/* Locates the tokens of tile j, and begins to copy their K and V rows. */
template <class T, int D>
__device__ static void load_prompt_tile(const struct prefill_params *c, const struct work_item *x, uint32_t j,
                                        struct located_tile<TILE> *located, uint32_t at)
{
	if (threadIdx.x < TILE) {
		const uint32_t row = locate_token<T, D>(c, x, tile_token(&x->kv_range, j, threadIdx.x, TILE));
		const uint32_t seen = __ballot_sync(~0u, row != 0xffffffff);
		located->row[threadIdx.x] = row;
		if (threadIdx.x % 32 == 0)
			located->resident[threadIdx.x / 32] = seen;
	}
	__syncthreads();
	copy_located_tile<T, D>(c, x, located, at, at + TILE * pitch<D>);
}

/* Begins the work on a warp's 16 rows: loads queries, clears sums. */
template <bool SPARSE, class T, int D>
__device__ static void prompt_begin(const struct prefill_params *c, const struct work_item *x, struct rows<T, D> *r,
                                    struct out_rows<D> *o)
{
	const uint32_t lane = threadIdx.x % 32, col = lane % 4 * 2;
#pragma unroll
	for (int y = 0; y < 2; y++) {
		const struct pair_row row = pair_row<SPARSE, ROWS>(c, x,
		                                                   threadIdx.x / 32 * 16 + lane / 4 + 8 * y);
		const bool exists = row.at != 0xffffffff;
		const size_t from = row.q + col;
		o->p[y] = row.p;
		o->at[y] = row.at;
		o->low[y] = SPARSE ? window_start(c, row.p) : 0;
		r->max[y] = -INFINITY;
		r->sum[y] = 0;
#pragma unroll
		for (int k = 0; k < D / 16; k++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				const float2 e = io_load2(c->io_dtype, c->q, from + 16 * k + 8 * half);
				r->q[k][2 * half + y] = exists ? T::pair(e.x, e.y) : 0;
			}
	}
#pragma unroll
	for (int a = 0; a < D / 8; a++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			r->acc[a][i] = 0;
}

/*
 * Turns products q·k into scores: they are scaled, or become -infinity for tokens that a row does not attend to or that
 * are not resident.
 */
template <int D>
__device__ static void prompt_mask(const struct prefill_params *c, const struct work_item *x,
                                   const struct out_rows<D> *o, uint32_t j,
                                   const struct located_tile<TILE> *located, float s[TILE / 8][4])
{
	const bool listed = tile_listed(&x->kv_range, j);
	const uint32_t first = tile_first(&x->kv_range, j, TILE), sinks = c->kinds ? 0 : c->sparse.sinks;
	cap_scores(c->scale, s);
#pragma unroll
	for (int n = 0; n < (int)TILE / 8; n++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const uint32_t at = 8 * n + threadIdx.x % 4 * 2 + i % 2, t = first + at;
			const bool seen = listed | ((t <= o->p[i / 2]) & ((t >= o->low[i / 2]) | (t < sinks)));
			s[n][i] = seen & (located->resident[n / 4] >> at % 32 & 1) ? s[n][i] * c->scale.scale : -INFINITY;
		}
}

/* Computes the outputs of a warp's rows: weighted sums divided by sums of weights. */
template <class T, int D>
__device__ static void prompt_end(const struct prefill_params *c, const struct rows<T, D> *r, struct out_rows<D> *o)
{
#pragma unroll
	for (int y = 0; y < 2; y++) {
		float sum = r->sum[y];
		sum += __shfl_xor_sync(~0u, sum, 1);
		sum += __shfl_xor_sync(~0u, sum, 2);
		o->max[y] = r->max[y];
		o->sum[y] = sum;
		const float share = row_share<D>(c, o, y);
#pragma unroll
		for (int i = 0; i < D / 4; i++)
			o->o[i / 2 * 4 + 2 * y + i % 2] = r->acc[i / 2][2 * y + i % 2] * share;
	}
}

template <bool SPARSE, class T, int D>
__global__ void __launch_bounds__(THREADS,
                                  D <= 128 ? 2 : 1) prefill_kernel(const __grid_constant__ struct prefill_params c)
{
	SHARED_MEMORY(uint8_t, memory, 128);
	__shared__ struct located_tile<TILE> located[2];
	constexpr uint32_t bytes = TILE * pitch<D>;
	const uint32_t at = shared_address(memory);
	struct work_item x = {};
	struct work_cursor w = begin_cursor(&c, &x);
	struct out_rows<D> o;
	struct rows<T, D> r;

	while (next_item<SPARSE, ROWS, TILE>(&c, &w, &x)) {
		load_prompt_tile<T, D>(&c, &x, 0, &located[0], at);
		cp_async_commit();
		prompt_begin<SPARSE, T, D>(&c, &x, &r, &o);
		for (uint32_t j = 0; j < x.kv_range.tiles; j++) {
			const uint32_t now = at + j % 2 * 2 * bytes, next = at + (j + 1) % 2 * 2 * bytes;
			float s[TILE / 8][4];
			if (j + 1 < x.kv_range.tiles)
				load_prompt_tile<T, D>(&c, &x, j + 1, &located[(j + 1) % 2], next);
			cp_async_commit();
			cp_async_wait<1>();
			__syncthreads();
			qk_scores<T, D>(&r, now, s);
			prompt_mask<D>(&c, &x, &o, j, &located[j % 2], s);
			softmax_step<T, D>(&r, s);
			add_values<T, D>(&r, now + bytes, s);
			__syncthreads();
		}
		prompt_end<T, D>(&c, &r, &o);
		if (SPARSE)
			store_sparse<D, THREADS>(&c, &x, &o);
		else
			store_dense<D>(&c, &x, &o);
	}
}

/* ---- launches -------------------------------------------------------------------------------- */

template <class T, int D> static cudaError_t init(void)
{
	cudaError_t e = cudaFuncSetAttribute(prefill_kernel<false, T, D>,
	                                     cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes<D>);
	return e ? e : cudaFuncSetAttribute(prefill_kernel<true, T, D>,
	                                    cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes<D>);
}

template <class T> static cudaError_t init_dtype(void)
{
	cudaError_t e = init<T, 64>();
	e = e ? e : init<T, 96>();
	e = e ? e : init<T, 128>();
	return e ? e : init<T, 256>();
}

static bool sm90_devices[SKV_BACKEND_MAX_DEVICES];

cudaError_t skv_cuda_prefill_init(void)
{
	int device = 0, major = 0, minor = 0;
	cudaError_t e = init_dtype<F16>();
	e = e ? e : init_dtype<BF16>();
	e = e ? e : init_dtype<FP8>();
	e = e ? e : cudaGetDevice(&device);
	e = e ? e : cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
	e = e ? e : cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
	if (e || major != 9 || minor != 0)
		return e;
	e = skv_cuda_prefill_sm90_init();
	__atomic_store_n(&sm90_devices[device], e == cudaSuccess, __ATOMIC_RELEASE);
	return e;
}

static bool takes_sm90(const struct skv_shape *sh)
{
	int device;
	return (sh->head_dim == 64 || sh->head_dim == 128) && sh->dtype != SKV_FP8 && cudaGetDevice(&device) == cudaSuccess &&
	       __atomic_load_n(&sm90_devices[device], __ATOMIC_ACQUIRE);
}

template <class T, int D> static void launch(const struct prefill_params *c, dim3 grid, cudaStream_t stream)
{
	if (c->kinds)
		launch_grid(prefill_kernel<false, T, D>, grid, THREADS, shared_bytes<D>, stream, *c);
	else
		launch_grid(prefill_kernel<true, T, D>, grid, THREADS, shared_bytes<D>, stream, *c);
}

template <class T> static void launch_dtype(const struct prefill_params *c, dim3 grid, cudaStream_t stream)
{
	if (c->shape.head_dim == 64)
		launch<T, 64>(c, grid, stream);
	else if (c->shape.head_dim == 96)
		launch<T, 96>(c, grid, stream);
	else if (c->shape.head_dim == 128)
		launch<T, 128>(c, grid, stream);
	else
		launch<T, 256>(c, grid, stream);
}

static void launch_any(const struct prefill_params *c, bool sm90, dim3 grid, cudaStream_t stream)
{
	if (sm90)
		skv_cuda_prefill_sm90(c, grid, stream);
	else if (c->shape.dtype == SKV_F16)
		launch_dtype<F16>(c, grid, stream);
	else if (c->shape.dtype == SKV_FP8)
		launch_dtype<FP8>(c, grid, stream);
	else
		launch_dtype<BF16>(c, grid, stream);
}

static struct prefill_params prefill_params_of(const struct skv_shape *sh, const struct skv_batch *b,
                                               const void *q, void *out)
{
	return (struct prefill_params){
		.seq = b->seq,
		.pool = sh->pool,
		.page_bytes = sh->page_bytes,
		.q = q,
		.out = out,
		.q_stride = skv_q_stride(sh),
		.out_stride = skv_out_stride(sh),
		.n_heads = sh->n_heads,
		.group = sh->n_heads / sh->n_kv_heads,
		.layer = sh->layer,
		.io_dtype = sh->io_dtype,
		.heads = sh->n_heads / sh->n_kv_heads,
		.scale = score_scale_of(sh),
		.shape = *sh,
	};
}

void skv_cuda_prefill_dense(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                            const struct skv_workspace *work)
{
	struct prefill_params c = prefill_params_of(sh, b, q, out);
	const bool sm90 = takes_sm90(sh);

	if (b->n == 0)
		return;
	c.kinds = ROWS_ALL;
	launch_any(&c, sm90, dim3(ceil_div(b->max_q * c.group, sm90 ? 128 : ROWS), sh->n_kv_heads, b->n),
	           stream_of(work));
}

/* ---- sparse ---------------------------------------------------------------------------------- */

/*
 * Copies the saved correction to the set that this step writes, if this call has no later representative row for the
 * first rows of the next call.
 */
__global__ void carry_corrections_kernel(const __grid_constant__ struct prefill_params c)
{
	const struct skv_kseq *s = &c.seq[blockIdx.y];
	const uint32_t dim = c.shape.head_dim, f = first_of(s), last = s->len - 1;

	if (!s->prompt_continues || s->prompt_start >= f || representative_row(s, &c.sparse,
	                                                      representative_number(s, &c.sparse, last)) >= f)
		return;
	const size_t at = (size_t)blockIdx.x * dim * sizeof(float);
	const float *from = (const float *)skv_saved_at(&c.shape, s, &c.sparse, s->set ^ 1, at);
	float *to = (float *)skv_saved_at(&c.shape, s, &c.sparse, s->set, at);
	for (uint32_t d = threadIdx.x; d < dim; d += blockDim.x)
		to[d] = from[d];
}

/* Max number of representative rows of a call. */
static uint32_t max_representatives(uint32_t max_q, const struct skv_sparse *sp)
{
	const uint32_t rows = sp->segment && sp->segment < sp->gamma ? sp->segment : sp->gamma;
	return sp->gamma ? skv_max_tiles(max_q, rows) : 0;
}

size_t skv_cuda_prefill_sparse_bytes(const struct skv_shape *sh, const struct skv_batch *b,
                                     const struct skv_sparse *sp, int threads)
{
	const size_t dense_outputs = (size_t)b->n * max_representatives(b->max_q,
	                                                                sp) * sh->n_heads * sh->head_dim * sizeof(float);
	const size_t attend = skv_cuda_workspace_offset(sh) + dense_outputs;
	const size_t lists = skv_cuda_tile_lists_bytes(sh, b, sp);

	(void)threads;
	return attend > lists ? attend : lists;
}

/*
 * Launches the dense rows of a sparse prefill: few rows, but long ones. The number of rows of a prompt's tail is known
 * on the device alone. There are enough blocks for the usual tail, and they continue until all rows are done.
 */
static void launch_dense_rows(struct prefill_params *c, bool sm90, const struct skv_batch *b, cudaStream_t stream)
{
	const struct skv_sparse *sp = &c->sparse;
	const uint32_t probes = sp->segment ? skv_max_tiles(b->max_q, sp->segment) * SKV_MINFERENCE_ROWS : 0;
	const uint32_t tail = b->max_q < 512 ? b->max_q : 512, block = sm90 ? 128 : ROWS;
	const uint32_t blocks = ceil_div((c->n_representatives + probes + tail) * c->group, block) + 2;

	c->kinds = ROWS_TAIL | (sp->segment ? ROWS_PROBES : 0) | (sp->gamma ? ROWS_REPRESENTATIVES : 0);
	launch_any(c, sm90, dim3(c->shape.n_kv_heads, blocks < 65535 ? blocks : 65535, b->n), stream);
}

static void launch_sparse_rows(struct prefill_params *c, bool sm90, const struct skv_batch *b, cudaStream_t stream)
{
	const struct skv_sparse *sp = &c->sparse;
	const uint32_t block = sm90 && c->heads == c->group ? 128 : ROWS;
	uint32_t rows = 1; /* as rows_per_block() and part_rows() compute it */

	while (2 * rows * c->heads <= block && 2 * rows <= sp->tile)
		rows *= 2;
	if (sp->delta) {
		const uint32_t dense_outputs = sp->segment && sp->segment < sp->gamma ? sp->segment : sp->gamma;
		rows = rows > dense_outputs ? rows : dense_outputs;
	}
	c->kinds = 0;
	launch_any(c, sm90, dim3(skv_max_tiles(b->max_q, rows), c->n_heads / c->heads, b->n), stream);
}

void skv_cuda_prefill_sparse(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                             const struct skv_sparse *sp, const struct skv_workspace *work)
{
	struct prefill_params c = prefill_params_of(sh, b, q, out);
	const bool sm90 = takes_sm90(sh);

	if (b->n == 0)
		return;
	c.sparse = *sp;
	c.dense_outputs = (float *)((uint8_t *)work->mem + skv_cuda_workspace_offset(sh));
	c.n_representatives = max_representatives(b->max_q, sp);
	if (sp->lists)
		c.lists = *sp->lists;
	if (sp->extra)
		c.extra = *sp->extra;
	if (sp->lists && sp->lists->rows == sh->n_heads && sh->n_heads != sh->n_kv_heads)
		c.heads = 1;
	if (sp->delta)
		launch_grid(carry_corrections_kernel, dim3(sh->n_heads, b->n), 128, 0, stream_of(work), c);
	launch_dense_rows(&c, sm90, b, stream_of(work));
	launch_sparse_rows(&c, sm90, b, stream_of(work));
}
