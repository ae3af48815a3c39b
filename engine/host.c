/* SPDX-License-Identifier: Apache-2.0 */
/* engine/host.c - the host backend, for fp32 only. Matrix products use OpenBLAS, everything else OpenMP. */
#include "engine/backend.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "engine/ops.h"

/* Arrays with fewer floats are processed by one thread, because this takes less time than waking up other threads. */
#define PARALLEL_FLOATS 32768u

/*
 * Up to this number of rows, one matrix-vector product for each row is faster than sgemm, which first copies the whole
 * matrix to another layout.
 */
#define MATVEC_ROWS 3u

#define UNUSED __attribute__((unused))

/* ---- memory ---------------------------------------------------------------------------------- */

static const char *error(void)
{
	return "no memory";
}

static int alloc(struct eng_backend *backend UNUSED, size_t bytes, void **ret)
{
	void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);

	if (!p)
		return -ENOMEM;
	*ret = p;
	return 0;
}

static void free_(struct eng_backend *backend UNUSED, void *p)
{
	free(p);
}

static int copy(struct eng_backend *backend UNUSED, void *dst, const void *src, size_t bytes)
{
	memcpy(dst, src, bytes);
	return 0;
}

static void copy_rows(struct eng_backend *backend UNUSED, void *dst, size_t dst_apart, const void *src, size_t src_apart, size_t bytes,
                      uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		memcpy((uint8_t *)dst + i * dst_apart, (const uint8_t *)src + i * src_apart, bytes);
}

static int done(struct eng_backend *backend UNUSED)
{
	return 0;
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

static void fill(struct eng_backend *backend UNUSED, void *to, size_t n, uint32_t dtype UNUSED, float scale,
                 uint32_t seed)
{
	float *x = to;

#pragma omp parallel for schedule(static) if (n > PARALLEL_FLOATS)
	for (size_t i = 0; i < n; i++)
		x[i] = eng_random_weight(seed, i) * scale;
}

static void embed(struct eng_backend *backend UNUSED, float *x, const void *embedding, uint32_t dtype UNUSED,
                  const int32_t *id, uint32_t rows, uint32_t n)
{
	for (uint32_t r = 0; r < rows; r++)
		memcpy(x + (size_t)r * n, (const float *)embedding + (size_t)id[r] * n, n * sizeof(*x));
}

/* to = x / rms(x) · weight, over n elements. */
static void norm(float *to, const float *x, const float *weight, float eps, uint32_t n)
{
	float sum = 0, scale;

#pragma omp simd reduction(+ : sum)
	for (uint32_t i = 0; i < n; i++)
		sum += x[i] * x[i];
	scale = 1 / sqrtf(sum / (float)n + eps);
#pragma omp simd
	for (uint32_t i = 0; i < n; i++)
		to[i] = x[i] * scale * weight[i];
}

static void add_norm(struct eng_backend *backend UNUSED, void *out, uint32_t dtype UNUSED, float *x,
                     const float *y, const float *weight, float eps, const uint32_t *from, uint32_t rows,
                     uint32_t n)
{
#pragma omp parallel for schedule(static) if ((uint64_t)rows * n > PARALLEL_FLOATS)
	for (uint32_t r = 0; r < rows; r++) {
		size_t at = (size_t)(from ? from[r] : r) * n;
		float *row = x + at;

		if (y) {
			const float *add = y + at;

#pragma omp simd
			for (uint32_t i = 0; i < n; i++)
				row[i] += add[i];
		}
		norm((float *)out + (size_t)r * n, row, weight, eps, n);
	}
}

/* If there is a bias, copies it to y first, and BLAS adds the product to it. */
static void matmul(struct eng_backend *backend UNUSED, float *y, const void *x, const void *w, const float *bias,
                   uint32_t dtype UNUSED, uint32_t rows, uint32_t n_in, uint32_t n_out)
{
	const float keep = bias ? 1 : 0;

	for (uint32_t r = 0; bias && r < rows; r++)
		memcpy(y + (size_t)r * n_out, bias, n_out * sizeof(*y));
	if (rows > MATVEC_ROWS) {
		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)n_out, (int)n_in, 1, x,
		            (int)n_in, w, (int)n_in, keep, y, (int)n_out);
		return;
	}
	for (uint32_t r = 0; r < rows; r++)
		cblas_sgemv(CblasRowMajor, CblasNoTrans, (int)n_out, (int)n_in, 1, w, (int)n_in,
		            (const float *)x + (size_t)r * n_in, 1, keep, y + (size_t)r * n_out, 1);
}

/*
 * Applies the RMS norm to one head, unless `weight` is NULL, then rotates the head: each pair (a, b) of an element of
 * its first half and one of its second half becomes (a cos − b sin, b cos + a sin).
 */
static void turn(float *to, const float *from, const float *weight, float eps, const float *angles, uint32_t half)
{
	float normed[SKV_MAX_HEAD_DIM];

	if (weight) {
		norm(normed, from, weight, eps, 2 * half);
		from = normed;
	}
#pragma omp simd
	for (uint32_t i = 0; i < half; i++) {
		float a = from[i], b = from[half + i], c = angles[i], s = angles[half + i];

		to[i] = a * c - b * s;
		to[half + i] = b * c + a * s;
	}
}

static void rope_split(struct eng_backend *backend UNUSED, void *q, void *k, void *v, uint32_t dtype UNUSED,
                       const float *qkv, const struct eng_heads *heads, const float *table,
                       const uint32_t *position, uint32_t rows)
{
	uint32_t d = heads->head_dim, nq = heads->n_heads * d, nkv = heads->n_kv_heads * d;

#pragma omp parallel for schedule(static) if ((uint64_t)rows * nq > PARALLEL_FLOATS)
	for (uint32_t r = 0; r < rows; r++) {
		const float *from = qkv + (size_t)r * (nq + 2 * nkv);
		const float *angles = table + (size_t)position[r] * d;

		for (uint32_t at = 0; at < nq; at += d)
			turn((float *)q + (size_t)r * nq + at, from + at, heads->q_norm, heads->eps, angles,
			     d / 2);
		for (uint32_t at = 0; at < nkv; at += d)
			turn((float *)k + (size_t)r * nkv + at, from + nq + at, heads->k_norm, heads->eps,
			     angles, d / 2);
		memcpy((float *)v + (size_t)r * nkv, from + nq + nkv, nkv * sizeof(float));
	}
}

/*
 * Returns e^x for x in [-87, 0], with an error of at most 2 ulp. The function has no branch and no call, so that
 * compilers vectorise loops that use it. e^x is computed as 2^n · e^r with n = round(x / ln 2) and |r| <= ln 2 / 2,
 * where e^r is a polynomial.
 */
static inline float exp_nonpositive(float x)
{
	/* adding `round` to a number leaves the nearest integer in the low bits of the sum */
	const float round = 0x1.8p23f;
	float shifted = x * 0x1.715476p0f + round, n = shifted - round;
	float r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
	float p = 1.38888889e-3f;
	union {
		float f;
		uint32_t u;
	} two_n = {.f = shifted};

	p = p * r + 8.33333333e-3f;
	p = p * r + 4.16666667e-2f;
	p = p * r + 1.66666667e-1f;
	p = p * r + 0.5f;
	p = p * r * r + r + 1;
	two_n.u = (two_n.u + 127u) << 23;
	return p * two_n.f;
}

static void swiglu(struct eng_backend *backend UNUSED, void *y, uint32_t dtype UNUSED, const float *gate_up,
                   uint32_t rows, uint32_t n)
{
#pragma omp parallel for schedule(static) if ((uint64_t)rows * n > PARALLEL_FLOATS / 4)
	for (uint32_t r = 0; r < rows; r++) {
		const float *gate = gate_up + (size_t)r * 2 * n, *up = gate + n;
		float *to = (float *)y + (size_t)r * n;

#pragma omp simd
		for (uint32_t i = 0; i < n; i++) {
			/*
			 * sigmoid(g) is 1/(1+e^-|g|) for positive g and e^-|g|/(1+e^-|g|) for negative g, so no
			 * exponential overflows. For g below -87, e^g underflows in fp32, and silu(g) is practically
			 * zero.
			 */
			float g = gate[i] < -87 ? -87 : gate[i], a = fabsf(g);
			float e = exp_nonpositive(-(a < 87 ? a : 87));

			to[i] = g * ((g < 0 ? e : 1) / (1 + e)) * up[i];
		}
	}
}

static void choose(struct eng_backend *backend UNUSED, int32_t *id, uint32_t *position, const float *logits,
                   uint32_t rows, uint32_t vocab)
{
	for (uint32_t r = 0; r < rows; r++) {
		id[r] = (int32_t)eng_argmax(logits + (size_t)r * vocab, vocab);
		position[r]++;
	}
}

/* ---- the backend ----------------------------------------------------------------------------- */

struct eng_backend *eng_backend_host(void)
{
	static const struct eng_backend_ops ops = {
		.size = sizeof(ops),
		.abi = ENG_BACKEND_ABI,
		.error = error,
		.alloc = alloc,
		.free = free_,
		.alloc_host = alloc,
		.free_host = free_,
		.put = copy,
		.fetch = copy,
		.fetched = done,
		.copy_rows = copy_rows,
		.check = done,
		.fill = fill,
		.embed = embed,
		.add_norm = add_norm,
		.matmul = matmul,
		.rope_split = rope_split,
		.swiglu = swiglu,
		.choose = choose,
	};
	static struct eng_backend host = {.ops = &ops, .device = SKV_DEVICE_HOST};

	return &host;
}
