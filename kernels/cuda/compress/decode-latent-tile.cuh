/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/compress/decode-latent-tile.cuh - the computation of a block's warps for a tile: see decode-latent.cuh.
 */
#ifndef SKV_CUDA_COMPRESS_DECODE_LATENT_TILE_CUH
#define SKV_CUDA_COMPRESS_DECODE_LATENT_TILE_CUH

#include "kernels/cuda/compress/decode-latent.cuh"

/* ---- keys ------------------------------------------------------------------------------------ */

/*
 * A warp's part of W_K, which stays in registers. Rows 0 … 7 are the first elements of rotary pairs, rows 8 … 15 the
 * second ones. A lane's pair is number g.
 */
template <int D, int W> struct key_weights {
	static constexpr int STEPS = W / 16 / SLICES; /* steps of 16 elements of the width */
	uint32_t w[STEPS][4];
	uint64_t turn; /* rotation of the lane's pair from one position to the next, in 2^-64 of a turn */
	bool turns;    /* whether RoPE rotates the pair */
};

/* The block of 8 of a head's dimensions that has the first, or the second, elements of pairs [8 b, 8 b + 8). */
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

/* The dimensions of one of the warp's two blocks: those of the first elements of its pairs, or of the second ones. */
template <int D> DEVICE uint32_t my_dims(const struct latent_params *c, int second)
{
	return block_of<D>(c, second, span_of<D>());
}

/* Begins to copy W_K of kv head h to shared memory, in the place of the references' rows: one row per dimension. */
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

/* The j-th of a tile's blocks in this warp's order: those that it finishes come first. */
template <int D> DEVICE uint32_t my_block(uint32_t j)
{
	return (j + slice_of<D>() * OWN_BLOCKS) % BLOCKS;
}

/*
 * acc[own block] = the mean of the references for tile k, which is the sum of a token's rows times their share. It has
 * the layout of a product: pairs down, tokens across.
 */
template <class T, int D, int W>
__device__ static void add_rows(const struct latent_params *c, struct latent_smem<D, W> *s, uint32_t k,
                                float acc[BLOCKS][4])
{
	const uint32_t lane = lane_of(), g = lane / 4, col = lane % 4 * 2, piece = my_dims<D>(c, lane / 8 % 2);
	const uint32_t ones = T::pair(col == g, col + 1 == g); /* the identity matrix */
	for (uint32_t row = 0; row < c->rows; row += 2) {
		const bool both = row + 1 < c->rows; /* else the first row again, times 0 */
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
		/* This is piece_at() of first + 2 k: XOR works since the bits are disjoint. */
		for (int n = 0; n < 2; n++) {
			const uint4 z = ldmatrix_x4((at[n] ^ (k * 32 & 96)) + (k * 32 & ~127));
			const uint32_t *w = y->w[k];
			BF16::mma(acc[2 * n], w[0], w[1], w[2], w[3], z.x, z.y);
			BF16::mma(acc[2 * n + 1], w[0], w[1], w[2], w[3], z.z, z.w);
		}
}

/* Passes partial sums of blocks to the warp that finishes these. */
template <int D, int W>
__device__ static void give_to_finisher(struct latent_smem<D, W> *s, const float acc[BLOCKS][4])
{
#pragma unroll
	for (uint32_t j = OWN_BLOCKS; j < BLOCKS; j++)
		s->slice[my_block<D>(j)][span_of<D>()][lane_of()] = make_float4(acc[j][0], acc[j][1], acc[j][2],
		                                                                acc[j][3]);
}

/* Cosine and sine of a position's angle. Whole turns overflow out of the product. */
DEVICE float2 rope_sin_cos(uint64_t turn, uint32_t position)
{
	const int32_t part = (int32_t)(turn * position >> 32);
	float2 a;

	__sincosf((float)part * 1.46291807926715968e-9f, &a.y, &a.x); /* 2 pi / 2^32 */
	return a;
}

/* Completes K of the j-th of the warp's own blocks, and applies RoPE for its tokens' positions. */
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

/* A warp's sums over a chunk. */
template <int D, int W> struct chunk_sums {
	static constexpr int TILES = W / 16 < warps<D> ? 1 : W / 16 / warps<D>; /* tiles of 16 elements of the width */
	uint32_t q[2]; /* of head g, for the first and second elements of the warp's pairs */
	float u[TILES][4];
	float r[4];           /* 16 dimensions of V */
	float max, sum;       /* of the head with the warp's number; `sum` is a lane's part of it */
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

/* Computes the part of the scores of the warp's j-th block that its dimensions contribute. */
template <class T, int D, int W>
__device__ static void score_keys(const struct chunk_sums<D, W> *w, struct latent_smem<D, W> *s, uint32_t j,
                                  const float acc[BLOCKS][4])
{
	const uint32_t lane = lane_of();
	const float *k = acc[j];
	float score[4] = {0, 0, 0, 0}; /* of eight heads; the rest is padding */

	T::mma(score, w->q[0], 0, w->q[1], 0, transpose8x8(T::pair(k[0], k[1])), transpose8x8(T::pair(k[2], k[3])));
	__syncwarp(); /* all lanes have used the previous contents of the buffer */
	*(float2 *)(score_at(s, my_block<D>(j), span_of<D>(), lane / 4) + lane % 4 * 2) = make_float2(score[0], score[1]);
}

/* Sets element `at` of a row of weights. */
DEVICE void store_weight(uint32_t *row, uint32_t at, uint32_t pair)
{
	((uint16_t *)row)[at] = (uint16_t)pair;
}

/*
 * One step of the online softmax: scores become weights. Each warp has a head and each lane a token; surplus warps do
 * nothing.
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

/* Weights of 32 tokens for head g, as the right factor of two products. */
DEVICE uint4 weights_of(const uint32_t row[WEIGHTS_PITCH])
{
	const uint32_t *at = row + lane_of() % 4;

	return make_uint4(at[0], at[4], at[8], at[12]);
}

/*
 * acc += 16 columns of 32 tokens' rows times their weights. The first 16 rows are at `at`, the others `next`
 * bytes further.
 */
template <class T> DEVICE void add_weighted_rows(float acc[4], uint32_t at, uint32_t next, uint4 weights)
{
	const uint4 a = ldmatrix_x4_trans(at), b = ldmatrix_x4_trans(at + next);

	T::mma(acc, a.x, a.y, a.z, a.w, weights.x, weights.y);
	T::mma(acc, b.x, b.y, b.z, b.w, weights.z, weights.w);
}

/* Adds tile k to u and r. */
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

/* Writes a chunk's partial result. */
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
