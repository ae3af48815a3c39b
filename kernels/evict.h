/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/evict.h - layers that evict: slot mapping, slot metadata, and the rules of an eviction.
 *
 * Slots. Stored keys have RoPE applied, so attention does not depend on the order of rows. A layer that evicts single
 * tokens keeps the retained tokens in slots: slot x of kv head h is row x % T of page x / T of the layer's page table.
 * Each kv head may have different tokens in its slots. A step attends to slots [0, len), which are all in use, so the
 * ordinary attention kernels work. A layer that evicts pages of single kv heads does the same with whole pages. An
 * eviction removes entries: an entry is the slot of one token (granularity 1), or a kv head's share of a page
 * (granularity T). All kv heads of a layer have the same number of entries.
 *
 * Slot metadata. The position of an entry's token and its score are stored in pages of the same pool, which the layer's
 * table of slot metadata lists. A sequence has two sets of slot metadata; commit `epoch` makes set `epoch & 1` valid. A
 * step reads the set of the last commit and writes the other set, so a step that was interrupted can be repeated. The
 * step that evicts an entry only marks the entry as evicted in the set that the step writes. The rows of an evicted
 * entry stay in their pages until the next step, which may overwrite them, because the last commit no longer needs
 * them.
 */
#ifndef SKV_EVICT_H
#define SKV_EVICT_H

#include "kernels/batch.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Slot metadata of an entry. `pos` is the position of the entry's token in the sequence; with granularity T, the number
 * of the entry's page in the sequence. If SKV_SLOT_EVICTED is set in `pos`, the next step may reuse the slot.
 * SKV_SLOT_FREE in `pos`: the slot is not in use. `score` is the accumulated attention score of the token, or, with
 * granularity T, the length of the sequence when the page was last touched. If the sign bit of `score` is set (also in
 * -0), the entry is inactive: stored but not attended to, because heads share the layer's budget
 * (allocate_head_budgets). An inactive entry becomes active again when scores of all entries are accumulated, or with a
 * prompt.
 *
 * Page i of the table of slot metadata has the metadata of entries [i U, (i + 1) U), U = skv_slot_meta_per_page(). Each
 * kv head has 1 / n_kv_heads of the page's bytes: U entries of set 0, then U entries of set 1.
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
	uint32_t *slot; /* [seq][n_kv_heads]: slot of the new token in each kv head, written by alloc_slots() */
};

/* How rank_tokens() turns accumulated scores into the ranks by which evict() chooses. */
struct skv_rank {
	/*
	 * odd; above 1: a token's score is replaced by the mean score of this many positions around the token's;
	 * positions without a token count as 0
	 */
	uint32_t smooth;
	/*
	 * If lambda is above 0, the rank is lambda * importance - (1 - lambda) * redundancy (R-KV). Importance is the
	 * (smoothed) score divided by the sum of the head's scores, or 0 if that sum is 0. Redundancy is the softmax,
	 * over the head's tokens, of a key's mean cosine similarity to all of the head's keys. A key's similarity to
	 * itself is included, which adds the same to the mean of each key. A key of zeros has similarity 0 to every
	 * key. Unlike in R-KV, the latest few of several nearly equal keys are not exempt: all pairs of keys count.
	 */
	float lambda;
};

/*
 * The rule of an eviction: retained are the latest entries, then the pinned ones, then the best by rank, up to
 * kseq.n_retained entries. Of equal ranks, the entry with the lower pos is retained. A rank that is a NaN counts as
 * -infinity.
 */
struct skv_evict_rule {
	uint32_t granularity;     /* tokens of an entry: 1 or T */
	struct skv_budget recent; /* number of latest entries that are retained, see skv_recent_of(); zero: none */
	bool evict_older;         /* of equal ranks, the entry with the higher pos is retained */
	bool reset_scores;        /* the scores of retained entries become 0 */
};

/*
 * Returns how many of n_retained entries are retained because they are the latest. by->recent counts the entries of the
 * next step, and the next step's new entry is one of the latest; so the result is one less.
 */
SKV_INLINE uint32_t skv_recent_of(const struct skv_evict_rule *by, uint32_t n_retained)
{
	const uint32_t n = skv_budget_of(by->recent, n_retained + 1, 0);

	return n ? n - 1 : 0;
}

/*
 * Head budgets (Ada-KV): the rule by which the kv heads of a layer share n_kv_heads * kseq.n_active active entries.
 * First the latest entries of each head are chosen, then the best of each head by rank up to its safeguard, then the
 * best of all heads up to the total. Of equal ranks, the entry with the lower position comes first, then that of the
 * lower head. Entries that were inactive stay inactive.
 */
struct skv_head_budget_rule {
	/*
	 * number of latest entries of each head that stay active; the count is that of the next step, so that step's
	 * new entry is included
	 */
	uint32_t recent;
	/*
	 * Ada-KV's safeguard: each head keeps at least this share of the mean number of active entries; as with
	 * `recent`, the next step's new entry is included
	 */
	float safeguard;
};

/*
 * Returns how many entries stay active in each head whatever the other heads' scores are, if the mean number of active
 * entries is `active`.
 */
SKV_INLINE uint32_t skv_safeguard_of(const struct skv_head_budget_rule *a, uint32_t active)
{
	const uint32_t recent = a->recent ? a->recent - 1 : 0, sure = (uint32_t)(a->safeguard * (float)(active + 1));
	const uint32_t n = sure > recent ? sure - 1 : recent;

	return n < active ? n : active;
}

/*
 * When a page matters in a step (RaaS). The weight w of a page is the softmax of scale * score over all pages, averaged
 * over the GQA group.
 */
struct skv_touch_rule {
	float alpha; /* the page matters if w is above alpha; not used if `ratio` is above 0 */
	/*
	 * if above 0: the page matters if it is one of the best skv_budget_of({ratio}, pages, 1) pages by w; of equal w
	 * the earlier page is better
	 */
	float ratio;
	float scale;
	/*
	 * If `pinned` is not zero, only the best skv_budget_of(pinned, n, pinned_floor) of the pinned pages by w are
	 * listed, where n is the number of pages of kseq.n_tokens. Of equal w the earlier page is better. The partial
	 * page does not compete: it is always listed.
	 */
	struct skv_budget pinned;
	uint32_t pinned_floor;
};

/*
 * Does a step's query add its attention weights to the accumulated scores? With RESET its weights replace earlier
 * scores.
 */
enum skv_accumulate { SKV_ACCUMULATE_NONE, SKV_ACCUMULATE_ADD, SKV_ACCUMULATE_RESET };

/* The sequence's page table of slot metadata. */
SKV_INLINE const skv_pte *skv_slot_meta_table(const struct skv_shape *sh, const struct skv_kseq *s)
{
	return s->table + (size_t)sh->slot_meta * s->layer_stride;
}

/* Number of entries whose metadata fits in a page: a multiple of 32, because head_dim is a multiple of 16. */
SKV_INLINE uint32_t skv_slot_meta_per_page(const struct skv_shape *sh)
{
	return (uint32_t)(skv_head_room(sh) / (2 * sizeof(struct skv_slot_meta)));
}

/* Returns the metadata of entry u of kv head h in a set. The page that holds the metadata must be resident. */
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
