/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/evict/slot-meta.h - iterates over the slot metadata of a kv head, which is the item of these kernels.
 */
#ifndef SKV_HOST_SLOT_META_H
#define SKV_HOST_SLOT_META_H

#include <math.h>
#include "kernels/evict.h"
#include "kernels/host/runtime/host.h"

/* Iterates over one set of a kv head's metadata. */
struct meta_iter {
	const struct skv_shape *sh;
	const struct skv_kseq *seq;
	uint32_t h, set;
	uint32_t u;    /* the next entry */
	uint32_t left; /* entries left in the page, from `at` on */
	struct skv_slot_meta *at;
};

/* Begins at entry u. */
static inline struct meta_iter meta_from(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t h, uint32_t set,
                                         uint32_t u)
{
	return (struct meta_iter){.sh = sh, .seq = s, .h = h, .set = set, .u = u};
}

/* Returns the next entry's metadata. */
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

/* Is the entry in use, and not evicted? */
static inline bool meta_retained(struct skv_slot_meta m)
{
	return !(m.pos & SKV_SLOT_EVICTED);
}

/* Is the entry attended to, where heads share a budget? */
static inline bool meta_active(struct skv_slot_meta m)
{
	return !signbit(m.score);
}

/* Entries that a number of slots makes. */
static inline uint32_t entries_of(uint32_t slots, uint32_t granularity)
{
	return granularity == 1 ? slots : skv_pages_of(slots);
}

/* Threads for a call that iterates over all kv heads' metadata: a short call takes less time than waking a thread. */
static inline int meta_threads(const struct skv_shape *sh, const struct skv_batch *batch,
                               const struct skv_workspace *work)
{
	return (size_t)batch->n * sh->n_kv_heads * batch->max_len >= 1u << 16 ? work->threads : 1;
}
#endif
