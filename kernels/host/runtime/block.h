/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/runtime/block.h - products of many query rows with a block of tokens, for prefill/attend.h,
 * prefill/weights.h and evict/accumulate.c.
 *
 * A block is BLOCK tokens that begin at a multiple of BLOCK. The K and V rows of a block are converted to fp32 once,
 * with K transposed. Scores and outputs are then plain matrix products with a register tile of 4 rows. Each sum runs
 * over its inner index alone, in order.
 */
#ifndef SKV_HOST_BLOCK_H
#define SKV_HOST_BLOCK_H

#include <math.h>
#include "kernels/host/runtime/host.h"
#include "kernels/host/runtime/logits.h"
#include "kernels/host/runtime/simd.h"

#define BLOCK 64u
#define BLOCK_PAGES (BLOCK / SKV_PAGE_TOKENS)
#define STRIP ((uint32_t)VL) /* number of rows whose softmax is computed together; a multiple of 4 */

#define M_MAX 256u /* most rows of a work item: query rows times the q heads of a group */
static_assert(M_MAX >= SKV_MAX_HEADS, "a query row is part of one item");

/* ---- matrix product -------------------------------------------------------------------------- */

/* Computes a tile of a product: c[m][nv vectors] = a[m][k] b[k][nv vectors], or += with `add`. */
INLINE void product_tile(const int m, const int nv, const float *a, size_t lda, const float *b, size_t ldb,
                         float *c, size_t ldc, uint32_t k, bool add)
{
	vf acc[16];
	UNROLL
	for (int i = 0; i < m; i++) {
		UNROLL
		for (int j = 0; j < nv; j++)
			acc[i * nv + j] = add ? v_loadf(c + i * ldc + j * VL) : (vf){0};
	}
	for (uint32_t x = 0; x < k; x++) {
		vf y[4];
		UNROLL
		for (int j = 0; j < nv; j++)
			y[j] = v_loadf(b + x * ldb + j * VL);
		UNROLL
		for (int i = 0; i < m; i++) {
			vf w = v_set(a[i * lda + x]);
			UNROLL
			for (int j = 0; j < nv; j++)
				acc[i * nv + j] = v_fma(w, y[j], acc[i * nv + j]);
		}
	}
	UNROLL
	for (int i = 0; i < m; i++) {
		UNROLL
		for (int j = 0; j < nv; j++)
			v_storef(c + i * ldc + j * VL, acc[i * nv + j]);
	}
}

INLINE void product_rows(const int m, const float *a, size_t lda, const float *b, size_t ldb, float *c,
                         size_t ldc, uint32_t n, uint32_t k, bool add)
{
	const int nv = VL == 16 ? 4 : 2;
	uint32_t j = 0;
	for (; j + nv * VL <= n; j += nv * VL)
		product_tile(m, nv, a, lda, b + j, ldb, c + j, ldc, k, add);
	for (; j < n; j += VL)
		product_tile(m, 1, a, lda, b + j, ldb, c + j, ldc, k, add);
}

/*
 * Computes c[m][n] = a[m][k] b[k][n], or += with `add`. n is a multiple of VL; lda, ldb and ldc are row strides in
 * floats.
 */
static void product(const float *a, size_t lda, const float *b, size_t ldb, float *c, size_t ldc, uint32_t m,
                    uint32_t n, uint32_t k, bool add)
{
	uint32_t i = 0;
	for (; i + 4 <= m; i += 4)
		product_rows(4, a + i * lda, lda, b, ldb, c + i * ldc, ldc, n, k, add);
	for (; i + 2 <= m; i += 2)
		product_rows(2, a + i * lda, lda, b, ldb, c + i * ldc, ldc, n, k, add);
	if (i < m)
		product_rows(1, a + i * lda, lda, b, ldb, c + i * ldc, ldc, n, k, add);
}

/* ---- K and V of tokens ----------------------------------------------------------------------- */

INLINE void widen_page(uint32_t dtype, const struct skv_shape *sh, const uint8_t *page, float *k, float *v)
{
	const uint32_t dim = sh->head_dim, row = (uint32_t)skv_row_bytes(sh);
	float unit[SKV_PAGE_TOKENS];
	for (uint32_t t = 0; dtype == SKV_FP8 && t < SKV_PAGE_TOKENS; t++)
		unit[t] = skv_row_unit(sh, page + t * row);
	for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t += VL)
		for (uint32_t d = 0; d < dim; d += VL) {
			vf x[VL];
			const uint8_t *at = page + t * row + d * skv_dtype_bytes(dtype);
			UNROLL
			for (int i = 0; i < VL; i++)
				x[i] = v_load(dtype, at + i * row);
			UNROLL
			for (int i = 0; dtype == SKV_FP8 && i < VL; i++)
				x[i] *= unit[t + i];
			v_transpose(x);
			UNROLL
			for (int i = 0; i < VL; i++)
				v_storef(k + (d + i) * BLOCK + t, x[i]);
		}
	page += skv_v_offset(sh);
	for (uint32_t t = 0; v && t < SKV_PAGE_TOKENS; t++, page += row, v += dim) {
		const float by = dtype == SKV_FP8 ? skv_row_unit(sh, page) : 1;
		for (uint32_t d = 0; d < dim; d += VL) {
			const vf x = v_load(dtype, page + d * skv_dtype_bytes(dtype));
			v_storef(v + d, dtype == SKV_FP8 ? x * by : x);
		}
	}
}

static void zero_page(uint32_t dim, float *k, float *v)
{
	for (uint32_t d = 0; d < dim; d++)
		memset(k + d * BLOCK, 0, SKV_PAGE_TOKENS * sizeof *k);
	if (v)
		memset(v, 0, SKV_PAGE_TOKENS * dim * sizeof *v);
}

/*
 * Converts the rows of kv head h in the block of tokens that begins at `token`, up to the end of the sequence, to fp32:
 * K into k[dim][BLOCK], transposed, and V into v[BLOCK][dim] unless v is NULL. Returns a bit mask of the block's
 * resident pages; the rows of pages that are not resident become zeros.
 */
static uint32_t widen_block(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t h, uint32_t token, float *k,
                            float *v)
{
	const skv_pte *table = skv_layer_table(sh, s);
	uint32_t resident = 0, dim = sh->head_dim;
	for (uint32_t i = 0; i < BLOCK_PAGES && token + i * SKV_PAGE_TOKENS < s->len; i++) {
		skv_pte e = table[token / SKV_PAGE_TOKENS + i];
		float *k_at = k + i * SKV_PAGE_TOKENS, *v_at = v ? v + i * SKV_PAGE_TOKENS * dim : NULL;
		if (!skv_pte_resident(e)) {
			zero_page(dim, k_at, v_at);
			continue;
		}
		const uint8_t *page = skv_page_k(sh, e, h);
		resident |= 1u << i;
		BY_DTYPE(sh->dtype, widen_page, sh, page, k_at, v_at);
	}
	return resident;
}

/* Applies the layer's softcap to the scores of a strip of rows. Must be called before the scores are masked. */
static inline void cap_strip(const struct skv_shape *sh, float *s)
{
	if (sh->softcap > 0)
		cap_scores(s, STRIP * BLOCK, softcap_of(sh));
}

/*
 * Sets scores of a strip to -infinity where row i must not attend: to tokens from visible[i] on, and to tokens in pages
 * that are not resident. Rows of the strip that are only padding are masked, too, because the memory after the block's
 * last token is uninitialized.
 */
static inline void mask_strip(float *s, const uint32_t *visible, uint32_t resident)
{
	for (uint32_t i = 0; i < STRIP; i++)
		for (uint32_t t = 0; t < BLOCK; t++)
			if (t >= visible[i] || !(resident >> t / SKV_PAGE_TOKENS & 1))
				s[i * BLOCK + t] = -INFINITY;
}

/* Adds the scores of a block to the running maxima and sums of a strip's rows (online softmax). */
static inline void add_strip(const float *score, float *max_at, float *sum_at)
{
	vf x[VL], old = v_loadf(max_at), no_token = v_set(-INFINITY);
	for (uint32_t i = 0; i < STRIP; i++) {
		x[i] = v_loadf(score + i * BLOCK);
		for (uint32_t t = VL; t < BLOCK; t += VL)
			x[i] = v_max(v_loadf(score + i * BLOCK + t), x[i]);
	}
	vf max = v_max(v_fold_rows(V_MAX, x), old), base = v_select(max == no_token, (vf){0}, max);
	for (uint32_t i = 0; i < STRIP; i++) {
		x[i] = (vf){0};
		for (uint32_t t = 0; t < BLOCK; t += VL)
			x[i] += v_exp2(v_loadf(score + i * BLOCK + t) - base[i]);
	}
	v_storef(sum_at, v_fma(v_loadf(sum_at), v_exp2(old - base), v_fold_rows(V_SUM, x)));
	v_storef(max_at, max);
}
#endif
