/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/select.h - attention scores, page bounds, and the lists of pages or tokens that are selected by them.
 *
 * Scores. A dense decode pass returns the softmax weights of its tokens, reduced over heads (struct skv_scores).
 * select() makes a list of the top-k indices, and a layer attends to that list.
 *
 * Page bounds (Quest). The minimum and the maximum of each element over a page's keys give an upper bound of q·k over
 * the page, before the layer attends. They are stored in state pages of the same pool. A state page has the usual
 * layout: its "token" u describes page T * p + u of the layer, where p is its index in the table of state pages. The
 * minima are its K row, the maxima its V row. So one state page has the bounds of T pages.
 *
 * Sketches. A sketch is a quantized copy of a key k; with sketches all keys are scored while only a small part of their
 * bytes is read. k' = R (k - c). R is a rotation: a random-sign Hadamard matrix in each block, whose size is the
 * largest power of two that divides head_dim. c is the mean of the head's first T keys; subtracting the same vector
 * from all keys changes no softmax. The code of an element is an integer u below 2^bits with the value
 * (u + 1/2 - 2^(bits - 1)) step; step is 1, 0.586 or 0.335 (2, 3, 4 bits) of the root mean square of k'. With 1 bit u
 * is the sign. When codes are read, a scale per token, <k', code> / <code, code>, replaces step (RaBitQ). Before there
 * are T keys there is no c and no sketch. A kv head's share of a state page is as large as in any other page and holds
 * skv_sketch_tokens() tokens: rows of codes, then scales in bf16. A row has D b / 8 bytes (D = head_dim, b bits): byte
 * i holds elements i, i + D b / 8, ..., the first in the lowest bits. With 3 bits, D / 4 bytes of the codes' lower
 * 2 bits come first, then D / 8 bytes of the highest bits.
 */
#ifndef SKV_SELECT_H
#define SKV_SELECT_H

#include <sparsekv/policy.h>
#include "kernels/batch.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Attention scores of a decode pass. The softmax weights of each token, one row for each q head, are reduced (max or
 * sum) over all q heads (rows = 1) or over each GQA group (rows = n_kv_heads), or are not reduced (rows = n_heads). Any
 * of the outputs may be NULL.
 */
struct skv_scores {
	uint32_t rows;         /* 1, n_kv_heads or n_heads */
	bool sum;              /* sum instead of max */
	uint32_t token_stride; /* >= max_len, multiple of T */
	uint32_t page_stride;  /* >= pages of max_len, multiple of 4 */
	/* 16-byte aligned. Elements past the sequence's last page are not written. */
	float *token;          /* [seq][rows][token_stride]: reduced weight; 0 in holes, and from len on */
	float *page;           /* [seq][rows][page_stride]: sum of the reduced weights of the page */
	float *lse;            /* [seq][n_heads]: as skv_shape.lse, of each sequence */
};

/* Lists of indices of pages or tokens, ascending: one for each sequence, kv head or q head. */
struct skv_index_list {
	uint32_t rows;       /* lists of a sequence: 1, n_kv_heads or n_heads */
	uint32_t stride;     /* elements reserved for a list */
	uint32_t *ids;       /* [seq][rows][stride] */
	uint32_t *count;     /* [seq][rows] */
	uint32_t max_count;  /* >= every count; bounds launches; select() sets it */
	/*
	 * For pages: the last listed page is the partial one, with (len - 1) % T + 1 tokens; all others are full. Then
	 * ids need not ascend.
	 */
	bool last_partial;
	bool mapped;         /* rows = n_kv_heads: kv head h reads list map[h]; only readers of a list use it */
	uint8_t map[SKV_MAX_HEADS];
};

/* The list that kv head or q head `row` reads, as a number among the sequence's lists. */
SKV_INLINE uint32_t skv_index_list_row(const struct skv_index_list *l, uint32_t row)
{
	return l->mapped ? l->map[row] : row;
}

/* What a layer has attended to: a window or a list. */
struct skv_attended {
	const struct skv_window *window; /* NULL: the list */
	const struct skv_index_list *list;
	bool tokens; /* the list is of tokens, else of pages */
};

/* How a selection divides n pages or tokens: the first `pin`, the last `recent`, and the best `want` between them. */
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

/* The first token of the recent part of a window, in a sequence of n tokens. */
SKV_INLINE uint32_t skv_window_start(const struct skv_window *w, uint32_t n)
{
	uint32_t size = skv_budget_of(w->budget, n, w->floor);
	uint32_t recent = size > w->sinks ? size - w->sinks : 1;

	return n > recent ? n - recent : 0;
}

/* Bytes of the codes of a sketch, and tokens of a state page. head_dim is a multiple of 32. */
SKV_INLINE uint32_t skv_sketch_row(const struct skv_shape *sh)
{
	return sh->head_dim * sh->sketch_bits / 8;
}
SKV_INLINE uint32_t skv_sketch_tokens(const struct skv_shape *sh)
{
	return (uint32_t)skv_head_room(sh) / (skv_sketch_row(sh) + 2) / SKV_PAGE_TOKENS * SKV_PAGE_TOKENS;
}
/* Does R change the sign of element d? */
SKV_INLINE bool skv_sketch_flips(uint32_t d)
{
	uint32_t x = (d + 1) * 0x9e3779b9u;
	x = (x ^ (x >> 15)) * 0x85ebca6bu;
	return (x ^ (x >> 13)) >> 16 & 1;
}

/*
 * The denominators of weights by sketches are estimated from a sample, so that they are known before all tokens are
 * scored. The sample consists of evenly spaced pairs of tokens. For sequences of up to 2 SKV_SKETCH_PAIRS tokens they
 * are exact.
 */
#define SKV_SKETCH_PAIRS 256u
SKV_INLINE uint32_t skv_sketch_pairs(uint32_t len)
{
	return (len + 1) / 2 < SKV_SKETCH_PAIRS ? (len + 1) / 2 : SKV_SKETCH_PAIRS;
}
/* The first token of a pair, an even position; the second token may be beyond the sequence's end. */
SKV_INLINE uint32_t skv_sketch_pair(uint32_t len, uint32_t pair)
{
	const uint32_t all = (len + 1) / 2;
	return 2 * (all <= SKV_SKETCH_PAIRS ? pair : (uint32_t)((uint64_t)pair * all / SKV_SKETCH_PAIRS));
}
/* Tokens of the sequence for each token of the sample. */
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
