/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/kernels.h - the attention kernels, one table of functions for every backend.
 *
 * A backend is a struct skv_kernels. All functions work on a batch of sequences of ONE layer, are deterministic (same
 * inputs, same backend: same bits, with any number of threads and any other sequences in the batch), make no system
 * call and no allocation, and keep no state: workspace comes from the caller. They trust their arguments; callers
 * check what came from elsewhere.
 *
 * Nothing returns an error. A shape that a backend does not take is refused in words by unsupported() and
 * unsupported_codec() before anything runs; errors of launching show at the device's wait() or check() (device.h).
 *
 * The structs are declared by feature: batch.h (shapes, sequences, memory), select.h (attention scores, index lists,
 * page bounds), evict.h (slots, slot metadata), compress.h (codes), prefill.h (sparse prefill). T = SKV_PAGE_TOKENS.
 */
#ifndef SKV_KERNELS_H
#define SKV_KERNELS_H

#include "kernels/batch.h"

#ifdef __cplusplus
extern "C" {
#endif

struct skv_window; /* policy.h */
struct skv_select;

struct skv_scores; /* select.h */
struct skv_index_list;
struct skv_attended;

struct skv_slot_mapping; /* evict.h */
struct skv_rank;
struct skv_evict_rule;
struct skv_head_budget_rule;
struct skv_touch_rule;

struct skv_decompressed; /* compress.h */

struct skv_sparse; /* prefill.h */
struct skv_tile_lists;

struct skv_kernels {
	const char *name; /* "avx512", "avx2", "generic", "cuda" */

	/* NULL when the kernels support this shape (pool and layer aside), else what they expect instead. */
	const char *(*unsupported)(const struct skv_shape *);

	/*
	 * Bytes of workspace for calls of up to n_seqs sequences, n_rows query rows, max_len tokens, on `threads`
	 * threads: an upper bound for every function below but sparse prefill.
	 */
	size_t (*workspace_bytes)(const struct skv_shape *, uint32_t n_seqs, uint32_t n_rows, uint32_t max_len,
	                     int threads);

	/* ---- rows ---------------------------------------------------------------------------- */

	/*
	 * Write rows of k and v into the pages of tokens len - n_q … len - 1, or (n_q = 1, mapping not NULL) into the
	 * slots that the mapping names, converted to the pool's dtype (round to nearest even; a NaN stays one). With
	 * shape.sketch_bits, and no mapping, sketches are made as update_sketches() makes them.
	 */
	void (*append)(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *, const void *k,
	               const void *v, const struct skv_workspace *);

	/*
	 * Copy whole pages, page src[i] to page dst[i] (copy-on-write of a shared page). dst and src are
	 * in host memory, read before this returns.
	 */
	void (*copy_pages)(const struct skv_shape *, const uint32_t *dst, const uint32_t *src, uint32_t n,
	                   const struct skv_workspace *);

	/* ---- decode: n_q = 1, out may be q ---------------------------------------------------- */

	/*
	 * Attend to every resident token; `scores` may be NULL. Without `out` (NULL) it computes the scores of tokens
	 * and pages alone: V is not read, and nothing counts as attended to. Quantized tokens are dequantized on the
	 * fly.
	 */
	void (*decode_dense)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                     const struct skv_scores *scores, const struct skv_workspace *);

	/*
	 * Attend to the resident tokens of a window (StreamingLLM): [0, sinks) and [skv_window_start(w, len), len).
	 * The two may overlap; a token counts once.
	 */
	void (*decode_window)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                      const struct skv_window *, const struct skv_workspace *);

	/* Attend to the listed pages (tokens >= len do not count). None of them resident: zeros. */
	void (*decode_pages)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                     const struct skv_index_list *, const struct skv_workspace *);

	/* Attend to the listed tokens. */
	void (*decode_tokens)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                      const struct skv_index_list *, const struct skv_workspace *);

	/*
	 * Top-k attention of a layer that is its own source: scores every resident key, fills `list` with the tokens
	 * that select() would take by the scores of decode_dense, and attends to those. V of other tokens is not
	 * read. Of `scores`, rows (not n_heads) and sum say how weights are reduced, and token (not NULL) is
	 * workspace, left with undefined contents. Equal to decode_dense, select and decode_tokens up to rounding (on a
	 * device of the scores to 16 bits, and of weights, of which those are equal that select_sketches() has as equal).
	 */
	void (*decode_topk)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                      const struct skv_scores *scores, const struct skv_select *, struct skv_index_list *list,
	                      const struct skv_workspace *);

	/* ---- selection --------------------------------------------------------------------------- */

	/*
	 * Make the bounds of the pages that tokens len - n_state … len - 1 lie in, each from all of the page's K
	 * rows up to len: the result does not depend on how often, nor in how many calls, it is done. A page that is
	 * not resident, or whose state page is not, is left out. With slots (n_q = 1): of each kv head the page that
	 * its new token's slot is in, from the rows up to the slot; if n_state is above 1 also the other pages of
	 * those tokens' slots, which are full.
	 */
	void (*update_bounds)(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *,
	                      const struct skv_workspace *);

	/*
	 * Score the pages of each sequence (n_q = 1) by their bounds (Quest): Σ_d max(q_d kmin_d, q_d kmax_d), an
	 * upper bound of q·k over the page's tokens. `reduce` (enum skv_reduce) says how the scores of the q heads of
	 * one row of `scores` (1, n_kv_heads or n_heads rows) become one; with SKV_REDUCE_MEAN_Q (not with n_heads
	 * rows) the mean of q over each GQA group is scored, and the scores are summed over kv heads. Fills
	 * scores->page; a page that is not resident, or has no bounds, has -infinity.
	 */
	void (*score_pages)(const struct skv_shape *, const struct skv_batch *, const void *q, uint32_t reduce,
	                    const struct skv_scores *scores, const struct skv_workspace *);

	/*
	 * Make the sketches of tokens len - n_state ... len - 1, and of all tokens when the first T are complete with these.
	 * Pages and state pages that are not resident are left out.
	 */
	void (*update_sketches)(const struct skv_shape *, const struct skv_batch *, const struct skv_workspace *);

	/*
	 * Score the tokens of each sequence (n_q = 1) by their sketches: fills scores->token and scores->page, either of which may
	 * be NULL, as decode_dense does, with the softmax weights that q gives the sketches of the keys, whose denominators are
	 * estimated from a sample (skv_sketch_pair()). Tokens that are not resident have weight 0, and so have those from len on
	 * up to a whole page. Sequences of fewer than T tokens have weight 1 for each. q is rounded to 8 bits.
	 */
	void (*score_sketches)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_scores *,
	                       const struct skv_workspace *);

	/*
	 * score_sketches() and a select() of tokens by its weights in one, without these in memory: rows = n_kv_heads, `sum`
	 * as in struct skv_scores. Weights below 2^-31 of 1 / len are equal, as are those above 2^33, and those that differ by less
	 * than 2^-10 in log2. NULL: there is none, and the two are to be called.
	 */
	void (*select_sketches)(const struct skv_shape *, const struct skv_batch *, const void *q, bool sum,
	                        const struct skv_select *, struct skv_index_list *, const struct skv_workspace *);

	/*
	 * scores->page from scores->token, summed as decode_dense() does: of token weights that other ranks have had a part in
	 * since. Those of the sequence's last page count from its end on, and must be 0.
	 */
	void (*sum_pages)(const struct skv_batch *, const struct skv_scores *, const struct skv_workspace *);

	/*
	 * Fill `list` with the top-k by the layer's scores, as struct skv_select says: by scores->page, or with
	 * `tokens` by scores->token. list->rows is scores->rows, or n_kv_heads where it unites those of the q heads
	 * (scores->rows = n_heads), and its stride at least the units of max_len. Ties go
	 * to the lower ids. A score that is a NaN or -infinity is never selected: then there may be fewer. May
	 * overwrite scores.
	 */
	void (*select)(const struct skv_shape *, const struct skv_batch *, const struct skv_scores *scores,
	               bool tokens, const struct skv_select *, struct skv_index_list *list, const struct skv_workspace *);

	/*
	 * select() with rows of scores->token for each q head and one list a sequence: selected are the tokens that
	 * come first when all heads name their best one, then their second best, and so on (LessIsMore's union of
	 * heads).
	 */
	void (*select_union)(const struct skv_shape *, const struct skv_batch *, const struct skv_scores *scores,
	                     const struct skv_select *, struct skv_index_list *list, const struct skv_workspace *);

	/*
	 * Attention recall (DELTA, Eq. 9): which share of the softmax weight is on what a layer attended to, the mean
	 * over q heads, into ret[seq]. `scores` is of decode_dense over the same sequences, with `sum`: rows 1 for a
	 * window, else the list's rows; its token weights for a window and a list of tokens, its page weights for a
	 * list of pages.
	 */
	void (*recall)(const struct skv_shape *, const struct skv_batch *, const struct skv_scores *scores,
	               const struct skv_attended *, float *ret, const struct skv_workspace *);

	/* ---- eviction ---------------------------------------------------------------------------- */

	/*
	 * Allocate a slot for the new token of each sequence (n_q = 1), and fill the entries [0, entries of len). The
	 * free ones among them, ascending, are targets: each gets the rows of a retained entry beyond them, ascending
	 * - pages also with their bounds, where state pages are resident -, and the last target left is for the new token. With granularity T
	 * that is so if the token begins a page, (len - 1) % T = 0 (of pos (n_tokens - 1) / T); else the token goes
	 * into the partial page, that of the largest pos. A new entry's score is 0. Writes all metadata of `set` up
	 * to the end of the page of `len`, entries beyond those of `len` as free, and mapping->slot. With n_q = 0
	 * there is no new token, and as many entries are free as are retained beyond them.
	 */
	void (*alloc_slots)(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *,
	              const struct skv_workspace *);

	/*
	 * Move the partial page to the tail. Granularity T, n_q = 0, all entries of `len` retained: where the partial
	 * page (of the largest pos) is not the last one, copy the last one and it, with their bounds, to the two
	 * entries that follow, where pages must be, and free their own. The next alloc_slots() with n_q = 0 then puts
	 * it last, and slots [0, len) have no gap, as a prompt, or another way to attend, needs. Writes the metadata
	 * of `set` of two entries more.
	 */
	void (*move_partial_page)(const struct skv_shape *, const struct skv_batch *, const struct skv_workspace *);

	/*
	 * Slots of a prompt: carry the metadata of [0, len - n_q), all retained and without gaps, over into `set` and
	 * make that of the prompt's n_q new tokens, score 0. They lie in order: mapping->slot is len - 1, for a
	 * prompt of one token. A page that begins with a token has the pos of this token's page.
	 */
	void (*alloc_prompt_slots)(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *,
	                     const struct skv_workspace *);

	/*
	 * Initial metadata of a sequence that has none, as of the last commit: into the set that is not `set`, for
	 * the entries of slot_end. Slot x has token x where its page is resident, else it is free.
	 */
	void (*init_slot_meta)(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *,
	                      const struct skv_workspace *);

	/*
	 * Add scores->token (rows = n_kv_heads, sums), over the group's size, to the accumulated scores of [0, len), as
	 * kseq.accumulate says (H2O). All of them become active.
	 */
	void (*accumulate_scores)(const struct skv_shape *, const struct skv_batch *, const struct skv_scores *scores,
	              const struct skv_workspace *);

	/*
	 * The same with weights that are computed here: of a softmax over the listed slots alone (rows = n_kv_heads),
	 * all of them active. The others' scores stay.
	 */
	void (*accumulate_list)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_index_list *,
	                   const struct skv_workspace *);

	/*
	 * The last min(window, n_q) rows of each prompt add to the accumulated scores (SnapKV's observation window),
	 * all rows if window is 0: to each token the row's softmax weight on it, over the tokens up to the row's own,
	 * the mean over the GQA group. A prompt that fills the window replaces earlier scores. All tokens become
	 * active.
	 */
	void (*accumulate_prompt)(const struct skv_shape *, const struct skv_batch *, const void *q, uint32_t window,
	                     const struct skv_workspace *);

	/*
	 * Fill rank [seq][n_kv_heads][stride] of [0, len) where kseq.n_retained is below len, or kseq.n_active is not
	 * UINT32_MAX. Granularity 1, no entry evicted. An inactive entry counts as 0 for its neighbours, and ranks
	 * -infinity.
	 */
	void (*rank_tokens)(const struct skv_shape *, const struct skv_batch *, const struct skv_rank *, float *rank,
	             uint32_t stride, const struct skv_workspace *);

	/*
	 * Where kseq.n_retained is below the entries of len, mark the others evicted, by `rank` or, NULL, by their
	 * scores.
	 */
	void (*evict)(const struct skv_shape *, const struct skv_batch *, const struct skv_evict_rule *, const float *rank,
	             uint32_t stride, const struct skv_workspace *);

	/*
	 * Where kseq.n_active is not UINT32_MAX, deactivate all entries but the chosen ones, granularity 1; after
	 * evict().
	 */
	void (*allocate_head_budgets)(const struct skv_shape *, const struct skv_batch *, const struct skv_head_budget_rule *, const float *rank,
	              uint32_t stride, const struct skv_workspace *);

	/* Fill `list` (rows = n_kv_heads) with the active slots of [0, len), ascending, and set list->max_count. */
	void (*list_active)(const struct skv_shape *, const struct skv_batch *, struct skv_index_list *list,
	                    const struct skv_workspace *);

	/*
	 * Granularity T (RaaS): the pages that matter by their scores scores->page (rows = n_heads), and one that
	 * begins with this token, get n_tokens as their score. Fills `list` (rows = n_kv_heads) with the pages to
	 * attend to, the partial one last, and sets list->max_count and list->last_partial.
	 */
	void (*touch_pages)(const struct skv_shape *, const struct skv_batch *, const struct skv_scores *scores,
	              const struct skv_touch_rule *, struct skv_index_list *list, const struct skv_workspace *);

	/* ---- prefill: out may be q ------------------------------------------------------------------ */

	/*
	 * Causal attention of n_q >= 1 rows a sequence to every resident token up to each row's own.
	 * A row's bits do not depend on how a prompt is chunked; but on a device a value of K or V
	 * that is not finite may show in the rows of up to 63 tokens before it.
	 */
	void (*prefill_dense)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                      const struct skv_workspace *);

	/*
	 * Causal attention as struct skv_sparse says. A dense row has the bits of prefill_dense; and no row's bits
	 * depend on how a prompt is chunked, but for values that are not finite, as above. save_queries() and the
	 * functions that fill lists come before it, for they read q, too.
	 */
	void (*prefill_sparse)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                       const struct skv_sparse *, const struct skv_workspace *);

	/*
	 * Bytes of workspace for prefill_sparse and the functions below it, up to minference_lists, on batches within
	 * these bounds; bounds->seq is not read.
	 */
	size_t (*prefill_sparse_bytes)(const struct skv_shape *, const struct skv_batch *bounds,
	                               const struct skv_sparse *, int threads);

	/*
	 * For each sequence whose prompt continues: save the queries that later calls need, from q or from the last
	 * call's set.
	 */
	void (*save_queries)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
	                     const struct skv_workspace *);

	/*
	 * Kascade (3.4): of the resident tokens before the tile, [0, x), x a multiple of sparse->tile, the best
	 * skv_budget_of(top, x, floor) by the softmax weights over [0, x) of the tile's representative row, summed
	 * over the GQA group; ties go to the lower ones. rows = n_kv_heads, unit 1.
	 */
	void (*kascade_lists)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
	                  struct skv_budget top, uint32_t floor, const struct skv_tile_lists *ret, const struct skv_workspace *);

	/*
	 * HiP: see SKV_PREFILL_HIP. Ties go to the lower chunk, and to the first half. A token that is not resident
	 * scores
	 * -infinity, and a chunk whose representative does is not chosen. rows = n_heads, unit 8.
	 */
	void (*hip_lists)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
	                    const uint32_t keep[], const struct skv_tile_lists *ret, const struct skv_workspace *);

	/*
	 * MInference: see SKV_PREFILL_MINFERENCE; ties go to the lower ones, and what is not resident weighs nothing.
	 * Candidates are the tokens that a segment's dense rows attend to, and as many distances; a distance touches
	 * the blocks that it leads to from any of the tile's 64 positions. rows = n_heads; `blocks` of 64 tokens, and
	 * `tokens` before the tile that are not in those. Lists of tiles that end before the last of a segment's
	 * dense rows may be left empty.
	 */
	void (*minference_lists)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
	                   uint32_t vertical, uint32_t slash, const struct skv_tile_lists *blocks, const struct skv_tile_lists *tokens,
	                   const struct skv_workspace *);

	/* ---- compression ----------------------------------------------------------------------------- */

	/* NULL when the kernels below take the shape's codec, else what they expect instead. */
	const char *(*unsupported_codec)(const struct skv_shape *);

	/*
	 * x of the tokens [n_compressed, compress_to) of each sequence, which are rows in pages, as a rank has it: x[n][max_compress][d], d
	 * skv_codec_dims(), with -INFINITY in the elements of other ranks' heads, and in rows of no token. The codec is latent.
	 */
	void (*gather_tokens)(const struct skv_shape *, const struct skv_batch *, float *x, const struct skv_workspace *);

	/*
	 * Compress tokens [n_compressed, compress_to) of each sequence, which are rows in pages: write their records,
	 * in n_layers layers that the same batch holds for and whose codecs agree in all but pointers. If nothing was
	 * compressed yet, from codec->first on, and the tokens before it become references, too. `x`: NULL; or with latent codecs of
	 * several ranks, of one layer, what gather_tokens() gave all of them, reduced to the maximum.
	 */
	void (*compress)(const struct skv_shape *, uint32_t n_layers, const struct skv_batch *, const float *x,
	                 const struct skv_workspace *);

	/*
	 * Make rows of a layer's tokens, compressed or not, as attention takes them: of the listed tokens in their
	 * order (rows = 1; a list ends at the first that is not below len), or with `list` NULL of all of [0, len).
	 * With to->pool NULL (and no list): of the compressed tokens, each where its page says.
	 */
	void (*decompress)(const struct skv_shape *, const struct skv_batch *, const struct skv_index_list *,
	                const struct skv_decompressed *to, const struct skv_workspace *);

	/* Does decode_latent() take this shape, with its codec? NULL: it takes none. */
	bool (*fuses_latent)(const struct skv_shape *);

	/*
	 * Fused decode over the listed tokens (rows = 1), compressed or not. Equal to decompress() and decode_dense()
	 * over its rows, up to rounding; but no decompressed row goes to memory.
	 */
	void (*decode_latent)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                     const struct skv_index_list *, const struct skv_workspace *);

	/* ---- rows of other kinds ----------------------------------------------------------------------- */

	/*
	 * For kernels that take fp32 rows without gaps alone, the host's; else NULL. n rows of `width` elements, a
	 * multiple of 16, of a dtype (enum skv_dtype) and `stride` elements apart become such rows, or are made from
	 * them, rounded to nearest even (a NaN stays one).
	 */
	void (*load_rows)(uint32_t dtype, uint32_t n, uint32_t width, uint32_t stride, const void *from, float *to,
	                  const struct skv_workspace *);
	void (*store_rows)(uint32_t dtype, uint32_t n, uint32_t width, uint32_t stride, const float *from, void *to,
	                   const struct skv_workspace *);
};

/*
 * The host kernels for this processor: the best of avx512, avx2 and generic, or the one that `isa` names
 * (NULL or "": $SPARSEKV_ISA, else the best). NULL when the processor lacks it or the name is unknown.
 */
const struct skv_kernels *skv_kernels_host(const char *isa);

#ifdef __cplusplus
}
#endif
#endif
