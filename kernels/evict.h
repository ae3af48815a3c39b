/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/evict.h - layers that evict: slot mapping, slot metadata, and the rules of an eviction.
 *
 * Slots. RoPE is already applied to stored keys, so attention does not depend on the order of rows. A layer that evicts
 * single tokens keeps the retained ones in slots: slot x of kv head h is row x % T of page x / T of the layer's page
 * table. Each head may have different tokens in its slots. A step attends to slots [0, len), which are all in use, so
 * the ordinary kernels work. A layer that evicts pages of single kv heads does the same with whole pages. Below, an
 * entry is evicted as a whole: it is the slot of one token (granularity 1), or a kv head's share of a page (granularity
 * T). All heads of a layer have the same number of entries.
 *
 * Slot metadata. The position of an entry's token and its score are stored in pages of the same pool, which the layer's
 * table of slot metadata lists. There are two sets; commit `epoch` makes set `epoch & 1` valid. A step reads the set of
 * the last commit and writes the other one, so it can be repeated. The step that evicts an entry only marks the entry
 * in the metadata that it writes. The entry's rows stay until the next step, whose commit no longer needs them.
 */
#ifndef SKV_EVICT_H
#define SKV_EVICT_H

#include "kernels/batch.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Metadata of an entry. `pos` is the position of its token in the sequence; with granularity T, the number of its page.
 * With SKV_SLOT_EVICTED set, the next step may reuse the slot. SKV_SLOT_FREE: the slot is not in use. `score` is the
 * accumulated attention score, or the length of the sequence when the page was last touched. If the sign bit is set
 * (including -0), the entry is inactive: it is stored but not attended to, because heads share the layer's budget
 * (allocate_head_budgets). An entry becomes active again when scores of all entries are accumulated, or with a prompt.
 *
 * Page i of the table has the metadata of entries [i U, (i + 1) U), U = skv_slot_meta_per_page(). Each kv head has 1 /
 * n_kv_heads of its bytes: U entries of set 0, then U of set 1.
 */
struct skv_slot_meta {
	uint32_t pos;
	float score;
};
#define SKV_SLOT_EVICTED (1u << 31)
#define SKV_SLOT_FREE 0xffffffffu

/* The slot mapping of a decode step: where new tokens are stored. */
struct skv_slot_mapping {
	uint32_t granularity; /* tokens of an entry: 1 or T */
	uint32_t *slot; /* [seq][n_kv_heads]: the slot of the new token; alloc_slots() fills it in */
};

/* How accumulated scores become ranks for evict(). */
struct skv_rank {
	uint32_t smooth; /* odd; above 1: the mean of so many positions around each token; positions without a token count 0 */
	/*
	 * Above 0: the rank is lambda * importance - (1 - lambda) * redundancy (R-KV). Importance is the (smoothed)
	 * score divided by the sum over the head, or 0 if that sum is 0. Redundancy is the softmax, over the head's
	 * tokens, of a key's mean cosine similarity to all of them. This includes the key itself, which adds the same
	 * to each. A key of zeros is similar to none. Unlike R-KV, this does not exempt the latest few of several
	 * nearly equal keys: all pairs count.
	 */
	float lambda;
};

/*
 * Which entries are retained: the latest, then the pinned, then the best by rank, up to kseq.n_retained. Ties go to the
 * earlier entry. A NaN counts as -infinity.
 */
struct skv_evict_rule {
	uint32_t granularity;     /* tokens of an entry: 1 or T */
	struct skv_budget recent; /* see skv_recent_of(); none if zero */
	bool evict_older;         /* ties go to the later one */
	bool reset_scores;        /* scores of retained entries become 0 */
};

/*
 * How many of n_retained entries are retained as the latest. `recent` refers to the next step, whose new entry counts.
 */
SKV_INLINE uint32_t skv_recent_of(const struct skv_evict_rule *by, uint32_t n_retained)
{
	const uint32_t n = skv_budget_of(by->recent, n_retained + 1, 0);

	return n ? n - 1 : 0;
}

/*
 * Head budgets (Ada-KV): how the heads of a layer share n_kv_heads * kseq.n_active entries. First come the latest of
 * each head, then the best of each head by rank up to its safeguard, then the best of all heads up to the total. Ties
 * go to the lower position, then to the lower head. Inactive entries stay inactive.
 */
struct skv_head_budget_rule {
	/* this many of the latest of each head, counted in the next step, whose new entry is included */
	uint32_t recent;
	/* share of the mean that each head gets in any case, counted in the same way (Ada-KV's safeguard) */
	float safeguard;
};

/* Entries that stay active in each head in any case, if the mean is `active`. */
SKV_INLINE uint32_t skv_safeguard_of(const struct skv_head_budget_rule *a, uint32_t active)
{
	const uint32_t recent = a->recent ? a->recent - 1 : 0, sure = (uint32_t)(a->safeguard * (float)(active + 1));
	const uint32_t n = sure > recent ? sure - 1 : recent;

	return n < active ? n : active;
}

/*
 * When a page matters (RaaS). Its weight w is the softmax of scale * score over all pages, averaged over the GQA group.
 */
struct skv_touch_rule {
	float alpha; /* w above this ... */
	float ratio; /* ... or, above 0, one of the best skv_budget_of({ratio}, pages, 1) by w; ties go to the earlier one */
	float scale;
	/*
	 * Unless zero: of the pinned pages only the best skv_budget_of(pinned, n, pinned_floor) by w are listed, where
	 * n is the number of pages of kseq.n_tokens. Ties go to the earlier ones. The partial page does not compete: it
	 * is always listed.
	 */
	struct skv_budget pinned;
	uint32_t pinned_floor;
};

/* Does a step's query add its attention weights to the accumulated scores? */
enum skv_accumulate { SKV_ACCUMULATE_NONE, SKV_ACCUMULATE_ADD, SKV_ACCUMULATE_RESET /* replaces earlier scores */ };

/* The sequence's table of slot metadata. */
SKV_INLINE const skv_pte *skv_slot_meta_table(const struct skv_shape *sh, const struct skv_kseq *s)
{
	return s->table + (size_t)sh->slot_meta * s->layer_stride;
}

/* Entries whose metadata fits in a page: a multiple of 32, because head_dim is a multiple of 16. */
SKV_INLINE uint32_t skv_slot_meta_per_page(const struct skv_shape *sh)
{
	return (uint32_t)(skv_head_room(sh) / (2 * sizeof(struct skv_slot_meta)));
}

/* The metadata of entry u of kv head h in a set. Its page must be resident. */
SKV_INLINE struct skv_slot_meta *skv_slot_meta_at(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t h, uint32_t set,
                                        uint32_t u)
{
	const uint32_t each = skv_slot_meta_per_page(sh);
	uint8_t *page = sh->pool + skv_pte_id(skv_slot_meta_table(sh, s)[u / each]) * sh->page_bytes;

	return (struct skv_slot_meta *)(page + h * skv_head_room(sh)) + set * each + u % each;
}

#ifdef __cplusplus
}
#endif
#endif
