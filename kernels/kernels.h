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
 *
 * Slots. Keys carry their position, so attention does not ask in which order rows lie. A layer that evicts single tokens
 * keeps those that live in slots: slot x of kv head h is row x % T of page x / T of the layer's table, and which token
 * of the sequence is there differs from head to head. A step attends to slots [0, len), all of which live: so the same
 * kernels serve. A layer that evicts pages of single kv heads does the same with whole pages. One of them - a token
 * slot, or a kv head's share of a page - is a unit. All heads have the same number of them.
 *
 * Notes. What is known of a unit is in a page of the same pool, too, named by the layer's table of notes: two sets, of
 * which set `epoch & 1` is what the commit `epoch` made true. A step reads the last commit's and writes the other one,
 * so it can be repeated. A victim is only marked in the notes that the step writes: its rows stay until the next step,
 * whose commit does not need them any more.
 */
#ifndef SKV_KERNELS_H
#define SKV_KERNELS_H

#include <stdbool.h>
#include <sparsekv/policy.h>
#include <sparsekv/types.h>
#include "kernels/codes.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What all sequences of a call have in common. */
struct skv_shape {
	uint32_t n_heads, n_kv_heads, head_dim;
	uint32_t dtype;    /* enum skv_dtype of the pool */
	uint32_t io_dtype; /* enum skv_dtype of q, k, v and out */
	uint32_t layer;    /* whose tables are meant */
	uint32_t state;    /* number of the table of the layer's state pages; see bounds */
	uint32_t notes;    /* and of the pages of its notes */
	uint32_t codes;    /* numbers of the tables of codes and of references; see codes.h */
	uint32_t refs;
	uint32_t kept; /* and of the table of what prompts keep; see struct skv_sparse */
	const struct skv_codes *code; /* host memory, read at the call; NULL: all tokens are rows */
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

	/* of layers that keep slots, where `len` counts slots */
	uint32_t all;    /* tokens of the sequence: the position of the last query row is all - 1 */
	uint32_t extent; /* slots from there on are free as of the last commit; at least len - n_q */
	uint32_t set;    /* of notes that this step writes: 0 or 1 */
	uint32_t tally;  /* enum skv_tally: does this step's query vote? */
	uint32_t keep;   /* units that live after this step; none goes if there are no more */
	uint32_t pinned; /* units with a pos below this never go */
	uint32_t awake;  /* units of a kv head that are awake after this step, the mean of all heads; UINT32_MAX: as they are */

	/* of layers that pack */
	uint32_t coded; /* tokens before this are packed as of the last commit, but for code->first; 0: none */
	uint32_t pack;  /* and with this step's: none if not above `coded` */

	/* of prompts that do not attend densely: see struct skv_sparse */
	uint32_t prompt; /* position of the first row of the prompt that the rows are of: at most len - n_q */
	uint32_t dense;  /* rows from this position on are dense, the prompt's tail; UINT32_MAX: none */
	uint32_t later;  /* other than 0: the prompt goes on in another call, for which things are kept in `set` */
};

enum skv_tally { SKV_TALLY_NONE, SKV_TALLY_ADD, SKV_TALLY_ANEW /* forgets earlier votes */ };

/* The sequences of a call, and bounds on them: what is queued with them may be replayed within them. */
struct skv_batch {
	const struct skv_kseq *seq; /* [n] */
	uint32_t n;
	uint32_t max_len; /* >= every len */
	uint32_t max_q;   /* >= every n_q */
	uint32_t max_bounds; /* >= every n_bounds */
	uint32_t max_pack;   /* >= pack - coded of every sequence that packs */
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
	/*
	 * Of pages: the last one listed is being filled and has (len - 1) % T + 1 tokens; all others are whole. Then ids
	 * need not ascend.
	 */
	bool filling;
	bool mapped;         /* rows = n_kv_heads: kv head h has list map[h], of a list's readers alone */
	uint8_t map[SKV_MAX_HEADS];
};

/* Which of a sequence's lists is its owner's number `row`: a sequence's only one, a kv head's or a q head's. */
SKV_INLINE uint32_t skv_list_row(const struct skv_list *l, uint32_t row)
{
	return l->mapped ? l->map[row] : row;
}

/*
 * What is known of a unit. `pos`: which token of the sequence it is (which page, if units are pages); with
 * SKV_NOTE_GONE it is to live no longer, SKV_NOTE_FREE is no unit at all. `value`: its score, or the length of the
 * sequence when it last mattered. With its sign set (-0, too) the unit sleeps: it is there, and is not attended to where
 * heads share a layer's budget (allot). A vote of attention to all units, or a prompt, wakes it.
 * The notes page i of a layer has units [i U, (i + 1) U), U = skv_notes_of_page(); within it kv head h has an
 * n_kv_heads-th of the bytes: U notes of set 0, then U of set 1.
 */
struct skv_note {
	uint32_t pos;
	float value;
};
#define SKV_NOTE_GONE (1u << 31)
#define SKV_NOTE_FREE 0xffffffffu

/* Where a step's new tokens go in a layer that keeps slots. */
struct skv_slots {
	uint32_t unit;  /* tokens of a unit: 1 or T */
	uint32_t *slot; /* [seq][n_kv_heads]: the slot of the new token; place() fills it in */
};

/* How values become ranks, by which keep() chooses. */
struct skv_rank {
	uint32_t smooth; /* odd; above 1: the mean of values at so many positions around; what does not live counts 0 */
	/*
	 * Above 0: lambda * importance - (1 - lambda) * redundancy, as R-KV has it. Importance is the (smoothed) value over
	 * the sum of a head's, 0 if that is 0. Redundancy is the softmax, over a head's tokens, of the mean cosine
	 * similarity of the key to all of them (itself too, which is the same for all; a key of zeros is similar to none).
	 * Left out of R-KV is that of many keys that are much alike the latest few do not count: it takes all pairs.
	 */
	float lambda;
};

/*
 * Who stays: the latest, the pinned, the best by rank, in this order, until there are `keep`; of equals the earlier one.
 * A NaN counts as -infinity.
 */
struct skv_keep_by {
	uint32_t unit;
	struct skv_budget recent; /* see skv_recent_of(); none if zero */
	bool old_first; /* of equals the later one stays */
	bool forget;    /* values of those that stay become 0 */
};

/* How many of the latest stay where `keep` do: `recent` is of the next step, whose new unit is one of them. */
SKV_INLINE uint32_t skv_recent_of(const struct skv_keep_by *by, uint32_t keep)
{
	const uint32_t n = skv_budget_of(by->recent, keep + 1, 0);

	return n ? n - 1 : 0;
}

/*
 * How n_kv_heads * awake units are shared by a layer's heads: first the latest of each head, then the best of each by
 * rank until it has skv_sure_of(), then the best of all, until there are so many; of equals the one of the lower pos, then
 * of the lower head. Who slept is not chosen.
 */
struct skv_allot {
	uint32_t recent; /* of a head: the latest so many, of the next step's units: its new one is one of them */
	float sure;      /* share of the mean that a head has anyhow, likewise */
};

/* Units that each head has awake whatever the others', where the mean is `awake`. */
SKV_INLINE uint32_t skv_sure_of(const struct skv_allot *a, uint32_t awake)
{
	const uint32_t recent = a->recent ? a->recent - 1 : 0, sure = (uint32_t)(a->sure * (float)(awake + 1));
	const uint32_t n = sure > recent ? sure - 1 : recent;

	return n < awake ? n : awake;
}

/* When a page matters: its weight w is the mean over the group of the softmax of scale * score over all pages. */
struct skv_stamp {
	float alpha; /* w above this ... */
	float ratio; /* ... or, above 0, one of the best skv_budget_of({ratio}, pages, 1) by w; of equals the earlier one */
	float scale;
	/*
	 * Unless zero: of pinned pages the list has the best skv_budget_of(pinned, n, pinned_floor) by w, n the pages of `all`;
	 * of equals the earlier ones. The one being filled does not compete: it is listed anyhow.
	 */
	struct skv_budget pinned;
	uint32_t pinned_floor;
};

/* What a layer has looked at: a window, or a list. */
struct skv_seen {
	const struct skv_window *window; /* NULL: the list */
	const struct skv_list *list;
	bool tokens; /* units of the list: tokens, or pages */
};

/*
 * Rows that are rebuilt beside the layer's own pages: sequence i has pages [i * pages, (i + 1) * pages) of `pool`, rows in
 * them as in any page.
 */
struct skv_rebuilt {
	uint8_t *pool;        /* NULL: into the pages that the layer's own table has for packed tokens */
	uint32_t pages;       /* of a sequence */
	struct skv_kseq *seq; /* [n], filled in for attention over them: table, of any layer, and len; nothing is packed */
	skv_pte *table;       /* [n][pages], filled in */
};

/* How rows of prompts attend that are not all dense, and lists for it: sparse.h. */
struct skv_sparse;
struct skv_tiles;

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
	 * Write k and v rows into the pages of tokens len - n_q … len - 1, or (n_q = 1, slots not NULL) into the slots,
	 * converted to the pool's dtype (round to nearest even; a NaN stays one).
	 */
	void (*append)(const struct skv_shape *, const struct skv_batch *, const struct skv_slots *, const void *k,
	               const void *v, const struct skv_work *);

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
	 * the state page for it, is left out. With slots (n_q = 1): of each kv head the page that its slot is in, from
	 * the rows up to the slot; if n_bounds is above 1 also the others that those tokens' slots are in, which are whole.
	 */
	void (*update_bounds)(const struct skv_shape *, const struct skv_batch *, const struct skv_slots *,
	                      const struct skv_work *);

	/*
	 * Score the pages of each sequence (n_q = 1) by their bounds, Σ_d max(q_d kmin_d, q_d kmax_d) of a q head:
	 * the most that q·k of one of its tokens can be. `pool` (enum skv_reduce) says how the scores of the q heads
	 * of one row of `ev` (1, n_kv_heads or n_heads rows) become one; with SKV_REDUCE_MEAN_Q (not with n_heads
	 * rows) the mean of q over a kv head's group is scored, and the sum over kv heads is taken. Fills ev->page;
	 * a page that is not resident, or has no bounds, has -infinity.
	 */
	void (*score_pages)(const struct skv_shape *, const struct skv_batch *, const void *q, uint32_t pool,
	                    const struct skv_evidence *ev, const struct skv_work *);

	/*
	 * Make room for the new token of each sequence (n_q = 1) and have units [0, units of len) all live. The free units
	 * below, ascending, are targets: each gets the rows of a live unit from there on, ascending - with units of T tokens
	 * also its bounds, where state pages are resident -, and the last one that is left is for the new token: with units
	 * of T tokens if a page begins with it, (len - 1) % T = 0 (of pos (all - 1) / T), else it goes on in the one of the
	 * largest pos. A new unit's value is 0. Writes all notes of `set` up to the end of the page of `len`, beyond the units
	 * of `len` as free, and slots->slot. With n_q = 0 there is no new token, and as many are free as live from there on.
	 */
	void (*place)(const struct skv_shape *, const struct skv_batch *, const struct skv_slots *,
	              const struct skv_work *);

	/*
	 * Units of T tokens, n_q = 0, all of `len` alive: where the page being filled (of the largest pos) is not the last
	 * one, copy the last one and it, with their bounds, to the two units that follow, where pages must be, and leave
	 * their own free. So the next place() with n_q = 0 puts it last, and slots [0, len) have no gap: what a prompt, or
	 * another way to attend, asks for. Writes the notes of `set` of two units more.
	 */
	void (*lift)(const struct skv_shape *, const struct skv_batch *, const struct skv_work *);

	/*
	 * Carry the notes of [0, len - n_q), which all live and have no gap, over into `set` and make those of a prompt's n_q
	 * new tokens, value 0. They lie in order: slots->slot is len - 1, for a prompt of one token. A page that begins with
	 * a token has the pos of this token's page.
	 */
	void (*place_prompt)(const struct skv_shape *, const struct skv_batch *, const struct skv_slots *,
	                     const struct skv_work *);

	/*
	 * Notes of a sequence that has none, as of the last commit: into the set that is not `set`, of the units of `extent`.
	 * Slot x has token x where the table has its page, else it is free.
	 */
	void (*note_resident)(const struct skv_shape *, const struct skv_batch *, const struct skv_slots *,
	                      const struct skv_work *);

	/*
	 * Add ev->token (rows = n_kv_heads, sums), over the group's size, to the values of [0, len), as kseq.tally says. All
	 * of them are awake then.
	 */
	void (*tally)(const struct skv_shape *, const struct skv_batch *, const struct skv_evidence *ev,
	              const struct skv_work *);

	/*
	 * The same with weights that are made here: of a softmax over the listed slots alone (rows = n_kv_heads), which all
	 * are awake. The others' values stay.
	 */
	void (*tally_list)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_list *,
	                   const struct skv_work *);

	/*
	 * The last min(window, n_q) rows of each prompt vote, all of them if window is 0: the mean over the group of a row's
	 * softmax weights on the tokens up to its own is added to their values. With a window that the rows fill earlier
	 * votes are forgotten first. All of them are awake then.
	 */
	void (*tally_prompt)(const struct skv_shape *, const struct skv_batch *, const void *q, uint32_t window,
	                     const struct skv_work *);

	/*
	 * Fill rank [seq][n_kv_heads][stride] of [0, len) where kseq.keep is below len, or kseq.awake is not UINT32_MAX; units
	 * are tokens, none of them gone. Who sleeps counts 0, and has -infinity.
	 */
	void (*rank)(const struct skv_shape *, const struct skv_batch *, const struct skv_rank *, float *rank,
	             uint32_t stride, const struct skv_work *);

	/* Where kseq.keep is below the units of len, mark those that go, by `rank` or, NULL, by their values. */
	void (*keep)(const struct skv_shape *, const struct skv_batch *, const struct skv_keep_by *, const float *rank,
	             uint32_t stride, const struct skv_work *);

	/* Where kseq.awake is not UINT32_MAX, have all but those that are chosen sleep, of units of a token; after keep(). */
	void (*allot)(const struct skv_shape *, const struct skv_batch *, const struct skv_allot *, const float *rank,
	              uint32_t stride, const struct skv_work *);

	/* Fill `list` (rows = n_kv_heads) with the slots of [0, len) that are awake, ascending, and set list->most. */
	void (*list_awake)(const struct skv_shape *, const struct skv_batch *, struct skv_list *list, const struct skv_work *);

	/*
	 * Units are pages: those that matter by their scores ev->page (rows = n_heads), and one that begins with
	 * this token, get the value `all`. Fills `list` (rows = n_kv_heads) with the pages to attend to, the one being
	 * filled last, and sets list->most and list->filling.
	 */
	void (*stamp)(const struct skv_shape *, const struct skv_batch *, const struct skv_evidence *ev,
	              const struct skv_stamp *, struct skv_list *list, const struct skv_work *);

	/*
	 * Causal attention of n_q >= 1 rows a sequence over every resident token up to each row's own.
	 * A row's bits do not depend on how a prompt is cut into calls; but on a device a value of K or V
	 * that is not finite may show in the rows of up to 63 tokens before it.
	 */
	void (*prefill_dense)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                      const struct skv_work *);

	/*
	 * Causal attention as struct skv_sparse says; out may be q. A dense row has the bits of prefill_dense; and no row's
	 * bits depend on how a prompt is cut into calls, but for values that are not finite, as above. keep_queries() and
	 * what fills the lists come before, for they read q, too.
	 */
	void (*prefill_sparse)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                       const struct skv_sparse *, const struct skv_work *);

	/* Scratch for prefill_sparse and the functions below it, up to tile_lines, on batches within these bounds; batch->seq is not read. */
	size_t (*sparse_bytes)(const struct skv_shape *, const struct skv_batch *bounds, const struct skv_sparse *, int threads);

	/* Of each sequence with s->later: the queries that its later calls need, taken from q, or from the last call's set. */
	void (*keep_queries)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
	                     const struct skv_work *);

	/*
	 * Kascade: of tokens before the tile, [0, x), x a multiple of sparse->tile, the best skv_budget_of(top, x, floor), by
	 * the softmax weights over [0, x) of the row that speaks for the tile, summed over the group; of equals the
	 * lower ones, and none that is not resident. rows = n_kv_heads, unit 1.
	 */
	void (*tile_best)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
	                  struct skv_budget top, uint32_t floor, const struct skv_tiles *ret, const struct skv_work *);

	/*
	 * HiP: see SKV_PREFILL_HIP. Of equal chunks the lower ones, of equal halves the first. A token that is not resident
	 * scores -infinity, and a chunk whose representative does is not chosen. rows = n_heads, unit 8.
	 */
	void (*tile_stages)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
	                    const uint32_t keep[SKV_HIP_STAGES], const struct skv_tiles *ret, const struct skv_work *);

	/*
	 * MInference: see SKV_PREFILL_MINFERENCE; of equals the lower ones, and what is not resident weighs nothing. Candidates
	 * are the tokens that a segment's dense rows see, and as many distances; a distance touches what it leads to from all
	 * 64 positions of a tile. rows = n_heads; `units` of 64 tokens, `more` of tokens before the tile that are not in
	 * those. Lists of tiles that end before the last of a segment's dense rows may be left empty.
	 */
	void (*tile_lines)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
	                   uint32_t vertical, uint32_t slash, const struct skv_tiles *units, const struct skv_tiles *more,
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

	/* NULL when the kernels below take shape->code, else what they expect instead. */
	const char *(*unsupported_codes)(const struct skv_shape *);

	/*
	 * Pack tokens [coded, pack) of each sequence, which are rows in pages, in n_layers layers that the same batch holds
	 * for and whose codes agree in all but pointers: write their records. If nothing was packed, from code->first on,
	 * and the first ones become references, too.
	 */
	void (*pack)(const struct skv_shape *, uint32_t n_layers, const struct skv_batch *, const struct skv_work *);

	/*
	 * Rows of a layer as attention takes them, packed tokens or not: of the listed tokens in their order (rows = 1;
	 * from the first that is not below len on a list is over), or with `list` NULL of all of [0, len). With to->pool
	 * NULL (and no list): of the packed tokens, each where its page says.
	 */
	void (*rebuild)(const struct skv_shape *, const struct skv_batch *, const struct skv_list *,
	                const struct skv_rebuilt *to, const struct skv_work *);

	/* Does decode_codes() take this shape, with its code? NULL: it takes none. */
	bool (*fuses)(const struct skv_shape *);

	/*
	 * Decode over the listed tokens (rows = 1), packed or not. Equal to rebuild() and decode_dense() over what it made,
	 * up to rounding; but nothing that is rebuilt goes to memory.
	 */
	void (*decode_codes)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                     const struct skv_list *, const struct skv_work *);
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

/* And that of the pages of its notes. */
SKV_INLINE const skv_pte *skv_notes_table(const struct skv_shape *sh, const struct skv_kseq *s)
{
	return s->table + (size_t)sh->notes * s->layer_stride;
}

/* Units whose notes a page has: at least 64, as head_dim is at least 16. */
SKV_INLINE uint32_t skv_notes_of_page(const struct skv_shape *sh)
{
	return (uint32_t)(sh->page_bytes / sh->n_kv_heads / (2 * sizeof(struct skv_note)));
}

/* The note of unit u of kv head h, in a set. The page of the notes must be resident. */
SKV_INLINE struct skv_note *skv_note_at(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t h, uint32_t set,
                                        uint32_t u)
{
	const uint32_t each = skv_notes_of_page(sh);
	uint8_t *page = sh->pool + skv_pte_id(skv_notes_table(sh, s)[u / each]) * sh->page_bytes;

	return (struct skv_note *)(page + h * (sh->page_bytes / sh->n_kv_heads)) + set * each + u % each;
}

/* Elements of a token's K and V in all kv heads. */
SKV_INLINE uint32_t skv_token_dims(const struct skv_shape *sh)
{
	return 2 * sh->n_kv_heads * sh->head_dim;
}

/* Record `number` of those of `bytes` bytes in table `table` (sh->codes or sh->refs). Its page must be resident. */
SKV_INLINE uint8_t *skv_record_at(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t table, uint32_t bytes,
                                  uint32_t number)
{
	const uint32_t each = (uint32_t)(sh->page_bytes / bytes);
	const skv_pte *entries = s->table + (size_t)table * s->layer_stride;

	return sh->pool + skv_pte_id(entries[number / each]) * sh->page_bytes + (size_t)(number % each) * bytes;
}

/* Records in the layer's table of codes when the tokens before `coded` are packed; and bytes of one. */
SKV_INLINE uint32_t skv_code_records(const struct skv_shape *sh, uint32_t coded)
{
	return sh->code->kind == SKV_COMPRESS_QUANT ? coded / SKV_LOW_BLOCK * sh->n_kv_heads : skv_codes_before(sh->code, coded);
}
SKV_INLINE uint32_t skv_code_record_bytes(const struct skv_shape *sh)
{
	return sh->code->kind == SKV_COMPRESS_QUANT ? skv_low_of(sh->code, sh->head_dim).bytes : skv_code_bytes(sh->code);
}

/* Are the tokens of this page of K and V there, as rows or packed? */
SKV_INLINE bool skv_page_there(const struct skv_shape *sh, const struct skv_kseq *s, uint32_t page)
{
	return (sh->code && page * SKV_PAGE_TOKENS >= sh->code->first && page * SKV_PAGE_TOKENS < s->coded) ||
	       skv_pte_resident(skv_layer_table(sh, s)[page]);
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
