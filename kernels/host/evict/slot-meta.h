/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/evict/slot-meta.h - iterates over the slot metadata of a kv head. Work items of the eviction kernels are
 * kv heads of a sequence.
 */
#ifndef SKV_HOST_SLOT_META_H
#define SKV_HOST_SLOT_META_H

#include <math.h>
#include "kernels/evict.h"
#include "kernels/host/runtime/host.h"

/* An iterator over the entries of a kv head in one set of slot metadata. */
struct meta_iter {
	const struct skv_shape *sh;
	const struct skv_kseq *seq;
	uint32_t h, set;
	uint32_t u;    /* index of the next entry */
	uint32_t left; /* number of entries left in the page of metadata, from `at` on */
	struct skv_slot_meta *at;
};

/* Returns an iterator whose first entry is u. */
static inline struct meta_iter meta_from(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t h, uint32_t set,
                                         uint32_t u)
{
	return (struct meta_iter){.sh = sh, .seq = s, .h = h, .set = set, .u = u};
}

/* Returns the metadata of the iterator's next entry. */
static inline struct skv_slot_meta *meta_next(struct meta_iter *m)
{
	if (m->left == 0) {
		const uint32_t each = skv_slot_meta_per_page(m->sh);
		m->at = skv_slot_meta_at(m->sh, m->seq, m->h, m->set, m->u);
		m->left = each - m->u % each;
	}
	m->left--;
	m->u++;
	return m->at++;
}

/* Is the entry in use, and not evicted? (SKV_SLOT_FREE has the bit of SKV_SLOT_EVICTED, too.) */
static inline bool meta_retained(struct skv_slot_meta m)
{
	return !(m.pos & SKV_SLOT_EVICTED);
}

/* Is the entry active, that is, attended to where heads share a budget? */
static inline bool meta_active(struct skv_slot_meta m)
{
	return !signbit(m.score);
}

/* Returns how many entries a number of slots makes: one for each slot, or one for each page. */
static inline uint32_t entries_of(uint32_t slots, uint32_t granularity)
{
	return granularity == 1 ? slots : skv_pages_of(slots);
}

/*
 * Returns the number of threads for a call that iterates over the metadata of all kv heads. A short call uses one
 * thread, because the call takes less time than waking a thread.
 */
static inline int meta_threads(const struct skv_shape *sh, const struct skv_batch *batch,
                               const struct skv_workspace *work)
{
	return (size_t)batch->n * sh->n_kv_heads * batch->max_len >= 1u << 16 ? work->threads : 1;
}
#endif
