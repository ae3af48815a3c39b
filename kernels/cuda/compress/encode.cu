/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/compress/encode.cu - the encoder of latent compression: computes z = E(x) - E(b) and quantizes z; see
 * kernels/compress.h.
 *
 * enc_out is linear, so the difference is taken before it is applied: the difference of hidden units if the encoder has
 * a hidden layer, else of x and b themselves (which compress.cu computes).
 */
#include "kernels/cuda/runtime/gemm.cuh"
#include "kernels/cuda/compress/compress.cuh"

#define BN 128

/*
 * Computes h, the encoder's hidden units of x minus those of b. The upper half of a block's rows are x of some tokens,
 * the lower half are b of the same tokens. The grid is columns (x) by tiles of BM / 2 tokens (y) by (layer, sequence)
 * pairs (z).
 */
template <int BM>
__global__ void __launch_bounds__(GEMM_THREADS,
                                  2) encoder_hidden_kernel(const __grid_constant__ struct compress_params c)
{
	SHARED_MEMORY(uint8_t, shared, 16);
	constexpr uint32_t TOKENS = BM / 2;
	const struct compress_item j = compress_item_of(&c, blockIdx.z);
	const uint32_t first = blockIdx.y * TOKENS, col = blockIdx.x * BN, hidden = j.k.c.enc_hidden;
	if (first >= j.n)
		return;
	const uint32_t rows = min(j.n - first, TOKENS);
	struct gemm_operand<BM, true> a = {{}, 0, j.k.d};
	struct gemm_operand<BN, true> b = {{}, 0, j.k.d};
#pragma unroll
	for (int i = 0; i < (int)(BM / GEMM_LOADS); i++) {
		const uint32_t row = operand_row(i) % TOKENS;
		const __nv_bfloat16 *from = operand_row(i) < TOKENS ? c.x : c.b;
		a.at[i] = row < rows ? (const uint8_t *)(from + (j.row + first + row) * j.k.d) : NULL;
	}
#pragma unroll
	for (int i = 0; i < (int)(BN / GEMM_LOADS); i++) {
		const uint32_t row = col + operand_row(i);
		b.at[i] = row < 2 * hidden ? (const uint8_t *)j.layer->in + (size_t)row * j.k.d * 2 : NULL;
	}
	struct gemm<BM, BN> g = {};
	gemm_add<false>(&g, &a, &b, shared);
	const float *h = gemm_to_shared(&g, shared);
	for (uint32_t i = threadIdx.x; i < rows * (BN / 2); i += GEMM_THREADS) {
		const uint32_t t = i / (BN / 2), u = i % (BN / 2);
		const float2 x = *(const float2 *)(h + t * GEMM_PITCH(BN) + 2 * u);
		const float2 y = *(const float2 *)(h + (TOKENS + t) * GEMM_PITCH(BN) + 2 * u);
		if (col / 2 + u < hidden)
			c.h[(j.row + first + t) * hidden + col / 2 + u] = __float2bfloat16_rn(silu(x.x) * x.y - silu(y.x) * y.y);
	}
}

/* Quantizes elements [col, col + n) of a token's z, a scale block, and stores them in the token's record. */
DEVICE void store_scale_block(const struct codec *k, const float *z, uint32_t col, uint32_t n, uint8_t *to)
{
	const uint32_t bits = k->c.bits;
	uint8_t *q = to + k->c.width / k->c.scale_block * 4 + col * bits / 8;
	if (bits == 16) {
		for (uint32_t i = 0; i < n; i++)
			((__nv_bfloat16 *)to)[col + i] = __float2bfloat16_rn(z[i]);
		return;
	}
	float least = z[0], most = z[0];
	for (uint32_t i = 1; i < n; i++) {
		least = fminf(least, z[i]);
		most = fmaxf(most, z[i]);
	}
	const struct quant_scale g = quant_scale_of(least, most, bits);
	store_quant_scale(g, to + col / n * 4);
	for (uint32_t i = 0; i < n; i += 2) {
		const uint32_t a = quantize_number(g, z[i], bits), b = quantize_number(g, z[i + 1], bits);
		if (bits == 4)
			q[i / 2] = (uint8_t)(a | b << 4);
		else
			q[i] = (uint8_t)a, q[i + 1] = (uint8_t)b;
	}
}

/*
 * Computes z and quantizes it into tokens' records. The grid is columns of all parts (x) by tiles of tokens (y) by
 * (layer, sequence) pairs (z).
 */
template <int BM>
__global__ void __launch_bounds__(GEMM_THREADS, 2)
encode_kernel(const __grid_constant__ struct compress_params c)
{
	SHARED_MEMORY(uint8_t, shared, 16);
	const struct compress_item j = compress_item_of(&c, blockIdx.z);
	const struct codec *k = &j.k;
	const uint32_t all = k->c.enc_hidden ? k->c.enc_hidden : k->d, n = k->c.width / k->parts, deep = all / k->parts;
	const uint32_t tiles = (n + BN - 1) / BN, part = blockIdx.x / tiles, col = blockIdx.x % tiles * BN;
	const uint32_t first = blockIdx.y * BM;
	if (first >= j.n)
		return;
	const uint32_t rows = min(j.n - first, (uint32_t)BM), cols = min(n - col, (uint32_t)BN);
	struct gemm_operand<BM, true> a = {{}, part * deep, deep};
	struct gemm_operand<BN, true> b = {{}, 0, deep};
#pragma unroll
	for (int i = 0; i < (int)(BM / GEMM_LOADS); i++)
		a.at[i] = operand_row(i) < rows ? (const uint8_t *)((k->c.enc_hidden ? c.h : c.x) + (j.row + first + operand_row(i)) * all)
		                                : NULL;
#pragma unroll
	for (int i = 0; i < (int)(BN / GEMM_LOADS); i++) {
		const size_t row = part * n + col + operand_row(i);
		b.at[i] = operand_row(i) < cols ? (const uint8_t *)j.layer->down + row * deep * 2 : NULL;
	}
	struct gemm<BM, BN> g = {};
	gemm_add<false>(&g, &a, &b, shared);
	const float *z = gemm_to_shared(&g, shared);
	const uint32_t group = k->c.bits == 16 ? 16 : k->c.scale_block, groups = cols / group;
	for (uint32_t i = threadIdx.x; i < rows * groups; i += GEMM_THREADS) {
		const uint32_t token = j.from + first + i / groups, at = i % groups * group;
		if (!is_ref(k, token))
			store_scale_block(k, z + i / groups * GEMM_PITCH(BN) + at, part * n + col + at, group,
			                  code_at(k, j.s, token) + k->code_from);
	}
}

template <int BM> static void encode(const struct compress_params *c, uint32_t layers, cudaStream_t stream)
{
	const struct codec *k = &c->k;

	if (k->c.enc_hidden)
		launch_grid(encoder_hidden_kernel<BM>, dim3(ceil_div(2 * k->c.enc_hidden, BN), ceil_div(c->max_tokens, BM / 2),
		                                            layers * c->n), GEMM_THREADS,
		            gemm_bytes_with_c<BM, BN>, stream, *c);
	launch_grid(encode_kernel<BM>, dim3(ceil_div(k->c.width / k->parts, BN) * k->parts, ceil_div(c->max_tokens, BM),
	                                    layers * c->n),
	            GEMM_THREADS, gemm_bytes_with_c<BM, BN>, stream, *c);
}

void skv_cuda_encode(const struct compress_params *c, uint32_t layers, cudaStream_t stream)
{
	if (c->max_tokens <= 64)
		encode<64>(c, layers, stream);
	else
		encode<128>(c, layers, stream);
}

template <int BM> static cudaError_t init()
{
	const cudaError_t e = cudaFuncSetAttribute(encoder_hidden_kernel<BM>,
	                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
	                                           gemm_bytes_with_c<BM, BN>);
	return e ? e : cudaFuncSetAttribute(encode_kernel<BM>, cudaFuncAttributeMaxDynamicSharedMemorySize,
	                                    gemm_bytes_with_c<BM, BN>);
}

cudaError_t skv_cuda_encode_init(void)
{
	const cudaError_t e = init<64>();
	return e ? e : init<128>();
}
