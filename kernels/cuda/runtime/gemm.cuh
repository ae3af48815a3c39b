/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/runtime/gemm.cuh - matrix products of rows with rows, C[BM][BN] = A[BM][k] B[BN][k]ᵀ, by a block of
 * eight warps.
 *
 * Operands are bf16 and sums are fp32, added up in the order of k, so the bits of an element of C depend neither on
 * other elements nor on BM and BN. Rows are loaded from the addresses in a struct gemm_operand, in steps of DEEP
 * elements: while the tensor cores multiply one step, the next step is being loaded. A step of a row is eight pieces of
 * 16 bytes. Piece p of row r is stored at p ^ (r % 8), so that the eight rows' pieces that one ldmatrix reads lie in
 * different banks.
 */
#ifndef SKV_CUDA_GEMM_CUH
#define SKV_CUDA_GEMM_CUH

#include "kernels/cuda/compress/records.cuh"
#include "kernels/cuda/runtime/async-copy.cuh"

#define GEMM_THREADS 256u
#define GEMM_LOADS (GEMM_THREADS / 8) /* rows that the block loads at a time */
#define DEEP 64u

/*
 * Rows of one operand of the product. With `bf16` they are rows of a bf16 matrix, otherwise all of them have the
 * storage format `format`. A thread loads piece threadIdx.x % 8 of each of its rows at[].
 */
template <int ROWS, bool bf16> struct gemm_operand {
	struct stored_format format; /* unused if `bf16` */
	uint32_t from, k; /* the first element, a multiple of 8, and the number of elements */
	const uint8_t *at[ROWS / GEMM_LOADS]; /* addresses of the rows that this thread loads; NULL: a row of zeros */
	float square[ROWS / GEMM_LOADS]; /* sums of squares over this thread's pieces of each row, if requested */

};

/* Returns the number, within the operand's tile, of the row that this thread loads from at[i]. */
DEVICE uint32_t operand_row(int i)
{
	return threadIdx.x / 8 + i * GEMM_LOADS;
}

DEVICE uint32_t piece_at(int i)
{
	const uint32_t row = operand_row(0); /* row % 8 is the same for all of this thread's rows */
	return (row + i * GEMM_LOADS) * (DEEP * 2) + (threadIdx.x % 8 ^ row % 8) * 16;
}

/*
 * Begins to load elements k0 to k0 + DEEP - 1: into registers, or directly to shared memory if they need no conversion.
 */
template <int ROWS, bool bf16>
DEVICE void load_operand(const struct gemm_operand<ROWS, bf16> *o, uint32_t k0,
                         struct numbers x[ROWS / GEMM_LOADS], uint8_t *to)
{
	const uint32_t i = k0 + threadIdx.x % 8 * 8;
#pragma unroll
	for (int r = 0; r < (int)(ROWS / GEMM_LOADS); r++) {
		const bool exists = o->at[r] && i < o->k;
		if (bf16)
			cp_async16(shared_address(to) + piece_at(r), o->at[r] + 2 * (o->from + i), exists);
		else
			x[r] = exists ? load_numbers(&o->format, o->at[r], o->from + i) : numbers{};
	}
}

/* Completes load_operand(): the elements are in shared memory after the block's next barrier. */
template <int ROWS, bool bf16, bool squares>
DEVICE void store_operand(struct gemm_operand<ROWS, bf16> *o, const struct numbers x[ROWS / GEMM_LOADS], uint8_t *to)
{
#pragma unroll
	for (int r = 0; r < (int)(ROWS / GEMM_LOADS) && !bf16; r++) {
		const uint4 y = numbers_bf16(&o->format, &x[r]);
		*(uint4 *)(to + piece_at(r)) = y;
		if (squares) {
			const uint32_t w[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
			for (int i = 0; i < 4; i++) {
				const float2 e = io_two(SKV_BF16, w[i]);
				o->square[r] = fmaf(e.x, e.x, fmaf(e.y, e.y, o->square[r]));
			}
		}
	}
	if (bf16)
		cp_async_wait<0>();
}

/*
 * The part of C that a thread accumulates. A warp has 64 columns of C and gemm_tiles tiles of 16 rows. A lane has two
 * of every eight columns, in two rows of each tile.
 */
template <int BM, int BN> constexpr int gemm_tiles = BM * BN / 8192;

template <int BM, int BN> struct gemm {
	float c[gemm_tiles<BM, BN>][8][4];
};

/* Returns the row of C that the accumulators c[m][n][2 x] and c[m][n][2 x + 1] belong to. */
template <int BM, int BN> DEVICE uint32_t gemm_row(int m, int x)
{
	return threadIdx.x / 32 / (BN / 64) * (16 * gemm_tiles<BM, BN>) + 16 * m + 8 * x + threadIdx.x % 32 / 4;
}

/*
 * Returns the column of C that the accumulators c[m][n][0] and c[m][n][2] belong to. c[m][n][1] and c[m][n][3] belong
 * to the next column.
 */
template <int BN> DEVICE uint32_t gemm_col(int n)
{
	return threadIdx.x / 32 % (BN / 64) * 64 + 8 * n + threadIdx.x % 4 * 2;
}

template <int BM, int BN> DEVICE void gemm_step(struct gemm<BM, BN> *g, uint32_t a_at, uint32_t b_at)
{
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, col = warp % (BN / 64) * 64;
	const uint32_t a_row = warp / (BN / 64) * (16 * gemm_tiles<BM, BN>) + lane % 16;
	const uint32_t b_row = col + lane / 16 * 8 + lane % 8;
#pragma unroll
	for (uint32_t k = 0; k < DEEP / 16; k++) {
		uint4 a[gemm_tiles<BM, BN>];
#pragma unroll
		for (int m = 0; m < gemm_tiles<BM, BN>; m++)
			a[m] = ldmatrix_x4(a_at + (a_row + 16 * m) * (DEEP * 2) + ((2 * k + lane / 16) ^ a_row % 8) * 16);
#pragma unroll
		for (int n = 0; n < 4; n++) {
			const uint4 b = ldmatrix_x4(b_at + (b_row + 16 * n) * (DEEP * 2) + ((2 * k + lane / 8 % 2) ^ b_row % 8) * 16);
#pragma unroll
			for (int m = 0; m < gemm_tiles<BM, BN>; m++) {
				BF16::mma(g->c[m][2 * n], a[m].x, a[m].y, a[m].z, a[m].w, b.x, b.y);
				BF16::mma(g->c[m][2 * n + 1], a[m].x, a[m].y, a[m].z, a[m].w, b.z, b.w);
			}
		}
	}
}

/* Bytes of shared memory of a product: two buffers, each for one step of both operands. */
template <int BM, int BN> constexpr uint32_t gemm_bytes = 2 * (BM + BN) * DEEP * 2;

/* Adds a product to the accumulators: C += A Bᵀ. */
template <bool squares, int BM, int BN, bool plain_a, bool plain_b>
DEVICE void gemm_add(struct gemm<BM, BN> *g, struct gemm_operand<BM, plain_a> *a,
                     struct gemm_operand<BN, plain_b> *b, uint8_t *shared)
{
	constexpr uint32_t a_bytes = BM * DEEP * 2, part = (BM + BN) * DEEP * 2;
	struct numbers x[BM / GEMM_LOADS], y[BN / GEMM_LOADS];

	__syncthreads(); /* the previous contents of `shared` are no longer needed */
	load_operand(a, 0, x, shared);
	load_operand(b, 0, y, shared + a_bytes);
	cp_async_commit();
	for (uint32_t k = 0, turn = 0; k < a->k; k += DEEP, turn ^= 1) {
		uint8_t *to = shared + turn * part, *next = shared + (turn ^ 1) * part;
		store_operand<BM, plain_a, false>(a, x, to);
		store_operand<BN, plain_b, squares>(b, y, to + a_bytes);
		__syncthreads(); /* all threads have also used the previous step, so its buffer is free */
		if (k + DEEP < a->k) {
			load_operand(a, k + DEEP, x, next);
			load_operand(b, k + DEEP, y, next + a_bytes);
			cp_async_commit();
		}
		gemm_step(g, shared_address(to), shared_address(to + a_bytes));
	}
}

#define GEMM_PITCH(BN) ((BN) + 4) /* floats of a row of C in shared memory */

/*
 * Bytes of shared memory of a product whose C is passed to gemm_to_shared(), which overwrites the operands in shared
 * memory with C, [BM][GEMM_PITCH(BN)], for all threads to read.
 */
template <int BM, int BN> constexpr uint32_t gemm_bytes_with_c =
        gemm_bytes<BM, BN> > BM * GEMM_PITCH(BN) * 4 ? gemm_bytes<BM, BN> : BM * GEMM_PITCH(BN) * 4;

template <int BM, int BN> DEVICE float *gemm_to_shared(const struct gemm<BM, BN> *g, uint8_t *shared)
{
	float *c = (float *)shared;

	__syncthreads();
#pragma unroll
	for (int m = 0; m < gemm_tiles<BM, BN>; m++)
#pragma unroll
		for (int n = 0; n < 8; n++)
#pragma unroll
			for (int x = 0; x < 2; x++)
				*(float2 *)(c + gemm_row<BM, BN>(m, x) * GEMM_PITCH(BN) + gemm_col<BN>(n)) =
				        make_float2(g->c[m][n][2 * x], g->c[m][n][2 * x + 1]);
	__syncthreads();
	return c;
}

#endif
