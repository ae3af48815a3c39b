/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/compress/quantize.cu - quantizes the KV of whole blocks of tokens, and dequantizes blocks to rows; see
 * kernels/compress.h.
 *
 * A thread block quantizes one record: the K and V of one kv head for a block of tokens.
 */
#include "kernels/cuda/compress/quant.cuh"
#include "kernels/cuda/compress/compress.cuh"
#include "kernels/cuda/compress/decompress.cuh"

#define THREADS 128
#define WARPS (THREADS / 32)
#define LAYERS 64u /* max layers of one launch */

/* ---- quantization ---------------------------------------------------------------------------- */

struct quantize_params {
	struct skv_shape sh;
	struct quant_form f;
	const struct skv_kseq *seq;
	struct {
		uint32_t rows, codes; /* numbers of the layer's page table and of its table of codes */
	} layer[LAYERS];
};

/* Gathers K or V of the record's head, [token][D], to shared memory. Called by a whole thread block. */
DEVICE void gather(const struct quantize_params *c, const struct skv_kseq *s, uint32_t table, uint32_t token,
                   uint32_t h, bool v, float *x)
{
	const uint32_t dim = c->sh.head_dim;
	const skv_pte *entries = s->table + (size_t)table * s->layer_stride;

	for (uint32_t i = 2 * threadIdx.x; i < SKV_QUANT_BLOCK * dim; i += 2 * THREADS) {
		const uint32_t t = token + i / dim;
		const uint8_t *page = c->sh.pool + skv_pte_id(entries[t / SKV_PAGE_TOKENS]) * c->sh.page_bytes;
		const size_t at = (size_t)(h * SKV_PAGE_TOKENS + t % SKV_PAGE_TOKENS) * dim + i % dim;
		*(float2 *)(x + i) = io_load2(c->sh.dtype, page + (v ? c->sh.page_bytes / 2 : 0), at);
	}
	__syncthreads();
}

/* Quantizes K in place, one channel per thread, and stores the scales and zero points. */
DEVICE void quantize_keys(const struct quantize_params *c, float *x, uint8_t *shared)
{
	const uint32_t dim = c->sh.head_dim;

	for (uint32_t d = threadIdx.x; d < dim; d += THREADS) {
		float least = x[d], most = x[d];
		for (uint32_t t = 1; t < SKV_QUANT_BLOCK; t++) {
			least = fminf(least, x[t * dim + d]);
			most = fmaxf(most, x[t * dim + d]);
		}
		const struct quant_scale g = quant_scale_of(least, most, c->f.bits);
		for (uint32_t t = 0; t < SKV_QUANT_BLOCK; t++)
			x[t * dim + d] = __uint_as_float(quantize_number(g, x[t * dim + d], c->f.bits));
		store_quant_scale(g, shared + 4 * d);
	}
	__syncthreads();
}

/* Quantizes V in place, one scale block per warp, and stores the scales and zero points. */
DEVICE void quantize_values(const struct quantize_params *c, float *x, uint8_t *shared)
{
	const uint32_t groups = SKV_QUANT_BLOCK * c->sh.head_dim / c->f.group, lane = threadIdx.x % 32;

	for (uint32_t i = threadIdx.x / 32; i < groups; i += WARPS) {
		float *y = x + i * c->f.group + lane, *z = c->f.group == 64 ? y + 32 : y;
		float least = fminf(*y, *z), most = fmaxf(*y, *z);
#pragma unroll
		for (int other = 16; other > 0; other /= 2) {
			least = fminf(least, __shfl_xor_sync(~0u, least, other));
			most = fmaxf(most, __shfl_xor_sync(~0u, most, other));
		}
		const struct quant_scale g = quant_scale_of(least, most, c->f.bits);
		const uint32_t a = quantize_number(g, *y, c->f.bits), b = quantize_number(g, *z, c->f.bits);
		*y = __uint_as_float(a);
		*z = __uint_as_float(b);
		if (lane == 0)
			store_quant_scale(g, shared + 4 * i);
	}
	__syncthreads();
}

/* Packs quantized numbers into words and stores the words. */
DEVICE void store_numbers(const struct quantize_params *c, const float *x, uint8_t *to)
{
	const uint32_t each = 32 / c->f.bits;

	for (uint32_t w = threadIdx.x; w < SKV_QUANT_BLOCK * c->sh.head_dim / each; w += THREADS) {
		uint32_t word = 0;
		for (uint32_t n = 0; n < each; n++)
			word |= __float_as_uint(x[w * each + n]) << n * c->f.bits;
		((uint32_t *)to)[w] = word;
	}
	__syncthreads();
}

/*
 * Quantizes the records of new blocks of tokens. The grid is max records of a sequence (x) by sequences (y) by layers
 * (z).
 */
__global__ void __launch_bounds__(THREADS) quantize_kernel(const __grid_constant__ struct quantize_params c)
{
	__shared__ __align__(16) float x[SKV_QUANT_BLOCK * SKV_MAX_HEAD_DIM];
	const struct skv_kseq *s = &c.seq[blockIdx.y];
	const uint32_t table = c.layer[blockIdx.z].rows, h = blockIdx.x % c.sh.n_kv_heads;
	const uint32_t token = s->n_compressed + blockIdx.x / c.sh.n_kv_heads * SKV_QUANT_BLOCK;
	if (s->compress_to <= s->n_compressed || token >= s->compress_to)
		return;
	const uint32_t record = token / SKV_QUANT_BLOCK * c.sh.n_kv_heads + h;
	const skv_pte e = s->table[(size_t)c.layer[blockIdx.z].codes * s->layer_stride + record / c.f.each];
	uint8_t *to = c.sh.pool + skv_pte_id(e) * c.sh.page_bytes + record % c.f.each * c.f.at.bytes;

	gather(&c, s, table, token, h, false, x);
	quantize_keys(&c, x, to);
	store_numbers(&c, x, to + c.f.at.k);
	gather(&c, s, table, token, h, true, x);
	quantize_values(&c, x, to + c.f.at.v_scales);
	store_numbers(&c, x, to + c.f.at.v);
}

void skv_cuda_quantize(const struct skv_shape *sh, uint32_t n_layers, const struct skv_batch *batch,
                       const struct skv_workspace *work)
{
	struct quantize_params c = {*sh, quant_form_of(sh), batch->seq};

	for (uint32_t from = 0; from < n_layers; from += LAYERS) {
		const uint32_t n = n_layers - from < LAYERS ? n_layers - from : LAYERS;
		for (uint32_t i = 0; i < n; i++)
			c.layer[i] = {sh[from + i].layer, sh[from + i].codes};
		launch_grid(quantize_kernel, dim3(batch->max_compress / SKV_QUANT_BLOCK * sh->n_kv_heads, batch->n, n), THREADS, 0,
		            stream_of(work), c);
	}
}

/* ---- dequantization -------------------------------------------------------------------------- */

struct dequantize_params {
	struct skv_shape sh;
	struct quant_form f;
	struct wanted_rows want;
};

/* Dequantizes elements e to e + 7 of a token's K or V. */
DEVICE uint4 dequantize_vec8(const struct dequantize_params *c, const uint8_t *record, uint32_t token, bool v,
                             uint32_t e)
{
	const uint32_t dim = c->sh.head_dim, t = token % SKV_QUANT_BLOCK;
	const uint32_t *pair = (const uint32_t *)(record + (v ? c->f.at.v_scales : 0)) +
	                       (v ? t * (dim / c->f.group) + e / c->f.group : e);
	const uint32_t word = load_quant_word(&c->f,
	                                      record + (v ? c->f.at.v : c->f.at.k) + (t * dim + e) * c->f.bits / 8);
	float y[8];
#pragma unroll
	for (int n = 0; n < 8; n++)
		y[n] = dequantize_number(quant_number(&c->f, word, n), pair[v ? 0 : n]);
	return c->sh.dtype == SKV_BF16 ? bf16_of(y) : f16_of(y);
}

/* Dequantizes or copies rows. The grid is pages of a sequence's rows (x) by kv heads (y) by sequences (z). */
__global__ void __launch_bounds__(THREADS) dequantize_kernel(const __grid_constant__ struct dequantize_params c)
{
	const uint32_t i = blockIdx.z, h = blockIdx.y, first = blockIdx.x * SKV_PAGE_TOKENS;
	const uint32_t rows = rows_of(&c.want, i);
	const uint32_t pieces = c.sh.head_dim / 8; /* pieces of eight elements in a row */
	const struct skv_kseq *s = &c.want.seq[i];
	const skv_pte *table = skv_layer_table(&c.sh, s), *codes = s->table + (size_t)c.sh.codes * s->layer_stride;

	if (c.want.to.pool && h == 0 && threadIdx.x < SKV_PAGE_TOKENS)
		make_table_entry(&c.want, i, first + threadIdx.x, rows);
	for (uint32_t n = threadIdx.x; n < SKV_PAGE_TOKENS * 2 * pieces; n += THREADS) {
		const uint32_t row = first + n / (2 * pieces), e = n % pieces * 8;
		const bool v = n / pieces % 2;
		if (row >= rows)
			return;
		const uint32_t token = token_of(&c.want, i, row);
		const uint32_t page = c.want.to.pool ? i * c.want.to.pages + row / SKV_PAGE_TOKENS
		                                     : skv_pte_id(table[token / SKV_PAGE_TOKENS]);
		const size_t at = (v ? c.sh.page_bytes / 2 : 0) + (size_t)h * SKV_PAGE_TOKENS * c.sh.head_dim * 2 + e * 2;
		uint8_t *to = c.want.to.pool ? page_row(&c.sh, c.want.to.pool, page, row) : page_row(&c.sh,
		                                                                                     c.sh.pool, page, token);
		const uint32_t record = token / SKV_QUANT_BLOCK * c.sh.n_kv_heads + h;
		*(uint4 *)(to + at) =
		        token >= s->n_compressed
		                ? *(const uint4 *)(page_row(&c.sh, c.sh.pool,
		                                            skv_pte_id(table[token / SKV_PAGE_TOKENS]), token) + at)
		                : dequantize_vec8(&c,
		                                  c.sh.pool + skv_pte_id(codes[record / c.f.each]) * c.sh.page_bytes +
		                                        record % c.f.each * c.f.at.bytes, token, v, e);
	}
}

void skv_cuda_dequantize(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_index_list *list,
                         const struct skv_decompressed *to, const struct skv_workspace *work)
{
	const struct dequantize_params c = {*sh, quant_form_of(sh), wanted_rows_of(batch, list, to, 0)};
	const uint32_t pages = skv_pages_of(list ? list->max_count : batch->max_len);

	launch_grid(dequantize_kernel, dim3(pages > 0 ? pages : 1, sh->n_kv_heads, batch->n), THREADS, 0, stream_of(work), c);
}
