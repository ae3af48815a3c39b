/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/runtime/gemm.h - products of rows with the rows of a matrix [out][in], for the files of compress/.
 *
 * Each element of a product is summed independently of the others: VL partial sums along the inner index, which are
 * then added up. So the bits of an element do not depend on the other rows.
 */
#ifndef SKV_HOST_GEMM_H
#define SKV_HOST_GEMM_H

#include "kernels/host/runtime/host.h"
#include "kernels/host/runtime/simd.h"

#define DOT_ROWS 4
#define DOT_COLS (VL / 4)

/* Returns DOT_ROWS x DOT_COLS dot products of rows of k floats: lane i * DOT_COLS + j of the result is a[i] · b[j]. */
INLINE vf dot_tile(const float *const a[DOT_ROWS], const float *const b[DOT_COLS], uint32_t k)
{
	vf sum[VL];
	UNROLL
	for (int i = 0; i < VL; i++)
		sum[i] = (vf){0};
	for (uint32_t x = 0; x < k; x += VL) {
		vf y[DOT_COLS];
		UNROLL
		for (int j = 0; j < DOT_COLS; j++)
			y[j] = v_loadf(b[j] + x);
		UNROLL
		for (int i = 0; i < DOT_ROWS; i++) {
			vf w = v_loadf(a[i] + x);
			UNROLL
			for (int j = 0; j < DOT_COLS; j++)
				sum[i * DOT_COLS + j] = v_fma(w, y[j], sum[i * DOT_COLS + j]);
		}
	}
	return v_fold_rows(V_SUM, sum);
}

/* Computes c[m][n] = a[m][k] (b[n][k])ᵀ. lda, ldb and ldc are row strides in floats; k is a multiple of 16. */
static void dots(const float *a, size_t lda, uint32_t m, const float *b, size_t ldb, uint32_t n, uint32_t k, float *c,
                 size_t ldc)
{
	for (uint32_t j0 = 0; j0 < n; j0 += DOT_COLS)
		for (uint32_t i0 = 0; i0 < m; i0 += DOT_ROWS) {
			const float *row[DOT_ROWS], *col[DOT_COLS];
			float tile[VL];
			/* in a tile that reaches past the last row of a or b, that last row is repeated */
			for (uint32_t i = 0; i < DOT_ROWS; i++)
				row[i] = a + skv_min(i0 + i, m - 1) * lda;
			for (uint32_t j = 0; j < DOT_COLS; j++)
				col[j] = b + skv_min(j0 + j, n - 1) * ldb;
			v_storef(tile, dot_tile(row, col, k));
			for (uint32_t i = 0; i < DOT_ROWS && i0 + i < m; i++)
				for (uint32_t j = 0; j < DOT_COLS && j0 + j < n; j++)
					c[(i0 + i) * ldc + j0 + j] = tile[i * DOT_COLS + j];
		}
}

/* SiLU: x / (1 + e^-x) in each lane. */
INLINE vf v_silu(vf x)
{
	vf t = x * -0x1.715476p0f;
	return x / (v_exp2(v_select(t > 126, v_set(126), t)) + 1);
}

#endif
