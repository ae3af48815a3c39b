/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/backend.h - a compute backend: memory and arithmetic behind one table of functions.
 *
 * The host is one backend, a CUDA device another. The engine calls both in the same way; they differ in which side
 * may read which memory, and when. On the host every function has done its work when it returns. On a device the work
 * is queued on the backend's stream; only put(), fetched() and the functions that free memory, recordings or the
 * backend wait.
 *
 * Rows. Residual streams, products and logits are fp32. Matrices, and the rows that they are multiplied by, have the
 * model's `dtype`, SKV_F32 or SKV_BF16 (the host supports fp32 only), and so have the inputs and outputs of
 * attention. Products accumulate in fp32; products of fp32 matrices use no shorter format. Every function computes
 * each row independently and in the same way.
 *
 * Errors. Functions that return int return 0 or a negative errno, and error() then returns a text. Arithmetic
 * functions return nothing: the next check() reports the first failure.
 *
 * Threads. A backend belongs to the thread that opened it.
 */
#ifndef ENG_BACKEND_H
#define ENG_BACKEND_H

#include <sparsekv/types.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ENG_BACKEND_ABI 3u

struct eng_error;
struct eng_backend;

/* How a row of q, k and v divides into heads, and the RMS norms of each head (Qwen3), if the model has them. */
struct eng_heads {
	uint32_t n_heads, n_kv_heads, head_dim;
	const float *q_norm, *k_norm; /* [head_dim], in the backend's memory; NULL: no norm */
	float eps;
};

struct eng_backend_ops {
	uint32_t size; /* of this struct; `size` and `abi` stay the first fields in all versions */
	uint32_t abi;

	const char *(*error)(void);
	/* Opens device i with a stream of its own. -ENODEV: no such device, or no driver. */
	int (*open)(uint32_t i, struct eng_backend **ret);
	/* Waits for the queued work, then frees the backend. */
	void (*close)(struct eng_backend *);

	/* ---- memory ---- */

	/* Memory of the backend, and host memory for fetch(). Memory is 64-byte aligned. NULL may be freed. */
	int (*alloc)(struct eng_backend *, size_t bytes, void **ret);
	void (*free)(struct eng_backend *, void *);
	int (*alloc_host)(struct eng_backend *, size_t bytes, void **ret);
	void (*free_host)(struct eng_backend *, void *);

	/* Copies from the host. The caller may reuse `src` when it returns. Waits if too many copies are in flight. */
	int (*put)(struct eng_backend *, void *dst, const void *src, size_t bytes);
	/* Queues a copy to memory of alloc_host(). The data is there after fetched(). */
	int (*fetch)(struct eng_backend *, void *dst, const void *src, size_t bytes);
	/* Waits for the last fetch() and the work queued before it, not for work queued later. */
	int (*fetched)(struct eng_backend *);
	/*
	 * Queues a copy of n rows of `bytes` within the backend's memory. Rows are `dst_apart` and `src_apart` bytes
	 * apart.
	 */
	void (*copy_rows)(struct eng_backend *, void *dst, size_t dst_apart, const void *src, size_t src_apart, size_t bytes, uint32_t n);
	/* Returns the first failure since the last check(). */
	int (*check)(struct eng_backend *);

	/* ---- arithmetic ---- */

	/* Element i of `to` is eng_random_weight(seed, i) · scale. */
	void (*fill)(struct eng_backend *, void *to, size_t n, uint32_t dtype, float scale, uint32_t seed);

	/* x [rows][n] fp32 = the rows `id` of embedding [][n]. */
	void (*embed)(struct eng_backend *, float *x, const void *embedding, uint32_t dtype, const int32_t *id,
	              uint32_t rows, uint32_t n);

	/*
	 * x += y, then out = x / rms(x) · weight, over rows of n. Row i of `out` comes from row from[i] of x and y;
	 * each row is named at most once. from NULL: row i. y may be NULL. `out` must not alias x or y.
	 */
	void (*add_norm)(struct eng_backend *, void *out, uint32_t dtype, float *x, const float *y,
	                 const float *weight, float eps, const uint32_t *from, uint32_t rows, uint32_t n);

	/* y [rows][n_out] fp32 = x [rows][n_in] · w [n_out][n_in] transposed + bias [n_out], fp32; bias NULL: none. */
	void (*matmul)(struct eng_backend *, float *y, const void *x, const void *w, const float *bias,
	               uint32_t dtype, uint32_t rows, uint32_t n_in, uint32_t n_out);

	/*
	 * Splits rows [q heads | k heads | v heads]. If there are norms, divides each head of q and k by its rms and
	 * multiplies it by the norm's weights. Then applies the rotary embedding of the row's position: the two
	 * halves of a head are the coordinates of head_dim/2 pairs. `table` is from eng_rope_table().
	 */
	void (*rope_split)(struct eng_backend *, void *q, void *k, void *v, uint32_t dtype, const float *qkv,
	                   const struct eng_heads *heads, const float *table, const uint32_t *position,
	                   uint32_t rows);

	/* y [rows][n] = silu(gate) · up, for rows [gate n | up n]. */
	void (*swiglu)(struct eng_backend *, void *y, uint32_t dtype, const float *gate_up, uint32_t rows,
	               uint32_t n);

	/* Prepares the next step's rows: id[i] = argmax of row i of logits (the first of equals); ++position[i]. */
	void (*choose)(struct eng_backend *, int32_t *id, uint32_t *position, const float *logits,
	               uint32_t rows, uint32_t vocab);

	/* ---- recordings; NULL if the backend has none ---- */

	/* Work queued between record() and recorded() is recorded, not run. launch() runs it on the same memory. */
	int (*record)(struct eng_backend *);
	int (*recorded)(struct eng_backend *, void **ret_recording);
	int (*launch)(struct eng_backend *, void *recording);
	void (*forget)(struct eng_backend *, void *recording);
};

struct eng_backend {
	const struct eng_backend_ops *ops;
	uint32_t device; /* SKV_DEVICE_HOST or SKV_DEVICE_CUDA(i) */
	void *stream;    /* for skv_step_begin(); NULL on the host */
};

/* The host's backend. It always exists and is never closed. */
struct eng_backend *eng_backend_host(void);

/*
 * Opens SKV_DEVICE_HOST, or SKV_DEVICE_CUDA(i), which loads the CUDA module: the installed one, or the file named by
 * $SPARSEKV_ENGINE_CUDA_MODULE (ignored in setuid programs). Returns a negative errno with a text. CUDA does not
 * survive fork(): a process must fork its children before it opens a device.
 */
int eng_backend_open(struct eng_backend **ret, uint32_t device, struct eng_error *err);

/* NULL is ignored. */
void eng_backend_close(struct eng_backend *);

/* "host" or "cuda:N". -EINVAL with a text that begins with "--device TEXT: ". */
int eng_backend_parse(const char *text, uint32_t *ret_device, struct eng_error *err);

/* The only symbol that a module exports. */
#define ENG_CUDA_SYMBOL "eng_cuda_ops"
typedef const struct eng_backend_ops *eng_backend_ops_fn(void);

/*
 * A number from -255/256 to 255/256, never 0, exact in bf16. It is the same on every backend, so models of random
 * weights are, too.
 */
SKV_INLINE float eng_random_weight(uint32_t seed, uint64_t i)
{
	uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u + seed * 0xd1b54a32d192ed03u;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return (float)(2 * (int)(x >> 56) - 255) / 256;
}

#ifdef __cplusplus
}
#endif
#endif
