/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/backend.h - where a model is computed: memory and arithmetic behind one table of functions.
 *
 * The host is one backend, a CUDA device another. The engine does the same on both; what differs is which side reads
 * which memory, and when. On the host every function has done its work when it returns. On a device
 * the work is queued on the backend's stream, and only put() and fetched() wait.
 *
 * Rows. Residual streams, products and logits are fp32. Matrices, and the rows that they are multiplied by,
 * are of the model's `dtype`, SKV_F32 or SKV_BF16 (fp32 alone on the host), and so are the rows that
 * attention takes and gives. Products add up in fp32; fp32 times fp32 is that, and no shorter format. Every
 * function treats its rows alike and independently.
 *
 * Errors. Functions that return int return 0 or a negative errno, and error() then says what was wrong. What
 * computes returns nothing: the first thing that failed shows at the next check().
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

/* How a row of q, k and v falls into heads, and the RMS norms of each head (Qwen3's), where a model has them. */
struct eng_heads {
	uint32_t n_heads, n_kv_heads, head_dim;
	const float *q_norm, *k_norm; /* [head_dim], memory of the backend; NULL: no norm */
	float eps;
};

struct eng_backend_ops {
	uint32_t size; /* of this struct; then the version: both first, whatever becomes of the rest */
	uint32_t abi;

	const char *(*error)(void);
	/* Device i, with a stream of its own. -ENODEV: there is no such device, or no driver. */
	int (*open)(uint32_t i, struct eng_backend **ret);
	/* Waits for what is queued. */
	void (*close)(struct eng_backend *);

	/* ---- memory ---- */

	/* Memory for all of this, 64-byte aligned; and of the host's for fetch(). NULL may be freed. */
	int (*alloc)(struct eng_backend *, size_t bytes, void **ret);
	void (*free)(struct eng_backend *, void *);
	int (*alloc_host)(struct eng_backend *, size_t bytes, void **ret);
	void (*free_host)(struct eng_backend *, void *);

	/* Copy from the host. `src` is the caller's again then. It waits when much is on its way. */
	int (*put)(struct eng_backend *, void *dst, const void *src, size_t bytes);
	/* Copy to what alloc_host() gave; it is there after fetched(). */
	int (*fetch)(struct eng_backend *, void *dst, const void *src, size_t bytes);
	/* Waits for the last fetch() and what was queued before it, not for what came after. */
	int (*fetched)(struct eng_backend *);
	/* Rows of `bytes`, so far apart, from one memory of the backend to another. Queued. */
	void (*copy_rows)(struct eng_backend *, void *dst, size_t dst_apart, const void *src, size_t src_apart, size_t bytes, uint32_t n);
	/* What failed since the last check(). */
	int (*check)(struct eng_backend *);

	/* ---- arithmetic ---- */

	/* Element i of `to` is eng_random_weight(seed, i) · scale. */
	void (*fill)(struct eng_backend *, void *to, size_t n, uint32_t dtype, float scale, uint32_t seed);

	/* x [rows][n] fp32 = the rows `id` of embedding [][n]. */
	void (*embed)(struct eng_backend *, float *x, const void *embedding, uint32_t dtype, const int32_t *id,
	              uint32_t rows, uint32_t n);

	/*
	 * x += y, then out = x / rms(x) · weight, over rows of n. Row i of `out` comes from row from[i] of x
	 * and y, each of which is named at most once; NULL: row i. y may be NULL; `out` is neither x nor y.
	 */
	void (*add_norm)(struct eng_backend *, void *out, uint32_t dtype, float *x, const float *y,
	                 const float *weight, float eps, const uint32_t *from, uint32_t rows, uint32_t n);

	/* y [rows][n_out] fp32 = x [rows][n_in] · w [n_out][n_in] transposed + bias [n_out], fp32; NULL: none. */
	void (*matmul)(struct eng_backend *, float *y, const void *x, const void *w, const float *bias,
	               uint32_t dtype, uint32_t rows, uint32_t n_in, uint32_t n_out);

	/*
	 * Take rows [q heads | k heads | v heads] apart. Each head of q and of k is divided by its rms and
	 * multiplied by its norm's weights, where there are any, and then turned by its position: the halves of
	 * a head are the two coordinates of head_dim/2 pairs. `table` is eng_rope_table()'s.
	 */
	void (*rope_split)(struct eng_backend *, void *q, void *k, void *v, uint32_t dtype, const float *qkv,
	                   const struct eng_heads *heads, const float *table, const uint32_t *position,
	                   uint32_t rows);

	/* y [rows][n] = silu(gate) · up, of rows [gate n | up n]. */
	void (*swiglu)(struct eng_backend *, void *y, uint32_t dtype, const float *gate_up, uint32_t rows,
	               uint32_t n);

	/* The next step's rows: id[i] = where row i of logits is largest (first of equals); ++position[i]. */
	void (*choose)(struct eng_backend *, int32_t *id, uint32_t *position, const float *logits,
	               uint32_t rows, uint32_t vocab);

	/* ---- recordings; NULL where there are none ---- */

	/* What is queued between the two is recorded and not run. A launch runs it, on the same memory. */
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

/* The host; there is always one, and it is never closed. */
struct eng_backend *eng_backend_host(void);

/*
 * Open a backend: SKV_DEVICE_HOST, or SKV_DEVICE_CUDA(i), which loads the module for CUDA: the installed one,
 * or the file that $SPARSEKV_ENGINE_CUDA_MODULE names (not for programs that run with more rights than their
 * caller has). Negative errno with a text. CUDA does not survive fork(): what a process forks it must have
 * forked before.
 */
int eng_backend_open(struct eng_backend **ret, uint32_t device, struct eng_error *err);

/* NULL is ignored. */
void eng_backend_close(struct eng_backend *);

/* "host" or "cuda:N". -EINVAL with a text that begins with "--device TEXT: ". */
int eng_backend_parse(const char *text, uint32_t *ret_device, struct eng_error *err);

/* The one symbol of a module. */
#define ENG_CUDA_SYMBOL "eng_cuda_ops"
typedef const struct eng_backend_ops *eng_backend_ops_fn(void);

/* From -255/256 to 255/256, never 0; exact in bf16. The same everywhere, so that a model of them is too. */
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
