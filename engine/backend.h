/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/backend.h - the interface of a compute backend: a table of functions for its memory and its arithmetic.
 *
 * The host is one backend, and each CUDA device is another. The engine calls all backends in the same way. Backends
 * differ in which side (host or device) may read which memory, and when. A function of the host backend has done its
 * work when it returns. A function of a device backend queues its work on the backend's stream. The only functions of a
 * device backend that wait for queued work are put(), fetched(), and those that free memory, recordings or the backend.
 *
 * Rows and dtypes. Residual streams, products and logits are fp32. Matrices, the rows that they are multiplied by, and
 * the inputs and outputs of attention have the model's `dtype`, which is SKV_F32 or SKV_BF16 (the host supports only
 * SKV_F32). Matrix products accumulate in fp32, and products of fp32 matrices use no format with fewer bits, such as
 * TF32. A row's result does not depend on the other rows of the call.
 *
 * Errors. Functions that return int return 0 or a negative errno; after a failure error() returns a text that describes
 * it. Arithmetic functions return nothing: the next call of check() returns the first of their failures.
 *
 * Threads. Only the thread that opened a backend may use it.
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

/*
 * How a row of q, k and v divides into heads, and the weights of the RMS norms of q and k heads (Qwen3), if the model
 * has them.
 */
struct eng_heads {
	uint32_t n_heads, n_kv_heads, head_dim;
	const float *q_norm, *k_norm; /* [head_dim], in the backend's memory; NULL: no norm */
	float eps;
};

struct eng_backend_ops {
	uint32_t size; /* bytes of this struct; `size` and `abi` stay the first fields in all versions */
	uint32_t abi;

	const char *(*error)(void);
	/* Opens device i and creates a stream for it. Returns -ENODEV if there is no such device or no driver. */
	int (*open)(uint32_t i, struct eng_backend **ret);
	/* Waits for the queued work, then frees the backend. */
	void (*close)(struct eng_backend *);

	/* ---- memory ---- */

	/*
	 * alloc() allocates memory of the backend, alloc_host() host memory that fetch() may write to. Memory from both
	 * functions is aligned to 64 bytes. Freeing NULL does nothing.
	 */
	int (*alloc)(struct eng_backend *, size_t bytes, void **ret);
	void (*free)(struct eng_backend *, void *);
	int (*alloc_host)(struct eng_backend *, size_t bytes, void **ret);
	void (*free_host)(struct eng_backend *, void *);

	/*
	 * Copies `bytes` from host memory to the backend. The caller may change `src` once put() has returned. put()
	 * waits if too many copies are in flight.
	 */
	int (*put)(struct eng_backend *, void *dst, const void *src, size_t bytes);
	/* Queues a copy to host memory from alloc_host(). The data is there once fetched() has returned. */
	int (*fetch)(struct eng_backend *, void *dst, const void *src, size_t bytes);
	/* Waits for the last fetch() and for the work queued before that fetch(), but not for work queued later. */
	int (*fetched)(struct eng_backend *);
	/*
	 * Queues a copy of n rows of `bytes` within the backend's memory. `dst_apart` and `src_apart` are the row
	 * strides in bytes.
	 */
	void (*copy_rows)(struct eng_backend *, void *dst, size_t dst_apart, const void *src, size_t src_apart, size_t bytes, uint32_t n);
	/* Returns the first failure since the last check(), as a negative errno; 0 if nothing failed. */
	int (*check)(struct eng_backend *);

	/* ---- arithmetic ---- */

	/* Sets element i of `to` to eng_random_weight(seed, i) · scale. */
	void (*fill)(struct eng_backend *, void *to, size_t n, uint32_t dtype, float scale, uint32_t seed);

	/* Row i of x [rows][n] (fp32) becomes row id[i] of the matrix embedding [vocab][n]. */
	void (*embed)(struct eng_backend *, float *x, const void *embedding, uint32_t dtype, const int32_t *id,
	              uint32_t rows, uint32_t n);

	/*
	 * x += y, then out = x / rms(x) · weight, over rows of n. Row i of `out` is computed from row from[i] of x and
	 * y; `from` must not contain a row twice. If `from` is NULL, row i of `out` is computed from row i. If y is
	 * NULL, nothing is added to x. `out` must not alias x or y.
	 */
	void (*add_norm)(struct eng_backend *, void *out, uint32_t dtype, float *x, const float *y,
	                 const float *weight, float eps, const uint32_t *from, uint32_t rows, uint32_t n);

	/* y [rows][n_out] (fp32) = x [rows][n_in] · transposed w [n_out][n_in] + bias [n_out] (fp32). NULL: no bias. */
	void (*matmul)(struct eng_backend *, float *y, const void *x, const void *w, const float *bias,
	               uint32_t dtype, uint32_t rows, uint32_t n_in, uint32_t n_out);

	/*
	 * Splits each row [q heads | k heads | v heads] of `qkv` into q, k and v. If the model has RMS norms of heads,
	 * divides each head of q and k by its root mean square and multiplies it by the norm's weights. Then applies
	 * the rotary embedding of the row's position to q and k: element i of a head's first half and element i of its
	 * second half are rotated as a pair. `table` is from eng_rope_table().
	 */
	void (*rope_split)(struct eng_backend *, void *q, void *k, void *v, uint32_t dtype, const float *qkv,
	                   const struct eng_heads *heads, const float *table, const uint32_t *position,
	                   uint32_t rows);

	/*
	 * y [rows][n] = silu(gate) · up, elementwise; a row of `gate_up` consists of n elements of gate, then n
	 * elements of up.
	 */
	void (*swiglu)(struct eng_backend *, void *y, uint32_t dtype, const float *gate_up, uint32_t rows,
	               uint32_t n);

	/*
	 * Prepares the rows of the next step: id[i] becomes the index of the largest logit of row i (the lowest of
	 * equal ones), and position[i] is incremented.
	 */
	void (*choose)(struct eng_backend *, int32_t *id, uint32_t *position, const float *logits,
	               uint32_t rows, uint32_t vocab);

	/* ---- recordings; the functions are NULL if the backend has none ---- */

	/*
	 * Work queued between record() and recorded() is recorded and not run. launch() queues a recording, which runs
	 * on the memory that it was recorded with.
	 */
	int (*record)(struct eng_backend *);
	int (*recorded)(struct eng_backend *, void **ret_recording);
	int (*launch)(struct eng_backend *, void *recording);
	void (*forget)(struct eng_backend *, void *recording);
};

struct eng_backend {
	const struct eng_backend_ops *ops;
	uint32_t device; /* SKV_DEVICE_HOST or SKV_DEVICE_CUDA(i) */
	void *stream;    /* stream for skv_step_begin(); NULL on the host */
};

/* Returns the host's backend, which always exists and is never closed. */
struct eng_backend *eng_backend_host(void);

/*
 * Opens the backend of `device`, which is SKV_DEVICE_HOST or SKV_DEVICE_CUDA(i). For a CUDA device it loads the
 * engine's CUDA module: the installed one, or the file named by $SPARSEKV_ENGINE_CUDA_MODULE (ignored in setuid
 * programs). Returns 0, or a negative errno with a text. CUDA does not survive fork(): a process must fork its children
 * before it opens a device.
 */
int eng_backend_open(struct eng_backend **ret, uint32_t device, struct eng_error *err);

/* Closes a backend; does nothing if it is NULL. */
void eng_backend_close(struct eng_backend *);

/* Parses "host" or "cuda:N". Returns -EINVAL with a text that begins with "--device TEXT: " if the text is neither. */
int eng_backend_parse(const char *text, uint32_t *ret_device, struct eng_error *err);

/* The only symbol that a backend's module (a shared object) exports: a function that returns its table. */
#define ENG_CUDA_SYMBOL "eng_cuda_ops"
typedef const struct eng_backend_ops *eng_backend_ops_fn(void);

/*
 * Returns pseudo-random number i: a value from -255/256 to 255/256, never 0, exact in bf16. The numbers, and so models
 * with random weights, are the same on every backend.
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
