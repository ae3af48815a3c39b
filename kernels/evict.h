/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/evict.h - layers that evict: slot mapping, slot metadata, and the rules of an eviction.
 *
 * Slots. Keys carry their position, so attention does not depend on the order of rows. A layer that evicts single
 * tokens keeps the retained ones in slots: slot x of kv head h is row x % T of page x / T of the layer's page table,
 * and which token is there differs from head to head. A step attends to slots [0, len), all of them in use: so the
 * ordinary kernels serve. A layer that evicts pages of single kv heads does the same with whole pages. Below, an
 * entry is what is evicted as a whole: a token's slot (granularity 1), or a kv head's share of a page (granularity
 * T). All heads of a layer have the same number of entries.
 *
 * Slot metadata. What is known of an entry - the position of its token, its score - is in pages of the same pool,
 * named by the layer's table of slot metadata. There are two sets; commit `epoch` made set `epoch & 1` valid. A step
 * reads the set of the last commit and writes the other one, so it can be repeated. The step that evicts an entry
 * only marks it, in the metadata that it writes: its rows stay until the next step, whose commit does not need them
 * any more.
 */
#ifndef SKV_EVICT_H
#define SKV_EVICT_H

#include "kernels/batch.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Metadata of an entry. `pos`: the position of its token in the sequence, with granularity T the number of its page;
 * with SKV_SLOT_EVICTED its slot is free for the next step; SKV_SLOT_FREE: the slot is not in use. `score`: its
 * accumulated attention score, or the length of the sequence when the page was last touched. With the sign set (-0,
 * too) the entry is inactive: it is there and not attended to, where heads share a layer's budget
 * (allocate_head_budgets). Accumulating scores of all entries, or a prompt, activates it.
 *
 * Page i of a layer's table has the metadata of entries [i U, (i + 1) U), U = skv_slot_meta_per_page(). An
 * n_kv_heads-th of its bytes is kv head h's: U entries of set 0, then U of set 1.
 */
struct skv_slot_meta {
	uint32_t pos;
	float score;
};
#define SKV_SLOT_EVICTED (1u << 31)
#define SKV_SLOT_FREE 0xffffffffu

/* Where new tokens go: the slot mapping of a decode step. */
struct skv_slot_mapping {
	uint32_t granularity; /* granularity, tokens: 1 or T */
	uint32_t *slot; /* [seq][n_kv_heads]: the slot of the new token; alloc_slots() fills it in */
};

/* How accumulated scores become the ranks that evict() goes by. */
struct skv_rank {
	uint32_t smooth; /* odd; above 1: the mean of so many positions around each token; positions without a token count 0 */
	/*
	 * Above 0: lambda * importance - (1 - lambda) * redundancy (R-KV). Importance is the (smoothed) score over
	 * the sum of the head's, 0 if that is 0. Redundancy is the softmax, over the head's tokens, of the key's mean
	 * cosine similarity to all of them, itself included (the same for all); a key of zeros is similar to none.
	 * One thing of R-KV is left out: that of several nearly equal keys the latest few do not count. All pairs
	 * count.
	 */
	float lambda;
};

/*
 * Which entries are retained: the latest, then the pinned, then the best by rank, until there are kseq.n_retained;
 * ties go to the earlier one. A NaN counts as -infinity.
 */
struct skv_evict_rule {
	uint32_t granularity;     /* granularity */
	struct skv_budget recent; /* see skv_recent_of(); none if zero */
	bool evict_older;         /* ties go to the later one */
	bool reset_scores;        /* scores of the retained become 0 */
};

/* How many of the latest are among n_retained entries: `recent` is of the next step, whose new entry is one of them. */
SKV_INLINE uint32_t skv_recent_of(const struct skv_evict_rule *by, uint32_t n_retained)
{
	const uint32_t n = skv_budget_of(by->recent, n_retained + 1, 0);

	return n ? n - 1 : 0;
}

/*
 * Head budgets (Ada-KV): how a layer's heads share n_kv_heads * kseq.n_active entries. First the latest of each head,
 * then the best of each by rank up to its safeguard, then the best of all heads until there are so many. Ties go to
 * the lower position, then to the lower head. Inactive entries stay inactive.
 */
struct skv_head_budget_rule {
	uint32_t recent; /* of each head the latest so many, of the next step's entries: its new one is one of them */
	float safeguard; /* the share of the mean that each head gets in any case, likewise (Ada-KV's safeguard) */
};

/* Entries that each head has active in any case, where the mean is `active`. */
SKV_INLINE uint32_t skv_safeguard_of(const struct skv_head_budget_rule *a, uint32_t active)
{
	const uint32_t recent = a->recent ? a->recent - 1 : 0, sure = (uint32_t)(a->safeguard * (float)(active + 1));
	const uint32_t n = sure > recent ? sure - 1 : recent;

	return n < active ? n : active;
}

/*
 * When a page matters (RaaS). Its weight w is the mean over the GQA group of the softmax of scale * score over all
 * pages.
 */
struct skv_touch_rule {
	float alpha; /* w above this ... */
	float ratio; /* ... or, above 0, one of the best skv_budget_of({ratio}, pages, 1) by w; ties go to the earlier one */
	float scale;
	/*
	 * Unless zero: of pinned pages the best skv_budget_of(pinned, n, pinned_floor) by w are listed, n the pages of
	 * kseq.n_tokens; ties go to the earlier ones. The partial page does not compete: it is always listed.
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

/* Entries whose metadata a page has: a multiple of 32, as head_dim is one of 16. */
SKV_INLINE uint32_t skv_slot_meta_per_page(const struct skv_shape *sh)
{
	return (uint32_t)(skv_head_room(sh) / (2 * sizeof(struct skv_slot_meta)));
}

/* The metadata of entry u of kv head h, in a set. Its page must be resident. */
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
