/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/evict/slot-meta.cuh - access to slot metadata (position and score of each entry), for a block that
 * handles one kv head of a sequence. An entry is a token's slot or a page.
 *
 * Metadata is 8 bytes per entry, and access to it is bound by memory bandwidth: a thread loads two entries at a time,
 * and has several such pairs in flight. Entry u always belongs to the same thread, so a pass over the entries may read
 * without a barrier what the previous pass wrote. A kv head's part of a page has an even number of entries of each set,
 * 16-byte aligned.
 */
#ifndef SKV_CUDA_EVICT_SLOT_META_CUH
#define SKV_CUDA_EVICT_SLOT_META_CUH

#include "kernels/cuda/runtime/convert.cuh"
#include "kernels/cuda/runtime/cuda.h"

struct meta_table {
	uint8_t *pool;
	size_t page_bytes, part; /* part: bytes of a page for each kv head */
	uint32_t table, each;    /* number of the layer's table of metadata; number of entries per page */
};

static inline struct meta_table meta_table_of(const struct skv_shape *sh)
{
	struct meta_table n = {};

	n.pool = sh->pool;
	n.page_bytes = sh->page_bytes;
	n.part = skv_head_room(sh);
	n.table = sh->slot_meta;
	n.each = skv_slot_meta_per_page(sh);
	return n;
}

DEVICE struct skv_slot_meta *meta_at(const struct meta_table *n, const struct skv_kseq *s, uint32_t h, uint32_t set,
                                uint32_t u)
{
	const skv_pte page = s->table[(size_t)n->table * s->layer_stride + u / n->each];
	uint8_t *part = n->pool + skv_pte_id(page) * n->page_bytes + h * n->part;
	return (struct skv_slot_meta *)part + set * n->each + u % n->each;
}

DEVICE bool is_retained(uint32_t pos)
{
	return !(pos & SKV_SLOT_EVICTED);
}

/* Is an entry inactive? The sign bit of its score, also of -0, marks it as inactive. */
DEVICE bool is_inactive(float value)
{
	return __float_as_uint(value) >> 31;
}

/* Returns the number of entries that `slots` slots make, with `unit` tokens in an entry. */
DEVICE uint32_t entries_of(uint32_t unit, uint32_t slots)
{
	return unit == 1 ? slots : skv_pages_of(slots);
}

/* Metadata of two neighbouring entries, which are loaded and stored together. */
struct meta_pair {
	uint32_t pos[2];
	float value[2];
};

DEVICE struct meta_pair load_pair(const struct skv_slot_meta *at)
{
	const uint4 v = *(const uint4 *)at;
	return {{v.x, v.z}, {__uint_as_float(v.y), __uint_as_float(v.w)}};
}

DEVICE void store_pair(struct skv_slot_meta *at, const struct meta_pair *p)
{
	*(uint4 *)at = make_uint4(p->pos[0], __float_as_uint(p->value[0]), p->pos[1], __float_as_uint(p->value[1]));
}

/*
 * Calls use(u, pair) for the pairs of entries u and u + 1 in [from, end), distributed over a block of `threads`
 * threads; `from` is even. Entries from `have` on are free, whatever their stored metadata is. If `end` is odd, the
 * last pair also includes entry `end`.
 */
template <int threads, class F>
DEVICE void for_each_pair(const struct meta_table *n, const struct skv_kseq *s, uint32_t h, uint32_t set,
                          uint32_t from, uint32_t have, uint32_t end, F use)
{
	constexpr int deep = 4; /* number of loads in flight */
	for (uint32_t first = from + 2 * threadIdx.x; first < end; first += deep * 2 * threads) {
		struct meta_pair p[deep];
#pragma unroll
		for (int d = 0; d < deep; d++) {
			const uint32_t u = first + d * 2 * threads;
			p[d] = {{SKV_SLOT_FREE, SKV_SLOT_FREE}, {0, 0}};
			if (u < have && u < end)
				p[d] = load_pair(meta_at(n, s, h, set, u));
			if (u + 1 >= have)
				p[d].pos[1] = SKV_SLOT_FREE;
		}
#pragma unroll
		for (int d = 0; d < deep; d++)
			if (first + d * 2 * threads < end)
				use(first + d * 2 * threads, p[d]);
	}
}

#endif
