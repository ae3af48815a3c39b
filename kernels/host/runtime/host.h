/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/runtime/host.h - what the parts of the host backend share.
 *
 * dispatch.c and run.c are compiled once, for the plain processor. All others are compiled once per ISA, each
 * time with SKV_ISA set to the ISA's name; every external name in them goes through ISA(), so the copies
 * meet only in dispatch.c.
 */
#ifndef SKV_HOST_H
#define SKV_HOST_H

#include <assert.h>
#include <string.h>
#include "kernels/compress.h"
#include "kernels/evict.h"
#include "kernels/kernels.h"
#include "kernels/prefill.h"
#include "kernels/select.h"

#define SKV_PASTE3(a, b) skv_##a##_##b
#define SKV_PASTE2(a, b) SKV_PASTE3(a, b)
#define ISA(name) SKV_PASTE2(name, SKV_ISA)

/* fn(ctx, i, thread) for all i in [0, n), thread < threads. The items must not depend on each other. */
typedef void skv_item_fn(void *ctx, uint32_t i, int thread);
void skv_run(int threads, uint32_t n, skv_item_fn *fn, void *ctx);

/* Pieces of a call's scratch, each 64-byte aligned. */
struct carve {
	uint8_t *at, *end;
};
static inline struct carve carve_begin(const struct skv_work *w)
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

static inline uint32_t skv_min(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}
static inline uint32_t skv_max(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/* The index i with first[i] <= item < first[i + 1]; first[0, n] ascends from 0. */
static inline uint32_t skv_owner(const uint32_t *first, uint32_t n, uint32_t item)
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

/* Bytes of one K or V row of one kv head. */
static inline size_t skv_row_bytes(const struct skv_shape *sh)
{
	return sh->head_dim * skv_dtype_bytes(sh->dtype);
}
/* The first K row of kv head h in a page; the V row is skv_v_offset further on. */
static inline uint8_t *skv_page_k(const struct skv_shape *sh, skv_pte e, uint32_t h)
{
	return sh->pool + skv_pte_id(e) * sh->page_bytes + h * SKV_PAGE_TOKENS * skv_row_bytes(sh);
}
static inline size_t skv_v_offset(const struct skv_shape *sh)
{
	return sh->n_kv_heads * SKV_PAGE_TOKENS * skv_row_bytes(sh);
}
/* The K row of a slot or token of kv head h, in its page. */
static inline uint8_t *skv_key_row(const struct skv_shape *sh, skv_pte e, uint32_t h, uint32_t slot)
{
	return skv_page_k(sh, e, h) + slot % SKV_PAGE_TOKENS * skv_row_bytes(sh);
}
/* The row of page `page` in its state page, of kv head h: the smallest values; the largest are where a V row is. */
static inline uint8_t *skv_bounds_row(const struct skv_shape *sh, skv_pte state, uint32_t h, uint32_t page)
{
	return skv_key_row(sh, state, h, page);
}

/* Scores as numbers in the same order; 0, below all others, for -infinity and NaN. -0 and 0 are the same. */
static inline uint32_t skv_order_of(float x)
{
	uint32_t u;
	x += 0.0f;
	memcpy(&u, &x, sizeof u);
	u = u & 0x80000000 ? ~u : u | 0x80000000;
	return x > -__builtin_inff() ? u : 0;
}

/* skv_kernels.unsupported and unsupported_codes of every ISA. */
const char *skv_host_unsupported(const struct skv_shape *);
const char *skv_host_unsupported_codes(const struct skv_shape *);

/*
 * The k largest of score[0, n), as ascending indices into ret_ids, which has room for min(k, n); returns
 * how many. Ties go to the lower index. -INFINITY marks what must not be chosen and never is, nor is a
 * NaN: then there may be fewer than k. `scratch` has n elements.
 */
typedef uint32_t skv_topk_fn(const float *score, uint32_t n, uint32_t k, uint32_t *ret_ids,
                             uint32_t *scratch);

#define SKV_HOST_ISA(isa)                                                                                    \
	extern const struct skv_kernels skv_kernels_##isa;                                                   \
	skv_topk_fn skv_topk_##isa
SKV_HOST_ISA(avx512);
SKV_HOST_ISA(avx2);
SKV_HOST_ISA(generic);

#ifdef SKV_ISA
void ISA(append)(const struct skv_shape *, const struct skv_batch *, const struct skv_slots *, const void *k,
                 const void *v, const struct skv_work *);
void ISA(copy_pages)(const struct skv_shape *, const uint32_t *dst, const uint32_t *src, uint32_t n,
                     const struct skv_work *);
void ISA(decode_dense)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                       const struct skv_evidence *, const struct skv_work *);
void ISA(decode_window)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                        const struct skv_window *, const struct skv_work *);
void ISA(decode_pages)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                       const struct skv_list *, const struct skv_work *);
void ISA(decode_tokens)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                        const struct skv_list *, const struct skv_work *);
void ISA(decode_chosen)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                        const struct skv_evidence *, const struct skv_select *, struct skv_list *,
                        const struct skv_work *);
void ISA(update_bounds)(const struct skv_shape *, const struct skv_batch *, const struct skv_slots *,
                        const struct skv_work *);
void ISA(score_pages)(const struct skv_shape *, const struct skv_batch *, const void *q, uint32_t pool,
                      const struct skv_evidence *, const struct skv_work *);
void ISA(prefill_dense)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                        const struct skv_work *);
void ISA(prefill_sparse)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                         const struct skv_sparse *, const struct skv_work *);
void ISA(keep_queries)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
                       const struct skv_work *);
void ISA(tile_best)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
                    struct skv_budget, uint32_t floor, const struct skv_tiles *, const struct skv_work *);
void ISA(tile_stages)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
                      const uint32_t keep[SKV_HIP_STAGES], const struct skv_tiles *, const struct skv_work *);
void ISA(tile_lines)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
                     uint32_t vertical, uint32_t slash, const struct skv_tiles *units, const struct skv_tiles *more,
                     const struct skv_work *);
/* The k-th largest of keys[0, n), which it may move about; *k becomes how many of its equals are of the k largest. */
uint32_t ISA(kth)(uint32_t *keys, uint32_t n, uint32_t *k);
/* Order ids[0, n), which ascend, by their scores: the largest first, of equals the lower. `scratch` has n elements. */
void ISA(sort_ids)(const float *score, uint32_t *ids, uint32_t n, uint32_t *scratch);
void ISA(select_union)(const struct skv_shape *, const struct skv_batch *, const struct skv_evidence *,
                       const struct skv_select *, struct skv_list *, const struct skv_work *);
void ISA(select)(const struct skv_shape *, const struct skv_batch *, const struct skv_evidence *, bool tokens,
                 const struct skv_select *, struct skv_list *, const struct skv_work *);
void ISA(recall)(const struct skv_shape *, const struct skv_batch *, const struct skv_evidence *,
                 const struct skv_seen *, float *ret, const struct skv_work *);

void ISA(place)(const struct skv_shape *, const struct skv_batch *, const struct skv_slots *, const struct skv_work *);
void ISA(lift)(const struct skv_shape *, const struct skv_batch *, const struct skv_work *);
void ISA(place_prompt)(const struct skv_shape *, const struct skv_batch *, const struct skv_slots *,
                       const struct skv_work *);
void ISA(note_resident)(const struct skv_shape *, const struct skv_batch *, const struct skv_slots *,
                        const struct skv_work *);
void ISA(tally)(const struct skv_shape *, const struct skv_batch *, const struct skv_evidence *,
                const struct skv_work *);
void ISA(tally_prompt)(const struct skv_shape *, const struct skv_batch *, const void *q, uint32_t window,
                       const struct skv_work *);
void ISA(rank)(const struct skv_shape *, const struct skv_batch *, const struct skv_rank *, float *rank,
               uint32_t stride, const struct skv_work *);
void ISA(keep)(const struct skv_shape *, const struct skv_batch *, const struct skv_keep_by *, const float *rank,
               uint32_t stride, const struct skv_work *);
void ISA(tally_list)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_list *,
                     const struct skv_work *);
void ISA(allot)(const struct skv_shape *, const struct skv_batch *, const struct skv_allot *, const float *rank,
                uint32_t stride, const struct skv_work *);
void ISA(list_awake)(const struct skv_shape *, const struct skv_batch *, struct skv_list *, const struct skv_work *);
void ISA(stamp)(const struct skv_shape *, const struct skv_batch *, const struct skv_evidence *, const struct skv_stamp *,
                struct skv_list *, const struct skv_work *);

void ISA(pack)(const struct skv_shape *, uint32_t n_layers, const struct skv_batch *, const struct skv_work *);
void ISA(pack_low)(const struct skv_shape *, uint32_t n_layers, const struct skv_batch *, const struct skv_work *);
void ISA(rebuild)(const struct skv_shape *, const struct skv_batch *, const struct skv_list *, const struct skv_rebuilt *,
                  const struct skv_work *);

size_t ISA(decode_bytes)(const struct skv_shape *, uint32_t n_seqs, uint32_t max_len);
size_t ISA(prefill_bytes)(const struct skv_shape *, uint32_t n_seqs, int threads);
size_t ISA(sparse_bytes)(const struct skv_shape *, const struct skv_batch *bounds, const struct skv_sparse *, int threads);
size_t ISA(best_bytes)(const struct skv_shape *, const struct skv_batch *bounds, int threads);
size_t ISA(stages_bytes)(const struct skv_batch *bounds, int threads);
size_t ISA(lines_bytes)(const struct skv_shape *, const struct skv_batch *bounds, int threads);
size_t ISA(select_bytes)(uint32_t max_len, int threads);
size_t ISA(votes_bytes)(const struct skv_shape *, uint32_t n_seqs, uint32_t n_rows, int threads);
size_t ISA(rank_bytes)(uint32_t max_len, int threads);
size_t ISA(keep_bytes)(uint32_t max_len, int threads);
size_t ISA(allot_bytes)(const struct skv_shape *, uint32_t max_len, int threads);
size_t ISA(pack_bytes)(const struct skv_shape *, uint32_t n_seqs, int threads);
size_t ISA(rebuild_bytes)(const struct skv_shape *, uint32_t n_seqs, int threads);
size_t ISA(union_bytes)(uint32_t n_seqs, uint32_t max_len, int threads); /* more than select_bytes() */
#endif
#endif
