/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/select.h - attention scores, page bounds, and the lists of pages or tokens that are selected by them.
 *
 * Scores. A dense decode pass returns the softmax weights of a sequence's tokens, reduced over heads (struct
 * skv_scores). select() lists the pages or tokens with the k highest scores, and a layer attends to that list.
 *
 * Page bounds (Quest). The bounds of a page are the minimum and the maximum of each element over the page's keys. They
 * give an upper bound of q·k over the page, before the layer attends. Page bounds are stored in state pages, which are
 * pages of the same pool with the layout of a page of K and V: "token" u of the state page with index p in the table of
 * state pages describes page T * p + u of the layer. The K row of that "token" holds the page's minima, its V row the
 * maxima. So one state page has the bounds of T pages.
 *
 * Sketches. A sketch is a quantized copy of a key k; with sketches all keys are scored while only a small part of their
 * bytes is read. A sketch quantizes k' = R (k - c). R is a rotation: a random-sign Hadamard matrix in each block of
 * elements, whose size is the largest power of two that divides head_dim. c is the mean of the head's first T keys;
 * subtracting the same vector from all keys changes no softmax. The code of an element of k' is an integer u below
 * 2^bits with the value (u + 1/2 - 2^(bits - 1)) step; step is the root mean square of k' times 1, 0.586 or 0.335 (2,
 * 3, 4 bits). With 1 bit, u is the sign of the element. When scores are computed, a scale of each token, <k', code> /
 * <code, code>, takes the place of step (RaBitQ). A sequence of fewer than T keys has no c and no sketches.
 *
 * Layout of sketches: each kv head's share of a state page holds the sketches of skv_sketch_tokens() tokens: rows of
 * codes, then one scale in bf16 for each token. A token's row of codes has D b / 8 bytes (D = head_dim, b bits): byte i
 * holds elements i, i + D b / 8, ..., the first in the lowest bits. With 3 bits, a row begins with D / 4 bytes of the
 * codes' lower 2 bits, followed by D / 8 bytes of their highest bits.
 *
 * Values. With value_bits the state pages also hold a copy of each value row in 2 bits an element, by which a layer
 * attends to the tokens that it did not select. Each group of 32 elements has a least value and a step, both in bf16;
 * an element is the least value plus 0 to 3 steps, rounded to nearest, so that the errors of many tokens average out.
 * The rows of codes follow the scales of the keys; they have the layout of a sketch's row of 2 bits. After the rows of
 * codes come the least value and the step of each token's groups.
 */
#ifndef SKV_SELECT_H
#define SKV_SELECT_H

#include <sparsekv/policy.h>
#include "kernels/batch.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Attention scores of a decode pass. Each q head gives each token a softmax weight; the weights are reduced (max or
 * sum) over all q heads (rows = 1) or over each GQA group (rows = n_kv_heads), or are not reduced (rows = n_heads). An
 * output that is NULL is not computed.
 */
struct skv_scores {
	uint32_t rows;         /* number of rows of scores of a sequence: 1, n_kv_heads or n_heads */
	bool sum;              /* weights are reduced over heads by their sum; false: by their maximum */
	uint32_t token_stride; /* elements from one row of token scores to the next: >= max_len, a multiple of T */
	/* elements from one row of page scores to the next: >= pages of max_len, a multiple of 4 */
	uint32_t page_stride;
	/* The arrays are aligned to 16 bytes. Elements after the sequence's last page are not written. */
	/* [seq][rows][token_stride]: reduced weight of each token; 0 in holes and at positions from len on */
	float *token;
	float *page;           /* [seq][rows][page_stride]: sum of the reduced weights of the page's tokens */
	float *lse;            /* [seq][n_heads]: log-sum-exp of each sequence's row, as in skv_shape.lse */
};

/* Lists of pages or tokens by index, ascending: one list for each sequence, for each kv head, or for each q head. */
struct skv_index_list {
	uint32_t rows;       /* number of lists of a sequence: 1, n_kv_heads or n_heads */
	uint32_t stride;     /* number of elements reserved for a list */
	uint32_t *ids;       /* [seq][rows][stride]: indices */
	uint32_t *count;     /* [seq][rows]: number of indices in each list */
	uint32_t max_count;  /* upper bound of all counts, which limits the size of launches; select() sets it */
	/*
	 * true, in lists of pages: the last page of each list is the partial page, with (len - 1) % T + 1 tokens, and
	 * all other pages are full. The ids of such a list need not ascend.
	 */
	bool last_partial;
	/*
	 * with rows = n_kv_heads: kv head h reads list map[h] instead of list h; functions that write a list ignore
	 * this
	 */
	bool mapped;
	uint8_t map[SKV_MAX_HEADS];
};

/* Returns which of a sequence's lists kv head or q head `row` reads. */
SKV_INLINE uint32_t skv_index_list_row(const struct skv_index_list *l, uint32_t row)
{
	return l->mapped ? l->map[row] : row;
}

/* The tokens or pages that a layer has attended to: a window or a list. */
struct skv_attended {
	const struct skv_window *window; /* NULL: the layer attended to `list` */
	const struct skv_index_list *list;
	bool tokens; /* `list` has tokens; false: pages */
};

/*
 * How a selection divides n pages or tokens: the first `pin` and the last `recent` are always selected, and of those
 * between them the best `want`.
 */
struct skv_topk_counts {
	uint32_t n, pin, recent, want;
};

SKV_INLINE struct skv_topk_counts skv_topk_counts_of(const struct skv_select *s, uint32_t n)
{
	const uint32_t k = skv_budget_of(s->budget, n, s->floor);
	struct skv_topk_counts x = {n, s->pin, s->recent ? s->recent : k / 8, 0};

	if (x.recent < s->recent_floor)
		x.recent = s->recent_floor;
	if (x.recent > k)
		x.recent = k;
	if (s->no_recent)
		x.recent = 0;
	x.want = k - x.recent;
	if (s->pin_counts && x.pin > x.want)
		x.pin = x.want;
	if (x.pin > n - x.recent)
		x.pin = n - x.recent;
	if (s->pin_counts)
		x.want -= x.pin;
	return x;
}

/* Returns the first token of the recent part of a window in a sequence of n tokens. */
SKV_INLINE uint32_t skv_window_start(const struct skv_window *w, uint32_t n)
{
	uint32_t size = skv_budget_of(w->budget, n, w->floor);
	uint32_t recent = size > w->sinks ? size - w->sinks : 1;

	return n > recent ? n - recent : 0;
}

#define SKV_VALUE_GROUP 32u /* elements of a value row that share a least value and a step */
/* Returns the bytes of a sketch's row of codes. head_dim must be a multiple of 32, here and in the functions below. */
SKV_INLINE uint32_t skv_sketch_row(const struct skv_shape *sh)
{
	return sh->head_dim * sh->sketch_bits / 8;
}
/* Returns the bytes of the codes of one token's value row. */
SKV_INLINE uint32_t skv_value_row(const struct skv_shape *sh)
{
	return sh->head_dim * sh->value_bits / 8;
}
/* Returns the bytes of the least values and steps of one token's value row. */
SKV_INLINE uint32_t skv_value_steps(const struct skv_shape *sh)
{
	return sh->value_bits ? sh->head_dim / SKV_VALUE_GROUP * 4 : 0;
}
/* Returns the number of tokens whose sketches a state page holds. */
SKV_INLINE uint32_t skv_sketch_tokens(const struct skv_shape *sh)
{
	const uint32_t bytes = skv_sketch_row(sh) + 2 + skv_value_row(sh) + skv_value_steps(sh);

	return (uint32_t)skv_head_room(sh) / bytes / SKV_PAGE_TOKENS * SKV_PAGE_TOKENS;
}
/* Does the rotation R of sketches change the sign of element d? */
SKV_INLINE bool skv_sketch_flips(uint32_t d)
{
	uint32_t x = (d + 1) * 0x9e3779b9u;
	x = (x ^ (x >> 15)) * 0x85ebca6bu;
	return (x ^ (x >> 13)) >> 16 & 1;
}

/*
 * The softmax denominators of weights by sketches are estimated from a sample of tokens, so that they are known before
 * all tokens are scored. The sample consists of evenly spaced pairs of tokens. In sequences of up to 2 SKV_SKETCH_PAIRS
 * tokens the sample has all tokens, so the denominators are exact.
 */
#define SKV_SKETCH_PAIRS 256u
SKV_INLINE uint32_t skv_sketch_pairs(uint32_t len)
{
	return (len + 1) / 2 < SKV_SKETCH_PAIRS ? (len + 1) / 2 : SKV_SKETCH_PAIRS;
}
/*
 * Returns the first token of a pair of the sample, an even position; the second token of the pair may be beyond the
 * sequence's end.
 */
SKV_INLINE uint32_t skv_sketch_pair(uint32_t len, uint32_t pair)
{
	const uint32_t all = (len + 1) / 2;
	return 2 * (all <= SKV_SKETCH_PAIRS ? pair : (uint32_t)((uint64_t)pair * all / SKV_SKETCH_PAIRS));
}
/* Returns how many tokens of the sequence each token of the sample stands for. */
SKV_INLINE float skv_sketch_share(uint32_t len)
{
	return len <= 2 * SKV_SKETCH_PAIRS ? 1 : (float)len / (2 * SKV_SKETCH_PAIRS);
}

/* The sequence's table of state pages. */
SKV_INLINE const skv_pte *skv_state_table(const struct skv_shape *sh, const struct skv_kseq *s)
{
	return s->table + (size_t)sh->state * s->layer_stride;
}

#ifdef __cplusplus
}
#endif
#endif
