/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select/sketch.cu - makes sketches of keys, and appends the rows of a call to their pages, if there are
 * any.
 *
 * A block makes the sketches of 32 tokens of a kv head. The block computes the mean of the head's first keys; then each
 * warp takes one token after the other. The keys of new tokens are taken from the call's rows, rounded as they will be
 * in their pages, so that no block waits for another block's writes.
 */
#include "kernels/cuda/runtime/overlap.cuh"
#include "kernels/cuda/select/sketch.cuh"

#define THREADS 128
#define BLOCK_TOKENS 32u

struct make_params {
	struct sketch_params s;
	uint8_t *pool;
	const void *k, *v; /* rows of the call; NULL: the keys are in their pages */
	uint32_t k_stride, v_stride; /* elements from one row to the next, of k and of v */
};

/* Returns the first token that gets a sketch. When the first page becomes complete, all of its tokens get one. */
DEVICE uint32_t sketched_from(const struct skv_kseq *s)
{
	const uint32_t from = s->len - s->n_state;
	return s->len < SKV_PAGE_TOKENS ? s->len : from < SKV_PAGE_TOKENS ? 0 : from;
}

DEVICE float rounded(uint32_t dtype, float x)
{
	return dtype == SKV_F16 ? __half2float(__float2half_rn(x)) : __bfloat162float(__float2bfloat16_rn(x));
}

/* A token's rows of kv head h: in the call's k and v, if `given`, and in the token's page. */
struct token_rows {
	bool given;
	size_t k, v;    /* indices of the rows' first elements in c->k and c->v */
	/* The K row in its page; NULL: not resident. The V row is at a distance of all K rows of the page. */
	uint8_t *page;
	/* For fp8: the K row's scale. The V row's scale is at a distance of one byte for each K row of the page. */
	uint8_t *scale;
};

template <int D>
DEVICE struct token_rows rows_of(const struct make_params *c, const struct skv_kseq *s, uint32_t h, uint32_t t)
{
	const uint32_t begin = s->len - s->n_q;
	const skv_pte entry = s->table[(size_t)c->s.layer * s->layer_stride + t / SKV_PAGE_TOKENS];
	const size_t row = s->row + t - begin, at = (size_t)h * SKV_PAGE_TOKENS + t % SKV_PAGE_TOKENS;
	uint8_t *page = c->pool + skv_pte_id(entry) * c->s.page_bytes;
	return {c->k && t >= begin, row * c->k_stride + h * D, row * c->v_stride + h * D,
	        skv_pte_resident(entry) ? page + at * D * skv_dtype_bytes(c->s.dtype) : NULL,
	        page + (size_t)2 * c->s.n_kv_heads * SKV_PAGE_TOKENS * D + at};
}

/*
 * Returns elements d and d + 1 of the sum of the head's first page of keys, each key divided by 16. `rows` are the
 * page's rows.
 */
template <int D> DEVICE float2 sum_rows(uint32_t dtype, struct key_rows rows, uint32_t d)
{
	uint32_t two[SKV_PAGE_TOKENS];
	float2 sum = make_float2(0, 0);

#pragma unroll
	for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t++)
		two[t] = dtype == SKV_FP8 ? *(const uint16_t *)(rows.row + t * D + d) : *(const uint32_t *)(rows.row + (t * D + d) * 2);
#pragma unroll
	for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t++) {
		const float2 x = dtype == SKV_FP8 ? fp8_two(two[t]) : io_two(dtype, two[t]);
		const float unit = key_unit(dtype, rows.scale + t);
		sum.x += x.x * unit / SKV_PAGE_TOKENS;
		sum.y += x.y * unit / SKV_PAGE_TOKENS;
	}
	return sum;
}

/* Returns the fp8 scale of a row whose elements a warp holds. */
template <int D> DEVICE uint32_t scale_of(uint32_t dtype, const uint32_t (&raw)[D / 32])
{
	uint32_t top = 0;
#pragma unroll
	for (int r = 0; r < D / 32; r++)
		top = max(top, fp8_size(raw_value(dtype, raw[r])));
	return fp8_scale_of(__reduce_max_sync(~0u, top));
}

/* For fp8: gets the scales of the head's first page of keys, as they are stored or will be stored. */
template <int D>
__device__ static void first_scales(const struct make_params *c, const struct skv_kseq *s, uint32_t h, uint8_t to[SKV_PAGE_TOKENS])
{
	for (uint32_t t = threadIdx.x / 32; t < SKV_PAGE_TOKENS; t += THREADS / 32) {
		const struct token_rows r = rows_of<D>(c, s, h, t);
		uint32_t raw[D / 32], scale;
		if (r.given) {
			load_raw<D>(c->s.io_dtype, c->k, r.k, raw);
			scale = scale_of<D>(c->s.io_dtype, raw);
		} else {
			scale = *r.scale;
		}
		if (threadIdx.x % 32 == 0)
			to[t] = (uint8_t)scale;
	}
}

/* Returns element d of an fp8 row, either rounded from this call's row or read from its page. */
DEVICE float fp8_element(const struct make_params *c, const struct token_rows *r, uint32_t scale, uint32_t d)
{
	return r->given ? fp8_rounded(scale, io_load(c->s.io_dtype, c->k, r->k + d)) : fp8_two(r->page[d]).x * fp8_unit(scale);
}

/* Computes the mean of the head's first page of keys; zeros if that page was evicted. */
template <int D>
__device__ static void mean_of(const struct make_params *c, const struct skv_kseq *s, uint32_t h, float mean[D])
{
	__shared__ uint8_t scale[SKV_PAGE_TOKENS];
	const struct key_rows rows = first_rows(&c->s, D, s, h);
	const bool in_page = !c->k || s->len - s->n_q >= SKV_PAGE_TOKENS;

	for (uint32_t d = threadIdx.x * 2; d < D && (in_page || !rows.row); d += 2 * THREADS)
		*(float2 *)&mean[d] = rows.row ? sum_rows<D>(c->s.dtype, rows, d) : make_float2(0, 0);
	if (in_page || !rows.row)
		return;
	if (c->s.dtype == SKV_FP8) {
		first_scales<D>(c, s, h, scale);
		__syncthreads();
	}
	for (uint32_t d = threadIdx.x; d < D; d += THREADS) {
		float sum = 0;
		for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t++) {
			const struct token_rows r = rows_of<D>(c, s, h, t);
			const float x = c->s.dtype == SKV_FP8 ? fp8_element(c, &r, scale[t], d)
			                : r.given ? rounded(c->s.dtype, io_load(c->s.io_dtype, c->k, r.k + d))
			                          : io_load(c->s.dtype, r.page, d);
			sum += x / SKV_PAGE_TOKENS;
		}
		mean[d] = sum;
	}
}

/* Copies elements e to e + 7 of a row of this call to a row in a page, converted to the page's dtype. */
DEVICE void copy8(const struct make_params *c, const void *from, size_t row, uint8_t *to, uint32_t e)
{
	const struct vec8 x = io_read8(c->s.io_dtype, from, row + e);
	uint32_t w[4];
#pragma unroll
	for (int k = 0; k < 4; k++) {
		const float2 two = io_pair(c->s.io_dtype, &x, k);
		w[k] = c->s.dtype == SKV_F16 ? F16::pair(two.x, two.y) : BF16::pair(two.x, two.y);
	}
	*(uint4 *)(to + e * 2) = make_uint4(w[0], w[1], w[2], w[3]);
}

/* A warp appends a token's K and V rows to their page. */
template <int D> __device__ static void append_rows(const struct make_params *c, const struct token_rows *r)
{
	if (c->s.dtype == SKV_FP8) {
		const uint32_t rows = c->s.n_kv_heads * SKV_PAGE_TOKENS;
		store_fp8_row<D>(c->s.io_dtype, c->k, r->k, D, r->page, r->scale);
		store_fp8_row<D>(c->s.io_dtype, c->v, r->v, D, r->page + (size_t)rows * D, r->scale + rows);
		return;
	}
	for (uint32_t e = threadIdx.x % 32 * 8; e < 2 * D; e += 256) {
		if (e < D)
			copy8(c, c->k, r->k, r->page, e);
		else
			copy8(c, c->v, r->v, r->page + c->s.page_bytes / 2, e - D);
	}
}

/* Packs `width` bits of each code, beginning with bit `shift`, into the bytes of a row. */
template <int D, int width> DEVICE void pack(uint8_t *row, const uint8_t *code, int shift)
{
	constexpr uint32_t stride = D * width / 8;
	for (uint32_t i = threadIdx.x % 32; i < stride; i += 32) {
		uint32_t byte = 0;
#pragma unroll
		for (uint32_t at = 0; at < 8 / width; at++)
			byte |= (code[at * stride + i] >> shift & ((1u << width) - 1)) << at * width;
		row[i] = (uint8_t)byte;
	}
}

/*
 * A warp quantizes a rotated key to codes and a scale. The scale is NaN if an element is NaN. `code` is a buffer of the
 * warp.
 */
template <int D, int bits>
__device__ static void encode(const float (&x)[D / 32], uint8_t *code, uint8_t *row, uint16_t *scale)
{
	constexpr float steps = bits == 3 ? 0.586f : bits == 4 ? 0.335f : 1;
	constexpr int half = 1 << (bits - 1);
	float squares = 0, dot = 0, norm = 0;

#pragma unroll
	for (int r = 0; r < D / 32; r++)
		squares += x[r] * x[r];
	const float step = steps * sqrtf(warp_sum(squares) / (float)D), per_step = 1 / step;
	__syncwarp(); /* all lanes have read the codes of the last token */
#pragma unroll
	for (int r = 0; r < D / 32; r++) {
		const float nearest = bits == 1 ? copysignf(0.5f, x[r]) - 0.5f : rintf(x[r] * per_step - 0.5f);
		const int u = nearest > (float)-half ? nearest < (float)half ? (int)nearest + half : 2 * half - 1 : 0;
		const float value = (float)u + 0.5f - (float)half;
		code[threadIdx.x % 32 + 32 * r] = (uint8_t)u;
		dot += x[r] * value;
		norm += value * value;
	}
	dot = warp_sum(dot);
	norm = warp_sum(norm);
	__syncwarp();
	pack<D, bits == 3 ? 2 : bits>(row, code, 0);
	if (bits == 3)
		pack<D, 1>(row + D / 4, code, 2);
	if (threadIdx.x % 32 == 0) {
		const __nv_bfloat16 b = __float2bfloat16_rn(dot / norm);
		*scale = *(const uint16_t *)&b;
	}
}

/* A warp's token: its rows, its key, and the entry of the state page for its sketch; 0: no sketch is to be made. */
template <int D> struct sketched_token {
	struct token_rows rows;
	skv_pte state;
	uint32_t key[D / 32]; /* elements as load_raw() loads them */
	uint32_t scale;       /* scale of an fp8 row that is in its page */
};

template <int D>
DEVICE void load_token(const struct make_params *c, const struct skv_kseq *s, uint32_t h, uint32_t t, uint32_t begin,
                       struct sketched_token<D> *to)
{
	to->rows = rows_of<D>(c, s, h, t);
	to->state = t >= begin ? s->table[(size_t)c->s.state * s->layer_stride + t / c->s.page_tokens] : 0;
	if (to->rows.page)
		load_raw<D>(to->rows.given ? c->s.io_dtype : c->s.dtype, to->rows.given ? c->k : to->rows.page,
		            to->rows.given ? to->rows.k : 0, to->key);
	if (c->s.dtype == SKV_FP8 && to->rows.page && !to->rows.given)
		to->scale = *to->rows.scale;
}

/* Converts the warp's key to floats, rounded as the key is or will be in its page. */
template <int D> DEVICE void take_key(const struct make_params *c, const struct sketched_token<D> *t, float (&x)[D / 32])
{
	const uint32_t dtype = t->rows.given ? c->s.io_dtype : c->s.dtype;
	const bool fp8 = c->s.dtype == SKV_FP8;
	const uint32_t scale = !fp8 ? 0 : t->rows.given ? scale_of<D>(dtype, t->key) : t->scale;
#pragma unroll
	for (int e = 0; e < D / 32; e++) {
		const float y = raw_value(dtype, t->key[e]);
		if (fp8)
			x[e] = t->rows.given ? fp8_rounded(scale, y) : y * fp8_unit(scale);
		else
			x[e] = t->rows.given ? rounded(c->s.dtype, y) : y;
	}
}

/* Makes sketches and appends rows. The grid is groups of 32 tokens (x) by kv heads (y) by sequences (z). */
template <int D, int bits>
__global__ void __launch_bounds__(THREADS) make_kernel(const __grid_constant__ struct make_params c)
{
	__shared__ __align__(8) float mean[D];
	__shared__ uint8_t codes[THREADS / 32][D];
	const struct skv_kseq *s = &c.s.seq[blockIdx.z];
	const uint32_t h = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32, begin = sketched_from(s);
	const uint32_t from = c.k ? min(begin, s->len - s->n_q) : begin;
	const uint32_t first = (from / BLOCK_TOKENS + blockIdx.x) * BLOCK_TOKENS, end = min(first + BLOCK_TOKENS, s->len);

	await_previous();
	let_next_begin();
	if (first >= s->len)
		return;
	/* The first token is loaded before the mean is computed: a decode step waits for this load. */
	uint32_t t = max(first, from) + warp;
	struct sketched_token<D> next;
	if (t < end)
		load_token<D>(&c, s, h, t, begin, &next);
	if (begin < end) {
		mean_of<D>(&c, s, h, mean);
		__syncthreads();
	}
	for (; t < end; t += THREADS / 32) {
		const struct sketched_token<D> now = next;
		float x[D / 32];
		if (t + THREADS / 32 < end)
			load_token<D>(&c, s, h, t + THREADS / 32, begin, &next);
		if (now.rows.page && now.rows.given)
			append_rows<D>(&c, &now.rows);
		if (!now.rows.page || !skv_pte_resident(now.state))
			continue;
		take_key<D>(&c, &now, x);
#pragma unroll
		for (int e = 0; e < D / 32; e++)
			x[e] -= mean[lane + 32 * e];
		sketch_rotate<D>(x);
		uint8_t *page = c.pool + skv_pte_id(now.state) * c.s.page_bytes + (size_t)h * c.s.head_bytes;
		const uint32_t at = t % c.s.page_tokens;
		encode<D, bits>(x, codes[warp], page + at * c.s.row_bytes,
		                (uint16_t *)(page + c.s.page_tokens * c.s.row_bytes) + at);
	}
}

struct make_launch {
	struct make_params c;
	dim3 grid;
	cudaStream_t stream;

	template <int D, int bits> void run(void) const
	{
		launch_overlapped(make_kernel<D, bits>, c, grid, THREADS, 0, 0, stream);
	}
};

void skv_cuda_append_sketches(const struct skv_shape *sh, const struct skv_batch *b, const void *k, const void *v,
                              const struct skv_workspace *work)
{
	const uint32_t tokens = k && b->max_q > b->max_state ? b->max_q : b->max_state;
	const struct make_launch launch = {
		.c = {.s = sketch_params_of(sh, b, NULL), .pool = sh->pool, .k = k, .v = v,
		      .k_stride = skv_k_stride(sh), .v_stride = skv_v_stride(sh)},
		.grid = dim3(ceil_div(tokens + BLOCK_TOKENS - 1, BLOCK_TOKENS), sh->n_kv_heads, b->n),
		.stream = stream_of(work),
	};

	if (b->n > 0 && tokens > 0)
		sketch_dispatch(sh, launch);
}

void skv_cuda_update_sketches(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_workspace *work)
{
	skv_cuda_append_sketches(sh, b, NULL, NULL, work);
}
