/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/compress/decode-latent.cu - the fused decode kernel over latent codes, the merge of chunks, and the
 * launch: see decode-latent.cuh.
 */
#include "kernels/cuda/compress/decode-latent-load.cuh"
#include "kernels/cuda/compress/decode-latent-tile.cuh"

/* ---- the kernel ------------------------------------------------------------------------------ */

template <class T, int D, int W>
__device__ static void attend(const struct key_weights<D, W> *y, struct chunk_sums<D, W> *w,
                              const struct latent_params *c,
                              struct latent_smem<D, W> *s, uint32_t k, uint32_t x)
{
	const struct tile *t = &s->tile[k % 8];
	float acc[BLOCKS][4] = {};

	if (t->begins)
		chunk_begins<T>(w, c, t, x);
	add_rows<T>(c, s, k, acc);
	add_codes(y, s, acc);
	give_to_finisher(s, acc);
	__syncthreads();
#pragma unroll
	for (uint32_t j = 0; j < OWN_BLOCKS; j++) {
		rope_keys(y, s, k, j, acc);
		score_keys<T>(w, s, j, acc);
	}
	__syncthreads();
	softmax_step<T>(w, c, s, k);
	__syncthreads();
	add_values<T>(w, c, s, k);
	if (t->ends)
		chunk_ends(w, c, t, x);
}

template <class T, int D, int W>
__global__ void __launch_bounds__(threads<D>, 1)
decode_latent_kernel(const __grid_constant__ struct latent_params c)
{
	SHARED_MEMORY(uint8_t, memory, 128);
	struct latent_smem<D, W> *s = (struct latent_smem<D, W> *)memory;
	const uint32_t x = blockIdx.x % c.heads, h = x / c.tiles_per_kv_head;
	struct key_weights<D, W> y;
	struct chunk_sums<D, W> w;

	if (threadIdx.x == 0) {
		s->cursor.item = blockIdx.x / c.heads;
		s->cursor.step = gridDim.x / c.heads;
		s->cursor.items = c.n * MAX_CHUNKS_OF_LIST;
		s->cursor.left = 0;
	}
	copy_weights(&c, s, h);
	for (int k = -PIPELINE_DEPTH; k < -1; k++) {
		advance_pipeline(&c, s, k, h);
		await_copies();
	}
	load_weights(&y, &c, s);
	for (int k = -1; k < 0 || s->tile[k % 8].n > 0; k++) {
		advance_pipeline(&c, s, k, h);
		if (k >= 0)
			dequantize_latents(&c, s, k);
		__syncthreads();
		copy_rows<T>(&c, s, k + 1, h);
		copy_records(&c, s);
		if (k >= 0)
			attend<T>(&y, &w, &c, s, k, x);
		await_copies();
	}
}

/* ---- split-KV merge ---------------------------------------------------------------------------- */

#define MERGE_DIMS 64     /* output dimensions that a block computes */
#define MERGE_THREADS 512

/*
 * Computes each chunk's share in the results of `heads` heads, beginning with q head `first`. Also writes the heads'
 * log-sum-exps if `lse`, the address for the first head, is not NULL. Called by one warp.
 */
__device__ static void chunk_shares(float fix[MAX_CHUNKS_OF_LIST][HEAD_TILE], const struct latent_params *c,
                                    const float *part, uint32_t stride, uint32_t chunks, uint32_t first,
                                    uint32_t heads, float *lse)
{
	const uint32_t head = threadIdx.x % 32;
	float max = -INFINITY, sum = 0;

	if (head >= heads)
		return;
	for (uint32_t k = 0; k < chunks; k++)
		max = fmaxf(max, part[(size_t)k * stride + head]);
	for (uint32_t k = 0; k < chunks; k++) {
		const float *p = part + (size_t)k * stride;
		fix[k][head] = p[head] == -INFINITY ? 0 : exp2_fast(p[head] - max);
		sum += p[HEAD_TILE + head] * fix[k][head];
	}
	if (lse)
		lse[head] = log_sum(max, sum);
	if (sum > 0)
		sum += sink_term(c->k.sh.sinks, first + head, max);
	for (uint32_t k = 0; k < chunks; k++)
		fix[k][head] *= sum > 0 ? __fdividef(1, sum) : 0;
}

/* Returns the product of eight elements of a row of W_V with those of a head's u. */
DEVICE float product8(uint4 w, const float *u)
{
	const float4 a = *(const float4 *)u, b = *(const float4 *)(u + 4);
	const float2 p = io_two(SKV_BF16, w.x), q = io_two(SKV_BF16, w.y);
	const float2 r = io_two(SKV_BF16, w.z), s = io_two(SKV_BF16, w.w);

	return p.x * a.x + p.y * a.y + q.x * a.z + q.y * a.w + r.x * b.x + r.y * b.y + s.x * b.z + s.y * b.w;
}

/* Computes output dimension d of all heads: W_V u + r. Called by one warp. */
__device__ static void output(const struct latent_params *c, const float *total, uint32_t i, uint32_t x, uint32_t d,
                              uint32_t head_dim)
{
	const uint32_t lane = threadIdx.x % 32, before = x % c->tiles_per_kv_head * c->tile_heads;
	const uint32_t h = x / c->tiles_per_kv_head;
	const uint32_t heads = min(c->tile_heads, c->group - before), stride = c->width + head_dim;
	const uint8_t *row = (const uint8_t *)c->k.c.dec_out + (size_t)(head_in_x(c, 1, h, head_dim) + d) * c->width * 2;
	float sum[HEAD_TILE] = {};

	for (uint32_t p = lane; p < c->width / 8; p += 32) {
		const uint4 w = *(const uint4 *)(row + p * 16);
#pragma unroll
		for (uint32_t head = 0; head < HEAD_TILE; head++)
			if (head < heads)
				sum[head] += product8(w, total + head * stride + 8 * p);
	}
#pragma unroll
	for (uint32_t head = 0; head < HEAD_TILE; head++) {
#pragma unroll
		for (int y = 1; y < 32; y *= 2)
			sum[head] += __shfl_xor_sync(~0u, sum[head], y);
		if (lane == head && head < heads)
			io_store(c->k.sh.io_dtype, c->out,
			         (size_t)c->seq[i].row * c->out_stride + (h * c->group + before + head) * head_dim + d,
			         sum[head] + total[head * stride + c->width + d]);
	}
}

/* Merges the chunks of a sequence's head tile and applies W_V, for MERGE_DIMS output dimensions. */
__global__ void __launch_bounds__(MERGE_THREADS)
merge_latent_kernel(const __grid_constant__ struct latent_params c, uint32_t head_dim)
{
	SHARED_MEMORY(float, total, 16); /* u and r of each head, summed over chunks */
	__shared__ float fix[MAX_CHUNKS_OF_LIST][HEAD_TILE];
	const uint32_t x = blockIdx.x, i = blockIdx.y, first = blockIdx.z * MERGE_DIMS;
	const uint32_t before = x % c.tiles_per_kv_head * c.tile_heads, heads = min(c.tile_heads, c.group - before);
	const uint32_t q_head = x / c.tiles_per_kv_head * c.group + before;
	float *lse = c.k.sh.lse && first == 0 ? c.k.sh.lse + (size_t)c.seq[i].row * c.k.sh.n_heads + q_head : NULL;
	const uint32_t stride = chunk_floats(c.tile_heads, c.width, head_dim);
	const uint32_t tiles = n_listed_tiles(&c, i), each = chunk_tiles(tiles), chunks = (tiles + each - 1) / each;
	const float *part = partial_at(&c, i, x, 0, head_dim);

	if (threadIdx.x < 32)
		chunk_shares(fix, &c, part, stride, chunks, q_head, heads, lse);
	__syncthreads();
	for (uint32_t e = threadIdx.x * 4; e < heads * (c.width + head_dim); e += MERGE_THREADS * 4) {
		const uint32_t head = e / (c.width + head_dim);
		float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
		for (uint32_t k = 0; k < chunks; k++) {
			const float4 p = *(const float4 *)(part + (size_t)k * stride + 2 * HEAD_TILE + e);
			const float f = fix[k][head];
			sum.x += p.x * f;
			sum.y += p.y * f;
			sum.z += p.z * f;
			sum.w += p.w * f;
		}
		*(float4 *)&total[e] = sum;
	}
	__syncthreads();
	for (uint32_t d = threadIdx.x / 32; d < MERGE_DIMS; d += MERGE_THREADS / 32)
		output(&c, total, i, x, first + d, head_dim);
}

/* ---- launch ---------------------------------------------------------------------------------- */

typedef void latent_fn(struct latent_params);

/* Returns the kernel for the smallest of the widths 64, 256 and 512 that is not below `width`. */
template <class T, int D> static latent_fn *kernel_of(uint32_t width, uint32_t *ret_bytes)
{
	if (width <= 64) {
		*ret_bytes = sizeof(struct latent_smem<D, 64>);
		return decode_latent_kernel<T, D, 64>;
	}
	if (width <= 256) {
		*ret_bytes = sizeof(struct latent_smem<D, 256>);
		return decode_latent_kernel<T, D, 256>;
	}
	*ret_bytes = sizeof(struct latent_smem<D, 512>);
	return decode_latent_kernel<T, D, 512>;
}

static latent_fn *kernel_for(const struct skv_shape *sh, uint32_t width, uint32_t *ret_bytes)
{
	if (sh->dtype == SKV_F16)
		return sh->head_dim == 64 ? kernel_of<F16, 64>(width, ret_bytes)
		                          : kernel_of<F16, 128>(width, ret_bytes);
	return sh->head_dim == 64 ? kernel_of<BF16, 64>(width, ret_bytes) : kernel_of<BF16, 128>(width, ret_bytes);
}

static uint32_t threads_of(uint32_t head_dim)
{
	return head_dim == 64 ? threads<64> : threads<128>;
}

static uint32_t width_of(const struct skv_codec *c)
{
	return c->bits ? c->width : 0;
}

bool skv_cuda_fuses_latent(const struct skv_shape *sh)
{
	const struct skv_codec *c = sh->codec;
	uint32_t bytes;

	if (c->kind == SKV_COMPRESS_QUANT || c->dec_hidden || c->spans || c->k_norm || width_of(c) > 512)
		return false;
	if (c->interleaved || c->rope_dims % 16)
		return false;
	if ((sh->head_dim != 64 && sh->head_dim != 128) || c->n_refs * c->id_bytes % 4)
		return false;
	kernel_for(sh, width_of(c), &bytes);
	return bytes <= skv_cuda_max_shared_memory();
}

size_t skv_cuda_decode_latent_bytes(const struct skv_shape *sh, uint32_t n_seqs)
{
	const uint32_t group = sh->n_heads / sh->n_kv_heads, wide = group < HEAD_TILE ? group : HEAD_TILE;
	const size_t floats = chunk_floats(wide, width_of(sh->codec), sh->head_dim);

	return (size_t)n_seqs * n_head_tiles(sh) * MAX_CHUNKS_OF_LIST * floats * sizeof(float);
}

static struct latent_params latent_params_of(const struct skv_shape *sh, const struct skv_batch *b,
                                             const void *q, void *out,
                                             const struct skv_index_list *list, const struct skv_workspace *work)
{
	struct latent_params c = {.k = codec_of(sh), .seq = b->seq, .n = b->n, .q = q, .out = out};

	c.q_stride = skv_q_stride(sh);
	c.out_stride = skv_out_stride(sh);
	c.scale = score_scale_of(sh);
	c.list = *list;
	c.width = width_of(sh->codec);
	c.rows = sh->codec->n_refs ? sh->codec->n_refs : 1;
	c.group = sh->n_heads / sh->n_kv_heads;
	c.tile_heads = c.group < HEAD_TILE ? c.group : HEAD_TILE;
	c.tiles_per_kv_head = ceil_div(c.group, c.tile_heads);
	c.heads = n_head_tiles(sh);
	c.part = (float *)((uint8_t *)work->mem + skv_cuda_workspace_offset(sh));
	return c;
}

void skv_cuda_decode_latent(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                            const struct skv_index_list *list, const struct skv_workspace *work)
{
	struct latent_params c = latent_params_of(sh, b, q, out, list, work);
	const uint32_t tiles = ceil_div(list->max_count, TILE), chunks = ceil_div(tiles, MIN_CHUNK_TILES);
	const uint32_t items = b->n * (chunks < MAX_CHUNKS_OF_LIST ? chunks : MAX_CHUNKS_OF_LIST);
	const uint32_t sms = skv_cuda_sms() / c.heads;
	const uint32_t blocks = items < sms ? items : sms > 0 ? sms : 1;
	const uint32_t dim = sh->head_dim;
	uint32_t bytes;
	latent_fn *const kernel = kernel_for(sh, c.width, &bytes);

	if (b->n == 0)
		return;
	if (items > 0)
		launch_grid(kernel, c.heads * blocks, threads_of(dim), bytes, stream_of(work), c);
	launch_grid(merge_latent_kernel, dim3(c.heads, b->n, dim / MERGE_DIMS), MERGE_THREADS,
	            c.tile_heads * (c.width + dim) * sizeof(float), stream_of(work), c, dim);
}

/* Sets the shared memory limit of all kernels whose shared memory the device has room for. */
cudaError_t skv_cuda_decode_latent_init(uint32_t room)
{
	static const uint32_t widths[] = {64, 256, 512}, dims[] = {64, 128}, dtypes[] = {SKV_F16, SKV_BF16};
	cudaError_t e = cudaSuccess;

	for (uint32_t x = 0; x < 12 && !e; x++) {
		const struct skv_shape sh = {.head_dim = dims[x % 2], .dtype = dtypes[x / 2 % 2]};
		uint32_t bytes;
		latent_fn *const kernel = kernel_for(&sh, widths[x / 4], &bytes);

		if (bytes <= room)
			e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
	}
	return e;
}
