/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/compress/compress.cu - compresses tokens to references and codes; see kernels/compress.h.
 *
 * First all new references are stored. Codes are made only from stored references, so decompress() starts from exactly
 * the same data. For each token x is gathered; the token's nearest references are found (nearest-refs.cu), named in its
 * record, and averaged; then both x and the mean are encoded (encode.cu). Several layers are compressed at a time if a
 * step compresses few tokens of each.
 */
#include "kernels/cuda/compress/compress.cuh"

#define THREADS 128
#define WARPS (THREADS / 32)

/*
 * Gathers x[own_d] of a token, the part of x for this rank's heads, from the token's row in a page to shared memory.
 * Called by a whole block.
 */
DEVICE void gather(const struct codec *k, const struct skv_kseq *s, uint32_t token, float *x)
{
	const uint32_t dim = k->sh.head_dim, pairs = k->c.rope_dims / 2;
	const skv_pte e = skv_layer_table(&k->sh, s)[token / SKV_PAGE_TOKENS];
	const uint8_t *page = k->sh.pool + skv_pte_id(e) * k->sh.page_bytes;

	for (uint32_t i = 2 * threadIdx.x; i < k->own_d; i += 2 * THREADS) {
		const uint32_t h = i % k->own_half / dim;
		const size_t at = (size_t)(h * SKV_PAGE_TOKENS + token % SKV_PAGE_TOKENS) * dim + i % dim;
		*(float2 *)(x + i) = io_load2(k->sh.dtype, page + (i < k->own_half ? 0 : k->sh.page_bytes / 2), at);
	}
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < k->sh.n_kv_heads * pairs; i += THREADS) {
		const uint2 at = rope_pair(k, i % pairs);
		float *head = x + i / pairs * dim, sin, cos;
		sincosf(rope_angle(token, rope_turns(k, i % pairs)), &sin, &cos);
		const float p = head[at.x], q = head[at.y], scale = 1 / k->c.rope_scale;
		head[at.x] = (p * cos + q * sin) * scale;
		head[at.y] = (q * cos - p * sin) * scale;
	}
	__syncthreads();
}

/* Loads x[d] of a token, for all ranks' heads, to shared memory. Called by a whole block. */
DEVICE void take(const struct compress_item *j, uint32_t token, float *x)
{
	if (!j->given) {
		gather(&j->k, j->s, token, x);
		return;
	}
	const float2 *from = (const float2 *)(j->given + (size_t)(token - j->s->n_compressed) * j->k.d);
	for (uint32_t i = threadIdx.x; i < j->k.d / 2; i += THREADS)
		((float2 *)x)[i] = from[i];
	__syncthreads();
}

/* ---- references ------------------------------------------------------------------------------ */

/*
 * Quantizes a scale block of SKV_REF_SCALE_BLOCK numbers, by 32 lanes with two numbers each. Stores the block's scale
 * and zero point to `shared`, and its numbers to q.
 */
DEVICE void store_scale_block(const float *x, uint32_t bits, uint8_t *shared, uint8_t *q)
{
	const float2 v = ((const float2 *)x)[threadIdx.x % 32];
	float least = fminf(v.x, v.y), most = fmaxf(v.x, v.y);
#pragma unroll
	for (int lane = 16; lane > 0; lane /= 2) {
		least = fminf(least, __shfl_xor_sync(~0u, least, lane));
		most = fmaxf(most, __shfl_xor_sync(~0u, most, lane));
	}
	const struct quant_scale g = quant_scale_of(least, most, bits);
	const uint32_t a = quantize_number(g, v.x, bits), b = quantize_number(g, v.y, bits);
	if (threadIdx.x % 32 == 0)
		store_quant_scale(g, shared);
	if (bits == 8)
		((uint16_t *)q)[threadIdx.x % 32] = (uint16_t)(a | b << 8);
	else
		q[threadIdx.x % 32] = (uint8_t)(a | b << 4);
}

/* Stores the new references. The grid is max references of a sequence (x) by (layer, sequence) pairs (y). */
__global__ void __launch_bounds__(THREADS) store_refs_kernel(const __grid_constant__ struct compress_params c)
{
	__shared__ __align__(16) float x[SKV_MAX_CODEC_DIM];
	const struct compress_item j = compress_item_of(&c, blockIdx.y);
	if (j.n == 0)
		return;
	const struct codec *k = &j.k;
	const uint32_t number = refs_before(k, j.s->n_compressed) + blockIdx.x;
	if (number >= refs_before(k, j.s->compress_to))
		return;
	const uint32_t token = number < k->c.first ? number : k->c.first + (number - k->c.first) * k->c.stride;
	uint8_t *to = ref_at(k, j.s, number);

	take(&j, token, x);
	if (k->c.ref_bits == 16)
		for (uint32_t i = 2 * threadIdx.x; i < k->d; i += 2 * THREADS)
			((uint32_t *)to)[i / 2] = k->sh.dtype == SKV_F16 ? F16::pair(x[i], x[i + 1])
			                                                 : BF16::pair(x[i], x[i + 1]);
	for (uint32_t g = threadIdx.x / 32; g < k->d / SKV_REF_SCALE_BLOCK && k->c.ref_bits != 16; g += WARPS)
		store_scale_block(x + g * SKV_REF_SCALE_BLOCK, k->c.ref_bits, to + 4 * g,
		                  to + k->d / SKV_REF_SCALE_BLOCK * 4 + g * (SKV_REF_SCALE_BLOCK * k->c.ref_bits / 8));
	/* Zeros the record's padding: quantized numbers need not end at a multiple of 16 bytes. */
	const uint32_t end = skv_quantized_bytes(k->d, k->c.ref_bits, SKV_REF_SCALE_BLOCK);
	for (uint32_t i = end + threadIdx.x; i < k->ref_bytes && k->c.ref_bits != 16; i += THREADS)
		to[i] = 0;
}

/* ---- x and its nearest references -------------------------------------------------------------- */

/* Gathers x of tokens that get a code, as bf16. The grid is tokens of a sequence (x) by (layer, sequence) pairs (y). */
__global__ void __launch_bounds__(THREADS) gather_kernel(const __grid_constant__ struct compress_params c)
{
	__shared__ __align__(16) float x[SKV_MAX_CODEC_DIM];
	const struct compress_item j = compress_item_of(&c, blockIdx.y);
	if (blockIdx.x >= j.n || is_ref(&j.k, j.from + blockIdx.x))
		return;
	uint32_t *to = (uint32_t *)(c.x + (j.row + blockIdx.x) * j.k.d);

	take(&j, j.from + blockIdx.x, x);
	for (uint32_t i = 2 * threadIdx.x; i < j.k.d; i += 2 * THREADS)
		to[i / 2] = BF16::pair(x[i], x[i + 1]);
}

/* Returns, in all lanes, the nearest references over all slices, sorted by number. */
DEVICE struct nearest nearest_of(const struct compress_params *c, size_t row)
{
	struct nearest best = nearest_none();
	for (uint32_t i = threadIdx.x % 32; i < c->slices; i += 32)
		nearest_merge(&best, &c->near[row * c->slices + i]);
#pragma unroll
	for (int lane = 1; lane < 32; lane *= 2) {
		struct nearest other;
#pragma unroll
		for (uint32_t i = 0; i < SKV_MAX_REFS; i++) {
			other.score[i] = __shfl_xor_sync(~0u, best.score[i], lane);
			other.id[i] = __shfl_xor_sync(~0u, best.id[i], lane);
		}
		nearest_merge(&best, &other);
	}
#pragma unroll
	for (uint32_t i = 0; i < SKV_MAX_REFS; i++)
#pragma unroll
		for (uint32_t o = 0; o + 1 < SKV_MAX_REFS; o++)
			if (o + 1 < c->k.c.n_refs && best.id[o + 1] < best.id[o]) {
				const uint32_t id = best.id[o];
				best.id[o] = best.id[o + 1];
				best.id[o + 1] = id;
			}
	return best;
}

/*
 * Begins a code's record with the numbers of its references, and averages these references. The grid is tokens of a
 * sequence, WARPS per block (x) by (layer, sequence) pairs (y).
 */
__global__ void __launch_bounds__(THREADS) begin_codes_kernel(const __grid_constant__ struct compress_params c)
{
	const struct compress_item j = compress_item_of(&c, blockIdx.y);
	const struct codec *k = &j.k;
	const uint32_t i = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
	if (i >= j.n || is_ref(k, j.from + i))
		return;
	const struct nearest best = k->c.n_refs ? nearest_of(&c, j.row + i) : nearest_none();
	uint8_t *record = code_at(k, j.s, j.from + i);
	const uint8_t *ref[SKV_MAX_REFS];

	for (uint32_t at = lane; at < k->code_bytes / 16; at += 32)
		((uint4 *)record)[at] = make_uint4(0, 0, 0, 0);
	__syncwarp();
#pragma unroll
	for (uint32_t r = 0; r < SKV_MAX_REFS; r++) {
		if (r >= k->c.n_refs)
			break;
		ref[r] = ref_at(k, j.s, best.id[r]);
		if (lane == 0 && k->c.id_bytes == 2)
			((uint16_t *)record)[r] = (uint16_t)best.id[r];
		else if (lane == 0)
			((uint32_t *)record)[r] = best.id[r];
	}
	for (uint32_t e = lane * 8; e < k->d; e += 32 * 8) {
		uint4 *x = (uint4 *)(c.x + (j.row + i) * k->d + e), *b = (uint4 *)(c.b + (j.row + i) * k->d + e);
		const struct stored_format plain = {16, SKV_BF16};
		const struct numbers of_x = {*x};
		float y[8], z[8];
		if (refs_are_bf16(k))
			mean_of<true>(k, ref, e, y);
		else
			mean_of<false>(k, ref, e, y);
		if (k->c.enc_hidden) {
			*b = bf16_of(y);
			continue;
		}
		decode_numbers(&plain, &of_x, z); /* E is linear, so it is applied to the difference x - b */
#pragma unroll
		for (int o = 0; o < 8; o++)
			z[o] -= y[o];
		*x = bf16_of(z);
	}
}

/* ---- compression of layers ------------------------------------------------------------------- */

/* Lays out the workspace of one launch at `mem`; returns the workspace's bytes. */
static size_t compress_layout(const struct skv_shape *sh, struct compress_params *c, uint8_t *mem)
{
	const uint32_t d = skv_token_dims(sh);
	size_t at = 0;

	c->x = (__nv_bfloat16 *)(mem + at);
	at += (size_t)MAX_ROWS * d * 2;
	c->b = (__nv_bfloat16 *)(mem + at);
	at += (size_t)MAX_ROWS * d * 2;
	c->h = (__nv_bfloat16 *)(mem + at);
	at += (size_t)MAX_ROWS * sh->codec->enc_hidden * 2;
	c->near = (struct nearest *)(mem + at);
	return at + MAX_ROWS * MAX_SLICES * sizeof(struct nearest);
}

size_t skv_cuda_compress_bytes(const struct skv_shape *sh)
{
	struct compress_params c;
	return sh->codec->kind == SKV_COMPRESS_QUANT ? 0 : compress_layout(sh, &c, NULL);
}

/* Encodes the call's tokens, as many at a time as the workspace has rows for. */
static void encode_tokens(struct compress_params *c, uint32_t layers, uint32_t tokens, cudaStream_t stream)
{
	const uint32_t n = layers * c->n, max_tokens = c->max_tokens;

	for (c->skip = 0; c->skip < tokens; c->skip += max_tokens) {
		if (c->k.c.bits || c->k.c.n_refs)
			launch_grid(gather_kernel, dim3(max_tokens, n), THREADS, 0, stream, *c);
		if (c->k.c.n_refs)
			skv_cuda_nearest_refs(c, layers, stream);
		launch_grid(begin_codes_kernel, dim3(ceil_div(max_tokens, WARPS), n), THREADS, 0, stream, *c);
		if (c->k.c.bits)
			skv_cuda_encode(c, layers, stream);
	}
	c->skip = 0;
}

static void compress_layers(struct compress_params *c, const struct skv_shape *sh, uint32_t layers,
                            const struct skv_batch *batch, const float *x, cudaStream_t stream)
{
	const uint32_t refs = c->k.c.stride ? c->k.c.first + ceil_div(batch->max_compress, c->k.c.stride) : 0;
	const uint32_t at_once = c->n;

	for (uint32_t i = 0; i < layers; i++)
		c->layer[i] = {sh[i].codec->enc_in, sh[i].codec->enc_out, sh[i].layer, sh[i].codes, sh[i].refs};
	for (uint32_t i = 0; i < batch->n; i += at_once) {
		c->seq = batch->seq + i;
		c->given = x ? x + (size_t)i * batch->max_compress * c->k.d : NULL;
		c->n = batch->n - i < at_once ? batch->n - i : at_once;
		if (refs)
			launch_grid(store_refs_kernel, dim3(refs, layers * c->n), THREADS, 0, stream, *c);
		encode_tokens(c, layers, batch->max_compress, stream);
	}
	c->n = at_once;
}

static uint32_t smaller_of(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

void skv_cuda_compress(const struct skv_shape *sh, uint32_t n_layers, const struct skv_batch *batch, const float *x,
                       const struct skv_workspace *work)
{
	struct compress_params c = {};

	if (batch->n == 0 || batch->max_compress == 0)
		return;
	if (sh->codec->kind == SKV_COMPRESS_QUANT) {
		skv_cuda_quantize(sh, n_layers, batch, work);
		return;
	}
	c.k = codec_of(sh);
	c.given_rows = batch->max_compress;
	compress_layout(sh, &c, (uint8_t *)work->mem + skv_cuda_workspace_offset(sh));
	c.max_tokens = smaller_of(batch->max_compress, MAX_ROWS);
	c.n = smaller_of(batch->n, MAX_ROWS / c.max_tokens);
	c.slices = smaller_of(ceil_div(skv_refs_before(&c.k.c, batch->max_len), REFS_PER_TILE), MAX_SLICES);
	const uint32_t at_once = smaller_of(MAX_ROWS / (c.n * c.max_tokens), MAX_LAYERS);
	for (uint32_t l = 0; l < n_layers; l += at_once)
		compress_layers(&c, sh + l, smaller_of(n_layers - l, at_once), batch, x, stream_of(work));
}

/* ---- ranks ----------------------------------------------------------------------------------- */

struct gather_params {
	struct codec k;
	const struct skv_kseq *seq;
	float *x;
};

/*
 * Gathers this rank's part of x, in fp32; other ranks' elements are -infinity. The grid is max tokens of a sequence (x)
 * by sequences (y).
 */
__global__ void __launch_bounds__(THREADS) gather_tokens_kernel(const __grid_constant__ struct gather_params c)
{
	__shared__ __align__(16) float own[SKV_MAX_CODEC_DIM];
	const struct codec *k = &c.k;
	const struct skv_kseq *s = &c.seq[blockIdx.y];
	const uint32_t token = s->n_compressed + blockIdx.x;
	const bool any = token < s->compress_to;
	float *x = c.x + ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * k->d;

	if (any)
		gather(k, s, token, own);
	for (uint32_t i = threadIdx.x; i < k->d; i += THREADS) {
		const uint32_t at = i % k->half - k->own; /* wraps to a large number for earlier ranks' heads */
		x[i] = any && at < k->own_half ? own[(i < k->half ? 0 : k->own_half) + at] : -INFINITY;
	}
}

void skv_cuda_gather_tokens(const struct skv_shape *sh, const struct skv_batch *batch, float *x, const struct skv_workspace *work)
{
	const struct gather_params c = {codec_of(sh), batch->seq, x};

	if (batch->n > 0 && batch->max_compress > 0)
		launch_grid(gather_tokens_kernel, dim3(batch->max_compress, batch->n), THREADS, 0, stream_of(work), c);
}
