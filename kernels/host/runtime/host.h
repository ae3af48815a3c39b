/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/runtime/host.h - declarations shared by the files of the host backend.
 *
 * dispatch.c and parallel.c are compiled once, for the baseline processor. All other files are compiled once for each
 * instruction set (ISA), with SKV_ISA set to the ISA's name. Every external name in these files is made with ISA(), so
 * that the copies do not clash; only dispatch.c refers to the copies of all ISAs.
 *
 * A kernel is a loop over independent work items, run by skv_run(). If items belong to sequences, first[i] is the
 * number of items before those of sequence i, and skv_range_of() finds the sequence of an item.
 */
#ifndef SKV_HOST_H
#define SKV_HOST_H

#include <assert.h>
#include <string.h>
#include "kernels/batch.h"
#include "kernels/kernels.h"

#define SKV_PASTE3(a, b) skv_##a##_##b
#define SKV_PASTE2(a, b) SKV_PASTE3(a, b)
#define ISA(name) SKV_PASTE2(name, SKV_ISA)

/* factor that converts scores to units of log2, so that exponentials are v_exp2() */
#define LOG2E 1.44269504088896340736f
#define LN2 0.693147180559945309417f

/*
 * skv_run() calls fn(ctx, i, thread) for all items i in [0, n), on several threads, with thread < threads. Items must
 * not depend on each other.
 */
typedef void skv_item_fn(void *ctx, uint32_t i, int thread);
void skv_run(int threads, uint32_t n, skv_item_fn *fn, void *ctx);

/* Returns the index i with first[i] <= item < first[i + 1], by bisection; first[0 … n] ascends from 0. */
static inline uint32_t skv_range_of(const uint32_t *first, uint32_t n, uint32_t item)
{
	uint32_t lo = 0, hi = n;
	while (hi - lo > 1) {
		uint32_t mid = lo + (hi - lo) / 2;
		if (first[mid] <= item)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

static inline uint32_t skv_min(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}
static inline uint32_t skv_max(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/* ---- workspace ------------------------------------------------------------------------------- */

/* An allocator that takes pieces of a call's workspace one after the other, each aligned to 64 bytes. */
struct carve {
	uint8_t *at, *end;
};
static inline struct carve carve_begin(const struct skv_workspace *w)
{
	return (struct carve){w->mem, (uint8_t *)w->mem + w->bytes};
}
static inline size_t carve_size(size_t bytes)
{
	return (bytes + 63) & ~(size_t)63;
}
static inline void *carve(struct carve *c, size_t bytes)
{
	void *p = c->at;
	c->at += carve_size(bytes);
	assert(c->at <= c->end);
	return p;
}

/*
 * Takes n arrays of floats from the workspace, array i with sizes[i] elements, and stores their addresses to *at[i]; if
 * c is NULL, takes nothing. Returns the bytes of all arrays.
 */
static inline size_t carve_floats(struct carve *c, uint32_t n, const size_t *sizes, float **const *at)
{
	size_t total = 0;
	for (uint32_t i = 0; i < n; i++) {
		total += carve_size(sizes[i] * sizeof(float));
		if (c)
			*at[i] = carve(c, sizes[i] * sizeof(float));
	}
	return total;
}

/* The part of a call's workspace that is divided among threads: `stride` bytes for each thread. */
struct per_thread {
	uint8_t *mem;
	size_t stride;
};
static inline struct per_thread per_thread(struct carve *c, int threads, size_t stride)
{
	return (struct per_thread){carve(c, (size_t)threads * stride), stride};
}
static inline struct per_thread per_thread_rest(const struct carve *c, int threads)
{
	return (struct per_thread){c->at, (size_t)(c->end - c->at) / threads & ~(size_t)63};
}
static inline struct carve thread_begin(const struct per_thread *p, int thread)
{
	uint8_t *mem = p->mem + thread * p->stride;

	return (struct carve){mem, mem + p->stride};
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Bytes of one K or V row of one kv head. */
static inline size_t skv_row_bytes(const struct skv_shape *sh)
{
	return sh->head_dim * skv_dtype_bytes(sh->dtype);
}
/* Returns the first K row of kv head h in a page; the V row of the same token is skv_v_offset() bytes after it. */
static inline uint8_t *skv_page_k(const struct skv_shape *sh, skv_pte e, uint32_t h)
{
	return sh->pool + skv_pte_id(e) * sh->page_bytes + h * SKV_PAGE_TOKENS * skv_row_bytes(sh);
}
static inline size_t skv_v_offset(const struct skv_shape *sh)
{
	return sh->n_kv_heads * SKV_PAGE_TOKENS * skv_row_bytes(sh);
}
/* Returns the K row of kv head h for a slot or token, in the page with entry e that holds the slot or token. */
static inline uint8_t *skv_key_row(const struct skv_shape *sh, skv_pte e, uint32_t h, uint32_t slot)
{
	return skv_page_k(sh, e, h) + slot % SKV_PAGE_TOKENS * skv_row_bytes(sh);
}
/* Returns the address of the scale of an fp8 row, in a page of K and V rows or of page bounds. */
static inline uint8_t *skv_row_scale(const struct skv_shape *sh, const uint8_t *row)
{
	const size_t at = (size_t)(row - sh->pool) % sh->page_bytes, rows = (size_t)2 * sh->n_kv_heads * SKV_PAGE_TOKENS;
	return (uint8_t *)row - at + rows * sh->head_dim + at / sh->head_dim;
}
/*
 * Returns the factor that turns what v_load() reads of a row into the values of its elements: with fp8 the row's scale,
 * else 1.
 */
static inline float skv_row_unit(const struct skv_shape *sh, const uint8_t *row)
{
	if (sh->dtype != SKV_FP8)
		return 1;
	const uint32_t bits = (uint32_t)*skv_row_scale(sh, row) << 23;
	float scale;
	memcpy(&scale, &bits, sizeof scale);
	return scale;
}
/*
 * Returns the row of minima of page `page` for kv head h, in its state page. The row of maxima is skv_v_offset() bytes
 * after it.
 */
static inline uint8_t *skv_bounds_row(const struct skv_shape *sh, skv_pte state, uint32_t h, uint32_t page)
{
	return skv_key_row(sh, state, h, page);
}

/* ---- ISAs ------------------------------------------------------------------------------------ */

/* The functions skv_kernels.unsupported and skv_kernels.unsupported_codec of every ISA. */
const char *skv_host_unsupported(const struct skv_shape *);
const char *skv_host_unsupported_codes(const struct skv_shape *);

/*
 * Top-k: writes the indices of the k largest of score[0, n), ascending, to ret_ids, which has room for min(k, n).
 * Returns the number of indices. Of equal scores, the one with the lower index is chosen. Scores of -INFINITY (entries
 * that must not be chosen) and NaNs are never chosen, so the result may have fewer than k indices. `workspace` has n
 * elements.
 */
typedef uint32_t skv_topk_fn(const float *score, uint32_t n, uint32_t k, uint32_t *ret_ids,
                             uint32_t *workspace);

#define SKV_HOST_ISA(isa)                                                                                    \
	extern const struct skv_kernels skv_kernels_##isa;                                                   \
	skv_topk_fn skv_topk_##isa
SKV_HOST_ISA(avx512);
SKV_HOST_ISA(avx2);
SKV_HOST_ISA(generic);

#endif
