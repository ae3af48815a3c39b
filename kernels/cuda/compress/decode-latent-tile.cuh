/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/compress/decode-latent-tile.cuh - attention of a block's warps to a tile of tokens: see
 * decode-latent.cuh.
 */
#ifndef SKV_CUDA_COMPRESS_DECODE_LATENT_TILE_CUH
#define SKV_CUDA_COMPRESS_DECODE_LATENT_TILE_CUH

#include "kernels/cuda/compress/decode-latent.cuh"

/* ---- keys ------------------------------------------------------------------------------------ */

/*
 * A warp's part of W_K, which stays in registers. Rows 0 … 7 are the first elements of eight rotary pairs, rows 8 … 15
 * the second elements. A lane (4 g + c) has pair number g.
 */
template <int D, int W> struct key_weights {
	static constexpr int STEPS = W / 16 / SLICES; /* steps of 16 elements of the width */
	uint32_t w[STEPS][4];
	/* Rotation of the lane's pair from one position to the next, in units of 2^-64 of a turn. */
	uint64_t turn;
	bool turns;    /* does RoPE rotate the pair? */
};

/*
 * Returns the block of 8 of a head's dimensions that has the first (or, if `second`, the second) elements of pairs [8
 * b, 8 b + 8).
 */
template <int D> DEVICE uint32_t block_of(const struct latent_params *c, int second, uint32_t b)
{
	const uint32_t t = c->k.c.rope_dims / 16;

	if (!second)
		return b < t ? b : b + t;
	return b < t ? b + t : b + D / 16;
}

DEVICE uint32_t lane_of(void)
{
	return threadIdx.x % 32;
}

template <int D> DEVICE uint32_t span_of(void)
{
	return threadIdx.x / 32 % spans<D>;
}

template <int D> DEVICE uint32_t slice_of(void)
{
	return threadIdx.x / 32 / spans<D>;
}

/*
 * Returns one of the warp's two blocks of dimensions: that of the first elements of its pairs, or of the second
 * elements.
 */
template <int D> DEVICE uint32_t my_dims(const struct latent_params *c, int second)
{
	return block_of<D>(c, second, span_of<D>());
}

/* Begins to copy W_K of kv head h to shared memory, where references' rows are stored later: one row per dimension. */
template <int D, int W>
__device__ static void copy_weights(const struct latent_params *c, struct latent_smem<D, W> *s, uint32_t h)
{
	static_assert(sizeof(s->rows) >= (size_t)D * W * 2, "");
	for (uint32_t e = threadIdx.x; e < D * W / 8; e += threads<D>) {
		const uint32_t d = e / (W / 8), p = e % (W / 8);
		const bool exists = 8 * p < c->width;
		const uint8_t *from = (const uint8_t *)c->k.c.dec_out + ((size_t)(head_in_x(c, 0, h, D) + d) * c->width + 8 * p) * 2;
		cp_async16(shared_address(s->rows) + piece_at<W * 2>(d, p), exists ? from : c->k.sh.pool, exists);
	}
}

template <int D, int W>
__device__ static void load_weights(struct key_weights<D, W> *y, const struct latent_params *c,
                                    struct latent_smem<D, W> *s)
{
	const uint32_t lane = lane_of(), first = slice_of<D>() * y->STEPS * 2 + lane / 16;
	const uint32_t row = 8 * my_dims<D>(c, lane / 8 % 2) + lane % 8, pair = 8 * span_of<D>() + lane / 4;
#pragma unroll
	for (int k = 0; k < y->STEPS; k++) {
		const uint4 w = ldmatrix_x4(shared_address(s->rows) + piece_at<W * 2>(row, first + 2 * k));
		y->w[k][0] = w.x;
		y->w[k][1] = w.y;
		y->w[k][2] = w.z;
		y->w[k][3] = w.w;
	}
	y->turns = pair < c->k.c.rope_dims / 2;
	const double turns = y->turns ? rope_turns(&c->k, pair) : 0;
	y->turn = __double2ull_rn((turns - floor(turns)) * 18446744073709551616.0);
}

/*
 * Returns the j-th of a tile's blocks of tokens in this warp's order: the blocks whose K this warp completes come
 * first.
 */
template <int D> DEVICE uint32_t my_block(uint32_t j)
{
	return (j + slice_of<D>() * OWN_BLOCKS) % BLOCKS;
}

/*
 * Adds the mean b of the references to acc, for the warp's own blocks of tile k. A token's mean is the sum of its rows
 * times their share. acc has the layout of a product: pairs are rows, tokens are columns.
 */
template <class T, int D, int W>
__device__ static void add_rows(const struct latent_params *c, struct latent_smem<D, W> *s, uint32_t k,
                                float acc[BLOCKS][4])
{
	const uint32_t lane = lane_of(), g = lane / 4, col = lane % 4 * 2, piece = my_dims<D>(c, lane / 8 % 2);
	const uint32_t ones = T::pair(col == g, col + 1 == g); /* the identity matrix */
	for (uint32_t row = 0; row < c->rows; row += 2) {
		const bool both = row + 1 < c->rows; /* false: the first row is read twice, once times 0 */
		const uint32_t at = row + (both ? lane / 16 : 0);
#pragma unroll
		for (uint32_t j = 0; j < OWN_BLOCKS; j++) {
			const uint32_t t = 8 * my_block<D>(j) + lane % 8;
			const uint4 a = ldmatrix_x4_trans(shared_address(s->rows[k % 2][at][0]) + piece_at<D * 2>(t, piece));
			T::mma(acc[j], a.x, a.y, a.z, a.w, ones, both ? ones : 0);
		}
	}
#pragma unroll
	for (uint32_t j = 0; j < OWN_BLOCKS; j++) {
		const struct token_info *about = &s->about[k % 2][8 * my_block<D>(j) + col];
		const float share[2] = {about[0].share, about[1].share};
#pragma unroll
		for (int x = 0; x < 4; x++)
			acc[j][x] *= share[x % 2];
	}
}

template <int D, int W>
__device__ static void add_codes(const struct key_weights<D, W> *y, struct latent_smem<D, W> *s, float acc[BLOCKS][4])
{
	const uint32_t lane = lane_of(), first = slice_of<D>() * y->STEPS * 2 + lane / 8 % 2;
	uint32_t at[2];
#pragma unroll
	for (int n = 0; n < 2; n++)
		at[n] = shared_address(s->z) + piece_at<W * 2>(8 * my_block<D>(2 * n + lane / 16) + lane % 8, first);
#pragma unroll
	for (int k = 0; k < y->STEPS; k++)
#pragma unroll
		/* The address is that of piece first + 2 k: XOR gives it since the bits are disjoint. */
		for (int n = 0; n < 2; n++) {
			const uint4 z = ldmatrix_x4((at[n] ^ (k * 32 & 96)) + (k * 32 & ~127));
			const uint32_t *w = y->w[k];
			BF16::mma(acc[2 * n], w[0], w[1], w[2], w[3], z.x, z.y);
			BF16::mma(acc[2 * n + 1], w[0], w[1], w[2], w[3], z.z, z.w);
		}
}

/* Passes the warp's partial sums of blocks to the warps that complete these blocks. */
template <int D, int W>
__device__ static void give_to_finisher(struct latent_smem<D, W> *s, const float acc[BLOCKS][4])
{
#pragma unroll
	for (uint32_t j = OWN_BLOCKS; j < BLOCKS; j++)
		s->slice[my_block<D>(j)][span_of<D>()][lane_of()] = make_float4(acc[j][0], acc[j][1], acc[j][2],
		                                                                acc[j][3]);
}

/* Returns cosine and sine of a pair's angle at a position. Whole turns overflow out of the product. */
DEVICE float2 rope_sin_cos(uint64_t turn, uint32_t position)
{
	const int32_t part = (int32_t)(turn * position >> 32);
	float2 a;

	__sincosf((float)part * 1.46291807926715968e-9f, &a.y, &a.x); /* the factor is 2 pi / 2^32 */
	return a;
}

/* Completes K of the j-th of the warp's own blocks, and applies RoPE at its tokens' positions. */
template <int D, int W>
__device__ static void rope_keys(const struct key_weights<D, W> *y, const struct latent_smem<D, W> *s,
                                 uint32_t k, uint32_t j, float acc[BLOCKS][4])
{
	const uint32_t b = my_block<D>(j);
	const float4 part = s->slice[b][span_of<D>()][lane_of()];
	const float all[4] = {acc[j][0] + part.x, acc[j][1] + part.y, acc[j][2] + part.z, acc[j][3] + part.w};
#pragma unroll
	for (int t = 0; t < 2; t++) {
		const struct token_info about = s->about[k % 2][8 * b + lane_of() % 4 * 2 + t];
		const float2 a = rope_sin_cos(y->turn, about.position);
		const float size = y->turns ? about.size : 1, cos = a.x * size, sin = a.y * size;
		acc[j][t] = all[t] * cos - all[2 + t] * sin;
		acc[j][2 + t] = all[t] * sin + all[2 + t] * cos;
	}
}

/* ---- scores and sums ------------------------------------------------------------------------- */

/* A warp's sums over the tokens of a chunk. */
template <int D, int W> struct chunk_sums {
	static constexpr int TILES = W / 16 < warps<D> ? 1 : W / 16 / warps<D>; /* tiles of 16 elements of the width */
	uint32_t q[2]; /* q of head g, for the first and for the second elements of the warp's pairs */
	float u[TILES][4];
	float r[4];           /* the warp's 16 dimensions of r */
	/* Maximum and sum for the head whose number is the warp's. `sum` is the part of the lane's tokens. */
	float max, sum;
	uint32_t attended;
};

template <class T, int D, int W>
__device__ static void chunk_begins(struct chunk_sums<D, W> *w, const struct latent_params *c,
                                    const struct tile *t, uint32_t x)
{
	const uint32_t lane = lane_of(), before = x % c->tiles_per_kv_head * c->tile_heads;
	const uint32_t heads = min(c->tile_heads, c->group - before);
	const uint32_t head = x / c->tiles_per_kv_head * c->group + before + min(lane / 4, heads - 1);
	const size_t row = (size_t)c->seq[t->i].row * c->q_stride + head * D + lane % 4 * 2;
#pragma unroll
	for (int m = 0; m < 2; m++) {
		const float2 q = io_load2(c->k.sh.io_dtype, c->q, row + 8 * my_dims<D>(c, m));
		w->q[m] = T::pair(q.x, q.y);
	}
#pragma unroll
	for (int x = 0; x < 4; x++) {
		w->r[x] = 0;
#pragma unroll
		for (int a = 0; a < w->TILES; a++)
			w->u[a][x] = 0;
	}
	w->max = -INFINITY;
	w->sum = 0;
	w->attended = 0;
}

/* Computes the scores of the warp's j-th block of tokens, as far as the warp's dimensions contribute to them. */
template <class T, int D, int W>
__device__ static void score_keys(const struct chunk_sums<D, W> *w, struct latent_smem<D, W> *s, uint32_t j,
                                  const float acc[BLOCKS][4])
{
	const uint32_t lane = lane_of();
	const float *k = acc[j];
	float score[4] = {0, 0, 0, 0}; /* scores of eight heads; the rest is padding */

	T::mma(score, w->q[0], 0, w->q[1], 0, transpose8x8(T::pair(k[0], k[1])), transpose8x8(T::pair(k[2], k[3])));
	__syncwarp(); /* all lanes have used the previous contents of the buffer */
	*(float2 *)(score_at(s, my_block<D>(j), span_of<D>(), lane / 4) + lane % 4 * 2) = make_float2(score[0], score[1]);
}

/* Sets element `at` of a row of 16-bit weights to the lower half of `pair`. */
DEVICE void store_weight(uint32_t *row, uint32_t at, uint32_t pair)
{
	((uint16_t *)row)[at] = (uint16_t)pair;
}

/*
 * Performs one step of the online softmax: scores become weights. Each warp has a head, and each lane a token; surplus
 * warps do nothing.
 */
template <class T, int D, int W>
__device__ static void softmax_step(struct chunk_sums<D, W> *w, const struct latent_params *c,
                                    struct latent_smem<D, W> *s, uint32_t k)
{
	const uint32_t lane = lane_of(), head = threadIdx.x / 32;
	if (head >= HEAD_TILE)
		return;
	const struct token_info about = s->about[k % 2][lane];
	float score = 0, max;
#pragma unroll
	for (uint32_t x = 0; x < spans<D>; x++)
		score += score_at(s, lane / 8, x, head)[lane % 8];
	if (c->scale.cap != 0)
		score = soft_cap(c->scale.cap, score);
	score = about.kind != ABSENT ? score * c->scale.scale : -INFINITY;
	max = fmaxf(score, w->max);
#pragma unroll
	for (int x = 1; x < 32; x *= 2)
		max = fmaxf(max, __shfl_xor_sync(~0u, max, x));
	const float base = max == -INFINITY ? 0 : max, fix = exp2_fast(w->max - base);
	const float weight = exp2_fast(score - base);
	w->max = max;
	w->sum = w->sum * fix + weight;
	w->attended += __popc(__ballot_sync(~0u, about.kind != ABSENT));
	store_weight(s->weight[head], lane, BF16::pair(weight, 0));
	store_weight(s->rows_weight[head], lane, T::pair(weight * about.share, 0));
	if (lane == 0)
		s->fix[head] = fix;
}

/* Loads the weights of 32 tokens for head g, as the right factors of two products. */
DEVICE uint4 weights_of(const uint32_t row[WEIGHTS_PITCH])
{
	const uint32_t *at = row + lane_of() % 4;

	return make_uint4(at[0], at[4], at[8], at[12]);
}

/*
 * Adds to acc 16 columns of 32 tokens' rows, times the tokens' weights. The first 16 rows are at address `at`, the
 * other rows `next` bytes further.
 */
template <class T> DEVICE void add_weighted_rows(float acc[4], uint32_t at, uint32_t next, uint4 weights)
{
	const uint4 a = ldmatrix_x4_trans(at), b = ldmatrix_x4_trans(at + next);

	T::mma(acc, a.x, a.y, a.z, a.w, weights.x, weights.y);
	T::mma(acc, b.x, b.y, b.z, b.w, weights.z, weights.w);
}

/* Adds tile k to the sums u and r, with the tile's weights. */
template <class T, int D, int W>
__device__ static void add_values(struct chunk_sums<D, W> *w, const struct latent_params *c,
                                  struct latent_smem<D, W> *s, uint32_t k)
{
	const uint32_t lane = lane_of(), warp = threadIdx.x / 32, t = lane / 16 * 8 + lane % 8, side = lane / 8 % 2;
	const float2 fix = *(const float2 *)&s->fix[lane % 4 * 2];
	const uint4 weight = weights_of(s->weight[lane / 4]), rows_weight = weights_of(s->rows_weight[lane / 4]);
#pragma unroll
	for (int a = 0; a < w->TILES; a++) {
		const uint32_t tile = warp + warps<D> * a;
#pragma unroll
		for (int x = 0; x < 4; x++)
			w->u[a][x] *= x % 2 ? fix.y : fix.x;
		if (tile < W / 16)
			add_weighted_rows<BF16>(w->u[a],
			                        shared_address(s->z) + piece_at<W * 2>(t, 2 * tile + side), 16 * W * 2,
			                        weight);
	}
#pragma unroll
	for (int x = 0; x < 4; x++)
		w->r[x] *= x % 2 ? fix.y : fix.x;
	for (uint32_t row = 0; row < c->rows && warp < D / 16; row++)
		add_weighted_rows<T>(w->r,
		                     shared_address(s->rows[k % 2][row][1]) + piece_at<D * 2>(t, 2 * warp + side),
		                     16 * D * 2, rows_weight);
}

/* Writes the partial result of a chunk to memory. */
template <int D, int W>
__device__ static void chunk_ends(const struct chunk_sums<D, W> *w, const struct latent_params *c,
                                  const struct tile *t, uint32_t x)
{
	const uint32_t lane = lane_of(), warp = threadIdx.x / 32, before = x % c->tiles_per_kv_head * c->tile_heads;
	const uint32_t heads = min(c->tile_heads, c->group - before), stride = c->width + D;
	float *part = partial_at(c, t->i, x, t->chunk, D), *acc = part + 2 * HEAD_TILE, sum = w->sum;
	unsigned long long *attended = (unsigned long long *)c->seq[t->i].attended;
#pragma unroll
	for (int x = 1; x < 32; x *= 2)
		sum += __shfl_xor_sync(~0u, sum, x);
	if (lane == 0 && warp < HEAD_TILE) {
		part[warp] = w->max;
		part[HEAD_TILE + warp] = sum;
		if (warp == 0 && attended && w->attended)
			atomicAdd(attended, (unsigned long long)w->attended * heads);
	}
#pragma unroll
	for (int x = 0; x < 4; x++) {
		const uint32_t head = lane % 4 * 2 + x % 2, row = lane / 4 + x / 2 * 8;
		if (head >= heads)
			continue;
#pragma unroll
		for (int a = 0; a < w->TILES; a++)
			if (16 * (warp + warps<D> * a) + row < c->width)
				acc[head * stride + 16 * (warp + warps<D> * a) + row] = w->u[a][x];
		if (warp < D / 16)
			acc[head * stride + c->width + 16 * warp + row] = w->r[x];
	}
}

#endif
