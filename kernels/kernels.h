/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/kernels.h - the attention primitives, one interface for every backend.
 *
 * A backend is a table of functions (struct skv_kernels). All functions work on a batch of
 * sequences of ONE layer, are deterministic (same inputs, same backend, any thread count, any company
 * in the batch: same bits), make no system call and no allocation, and keep no state: scratch comes from
 * the caller (struct skv_work). They trust their arguments; callers check what came from elsewhere.
 *
 * Memory. Everything that a pointer of these structs leads to lies in the backend's memory: host memory,
 * or one device's, where the functions queue work on skv_work.stream and return. What a device reads when
 * the work runs - lengths, tables, lists, counts - is never read by the host, so the calls of a step can be
 * recorded into a CUDA graph and replayed while sequences grow. What shapes a launch is in the arguments
 * themselves: struct skv_shape, the bounds of struct skv_batch, plans.
 *
 * Shapes. T = SKV_PAGE_TOKENS, G = n_heads / n_kv_heads. Rows of q, k, v and out are of io_dtype and
 * contiguous: q and out [row][n_heads][head_dim], k and v [row][n_kv_heads][head_dim].
 * A page is all K, then all V, each [kv head][token][head_dim] in the pool's dtype; page id p is at
 * pool + p * page_bytes. Sums are accumulated in fp32.
 *
 * Bounds. What K rows of a page have in common is kept in a page too, a state page: the smallest and the largest
 * value of each element over the tokens of the page. State page p of a layer is laid out as any other; its "token" u
 * is about page T * p + u: the smallest values are its K row, the largest its V row. So it has the bounds of T pages.
 */
#ifndef SKV_KERNELS_H
#define SKV_KERNELS_H

#include <stdbool.h>
#include <sparsekv/policy.h>
#include <sparsekv/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What all sequences of a call have in common. */
struct skv_shape {
	uint32_t n_heads, n_kv_heads, head_dim;
	uint32_t dtype;    /* enum skv_dtype of the pool */
	uint32_t io_dtype; /* enum skv_dtype of q, k, v and out */
	uint32_t layer;    /* whose tables are meant */
	uint32_t state;    /* number of the table of the layer's state pages: n_layers + layer; see bounds */
	float scale;       /* softmax scale, resolved (never 0) */
	uint8_t *pool;
	size_t page_bytes;
};

/*
 * One sequence in a call. The table of a layer has an entry for every page up to `len`; entries that are
 * not resident (holes) are skipped by every function. Query row i of the sequence is token
 * len - n_q + i and is row `row + i` of q, k, v and out.
 */
struct skv_kseq {
	const skv_pte *table; /* of layer 0; the next layer's begins layer_stride entries further */
	uint64_t *attended;   /* decode adds what it looked at: tokens, once for each q head; may be NULL */
	uint32_t layer_stride;
	uint32_t len; /* tokens, those of this call included */
	uint32_t n_q; /* query rows; 1 when decoding */
	uint32_t row;
	uint32_t n_bounds; /* of its last tokens, at least n_q and the pages' bounds are made: update_bounds */
};

/* The sequences of a call, and bounds on them: what is queued with them may be replayed within them. */
struct skv_batch {
	const struct skv_kseq *seq; /* [n] */
	uint32_t n;
	uint32_t max_len; /* >= every len */
	uint32_t max_q;   /* >= every n_q */
	uint32_t max_bounds; /* >= every n_bounds */
};

/*
 * Evidence of a decode pass. Softmax weights α of each token, one row a q head, are pooled (max or
 * sum) over all q heads (rows = 1) or over each kv head's group (rows = n_kv_heads), or are left apart
 * (rows = n_heads). Any of the outputs may be NULL.
 */
struct skv_evidence {
	uint32_t rows;         /* 1, n_kv_heads or n_heads */
	bool sum;              /* sum instead of max */
	uint32_t token_stride; /* >= max_len, multiple of T */
	uint32_t page_stride;  /* >= pages of max_len, multiple of 4 */
	/* 16-byte aligned. Elements past the sequence's last page are left as they were. */
	float *token;          /* [seq][rows][token_stride]: pooled weight; 0 in holes, and from len on */
	float *page;           /* [seq][rows][page_stride]: sum of the pooled weights of the page */
	float *lse;            /* [seq][n_heads]: log Σ exp(scale·q·k), natural logarithm */
};

/* A selection: ascending unit ids (pages or tokens), one list a sequence, or one a kv head or q head. */
struct skv_list {
	uint32_t rows;       /* lists a sequence: 1, n_kv_heads or n_heads */
	uint32_t stride;     /* elements reserved for a list */
	uint32_t *ids;       /* [seq][rows][stride] */
	uint32_t *count;     /* [seq][rows] */
	uint32_t most;       /* >= every count, for it shapes a launch; select() sets it */
	bool mapped;         /* rows = n_kv_heads: kv head h has list map[h], of a list's readers alone */
	uint8_t map[SKV_MAX_HEADS];
};

/* Which of a sequence's lists is its owner's number `row`: a sequence's only one, a kv head's or a q head's. */
SKV_INLINE uint32_t skv_list_row(const struct skv_list *l, uint32_t row)
{
	return l->mapped ? l->map[row] : row;
}

/* What a layer has looked at: a window, or a list. */
struct skv_seen {
	const struct skv_window *window; /* NULL: the list */
	const struct skv_list *list;
	bool tokens; /* units of the list: tokens, or pages */
};

/* Scratch of a call. Sized with skv_kernels.work_bytes; one call at a time may use it. */
struct skv_work {
	void *mem; /* 64-byte aligned; on a device: zeroed once, before its first use */
	size_t bytes;
	int threads;  /* OpenMP threads to use, >= 1 */
	void *stream; /* a device's: where to queue; NULL on the host */
};

struct skv_kernels {
	const char *name; /* "avx512", "avx2", "generic", "cuda" */

	/* NULL when the kernels support this shape (pool and layer aside), else what they expect instead. */
	const char *(*unsupported)(const struct skv_shape *);

	/*
	 * Scratch for calls of up to n_seqs sequences, n_rows query rows, max_len tokens, on `threads`
	 * threads; an upper bound for every function below.
	 */
	size_t (*work_bytes)(const struct skv_shape *, uint32_t n_seqs, uint32_t n_rows, uint32_t max_len,
	                     int threads);

	/*
	 * Write k and v rows into the pages of tokens len - n_q … len - 1, converted to the pool's dtype
	 * (round to nearest even; a NaN stays one).
	 */
	void (*append)(const struct skv_shape *, const struct skv_batch *, const void *k, const void *v,
	               const struct skv_work *);

	/*
	 * Copy whole pages, page src[i] to page dst[i] (copy-on-write of a shared page). dst and src are
	 * in host memory, read before this returns.
	 */
	void (*copy_pages)(const struct skv_shape *, const uint32_t *dst, const uint32_t *src, uint32_t n,
	                   const struct skv_work *);

	/*
	 * Decode (n_q = 1) over every resident token; `ev` may be NULL. out may be q, here and below. Without `out` (NULL)
	 * there is the evidence of tokens and pages alone: V is not used, and nothing counts as attended.
	 */
	void (*decode_dense)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                     const struct skv_evidence *ev, const struct skv_work *);

	/*
	 * Decode over the tokens that the window shows of a sequence, whatever is resident of them:
	 * [0, sinks) and [skv_window_start(w, len), len). The two may overlap; a token counts once.
	 */
	void (*decode_window)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                      const struct skv_window *, const struct skv_work *);

	/* Decode over the listed pages (tokens >= len do not count). None of them resident: zeros. */
	void (*decode_pages)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                     const struct skv_list *, const struct skv_work *);

	/* Decode over the listed tokens. */
	void (*decode_tokens)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                      const struct skv_list *, const struct skv_work *);

	/*
	 * Decode over tokens that the layer chooses itself: scores every resident key, fills `list` with the
	 * tokens that select() would take from the evidence of decode_dense, and attends to those. Of all
	 * others no V is read. Of `ev`, rows (not n_heads) and sum say how weights are pooled, and token (not NULL) is
	 * room, left with anything in it. Equal to decode_dense, select and decode_tokens up to the rounding
	 * of scores (on a device to 16 bits).
	 */
	void (*decode_chosen)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                      const struct skv_evidence *ev, const struct skv_select *, struct skv_list *list,
	                      const struct skv_work *);

	/*
	 * Make the bounds of the pages that tokens len - n_bounds … len - 1 lie in, each from all of the page's K
	 * rows up to len. So it does not matter how often, nor in how many calls. What is not resident, a page or
	 * the state page for it, is left out.
	 */
	void (*update_bounds)(const struct skv_shape *, const struct skv_batch *, const struct skv_work *);

	/*
	 * Score the pages of each sequence (n_q = 1) by their bounds, Σ_d max(q_d kmin_d, q_d kmax_d) of a q head:
	 * the most that q·k of one of its tokens can be. `pool` (enum skv_pool) says how the scores of the q heads
	 * of one row of `ev` (1, n_kv_heads or n_heads rows) become one; with SKV_POOL_MEAN_Q (not with n_heads
	 * rows) the mean of q over a kv head's group is scored, and the sum over kv heads is taken. Fills ev->page;
	 * a page that is not resident, or has no bounds, has -infinity.
	 */
	void (*score_pages)(const struct skv_shape *, const struct skv_batch *, const void *q, uint32_t pool,
	                    const struct skv_evidence *ev, const struct skv_work *);

	/*
	 * Causal attention of n_q >= 1 rows a sequence over every resident token up to each row's own.
	 * A row's bits do not depend on how a prompt is cut into calls; but on a device a value of K or V
	 * that is not finite may show in the rows of up to 63 tokens before it.
	 */
	void (*prefill_dense)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                      const struct skv_work *);

	/*
	 * Fill `list` from the layer's evidence, as struct skv_select says: from `ev->page`, or with `tokens`
	 * from `ev->token`. list->rows is ev->rows and its stride at least the units of max_len. Where
	 * several have the score of the last one chosen, the lower ids win. A score that is a NaN or
	 * -infinity is never chosen: then there may be fewer. May overwrite scores.
	 */
	void (*select)(const struct skv_shape *, const struct skv_batch *, const struct skv_evidence *ev,
	               bool tokens, const struct skv_select *, struct skv_list *list, const struct skv_work *);

	/*
	 * The same with rows of ev->token for each q head and one list a sequence: in place of the best of one row
	 * those that come first when all rows name their best, then their second best, and so on.
	 */
	void (*select_union)(const struct skv_shape *, const struct skv_batch *, const struct skv_evidence *ev,
	                     const struct skv_select *, struct skv_list *list, const struct skv_work *);

	/*
	 * Attention recall (DELTA, Eq. 9): how much of the softmax weight is on what a layer looked at, the mean over q
	 * heads, into ret[seq]. `ev` is of decode_dense over the same sequences, with `sum`: rows 1 for a window, else
	 * the list's rows; its token weights for a window and a list of tokens, its pages for one of pages.
	 */
	void (*recall)(const struct skv_shape *, const struct skv_batch *, const struct skv_evidence *ev,
	               const struct skv_seen *, float *ret, const struct skv_work *);
};

/* What a selection takes of n units: the first, the last, and so many of those between. */
struct skv_choice {
	uint32_t n, pin, recent, want;
};

SKV_INLINE struct skv_choice skv_choice_of(const struct skv_select *s, uint32_t n)
{
	const uint32_t k = skv_budget_of(s->budget, n, s->floor);
	struct skv_choice x = {n, s->pin, s->recent ? s->recent : k / 8, 0};

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

/* The sequence's table of the call's layer. */
SKV_INLINE const skv_pte *skv_layer_table(const struct skv_shape *sh, const struct skv_kseq *s)
{
	return s->table + (size_t)sh->layer * s->layer_stride;
}

/* And that of its state pages. */
SKV_INLINE const skv_pte *skv_state_table(const struct skv_shape *sh, const struct skv_kseq *s)
{
	return s->table + (size_t)sh->state * s->layer_stride;
}

/* Where a window over n tokens begins to be recent. */
SKV_INLINE uint32_t skv_window_start(const struct skv_window *w, uint32_t n)
{
	uint32_t size = skv_budget_of(w->budget, n, w->floor);
	uint32_t recent = size > w->sinks ? size - w->sinks : 1;

	return n > recent ? n - recent : 0;
}

/*
 * The host kernels for this processor: the best of avx512, avx2 and generic, or the one that `isa` names
 * (NULL or "": $SPARSEKV_ISA, else the best). NULL when the processor lacks it or the name is unknown.
 */
const struct skv_kernels *skv_kernels_host(const char *isa);

#ifdef __cplusplus
}
#endif
#endif
