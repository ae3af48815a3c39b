/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/evict/slot-meta.h - the notes of a kv head, one after the other.
 */
#ifndef SKV_HOST_NOTES_H
#define SKV_HOST_NOTES_H

#include <math.h>
#include "kernels/host/runtime/host.h"

/* Where a walk over the notes of one set of a kv head has got to. */
struct notes {
	const struct skv_shape *sh;
	const struct skv_kseq *seq;
	uint32_t h, set;
	uint32_t u;    /* the next unit */
	uint32_t left; /* units whose notes follow `at` in its page */
	struct skv_note *at;
};

/* Begin at unit u. */
static inline struct notes notes_from(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t h, uint32_t set,
                                      uint32_t u)
{
	return (struct notes){.sh = sh, .seq = s, .h = h, .set = set, .u = u};
}

/* The next unit's note. */
static inline struct skv_note *notes_next(struct notes *n)
{
	if (n->left == 0) {
		const uint32_t each = skv_notes_of_page(n->sh);
		n->at = skv_note_at(n->sh, n->seq, n->h, n->set, n->u);
		n->left = each - n->u % each;
	}
	n->left--;
	n->u++;
	return n->at++;
}

/* Is it a unit that is to stay? */
static inline bool note_lives(struct skv_note n)
{
	return !(n.pos & SKV_NOTE_GONE);
}

/* Is it attended to where heads share a budget? */
static inline bool note_awake(struct skv_note n)
{
	return !signbit(n.value);
}

/* Units of so many slots. */
static inline uint32_t units_of(uint32_t slots, uint32_t unit)
{
	return unit == 1 ? slots : skv_pages_of(slots);
}

/* Threads for a call that walks notes of all kv heads: short walks are over sooner than a thread wakes. */
static inline int notes_threads(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_work *work)
{
	return (size_t)batch->n * sh->n_kv_heads * batch->max_len >= 1u << 16 ? work->threads : 1;
}
#endif
