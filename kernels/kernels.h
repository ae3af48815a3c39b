/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/kernels.h - the attention kernels: one table of functions for every backend.
 *
 * A backend (the host's processor or CUDA) is a struct skv_kernels. All of its functions work on a batch of sequences
 * in ONE layer of the model. The functions are deterministic: the same inputs and backend give the same bits, with any
 * number of threads and any other sequences in the batch. The functions make no system calls and no allocations, and
 * keep no state: the caller passes a workspace. The functions trust their arguments: callers check untrusted input.
 *
 * No function returns an error code. unsupported() and unsupported_codec() tell before any kernel runs whether the
 * backend takes a shape; a refusal is a text. Errors of launches on a device are reported by the device's wait() or
 * check() (device.h).
 *
 * Each feature declares its structs in a header of its own: batch.h (shapes, sequences, memory), select.h (attention
 * scores, index lists, page bounds), evict.h (slots, slot metadata), compress.h (codes), prefill.h (sparse prefill). In
 * comments T stands for SKV_PAGE_TOKENS, the number of tokens in a page.
 */
#ifndef SKV_KERNELS_H
#define SKV_KERNELS_H

#include "kernels/batch.h"

#ifdef __cplusplus
extern "C" {
#endif

struct skv_window; /* declared in policy.h */
struct skv_select;

struct skv_scores; /* declared in select.h */
struct skv_index_list;
struct skv_attended;

struct skv_slot_mapping; /* declared in evict.h */
struct skv_rank;
struct skv_evict_rule;
struct skv_head_budget_rule;
struct skv_touch_rule;

struct skv_decompressed; /* declared in compress.h */

struct skv_sparse; /* declared in prefill.h */
struct skv_tile_lists;

struct skv_kernels {
	const char *name; /* name of the backend: "avx512", "avx2", "generic" or "cuda" */

	/*
	 * Returns NULL if the kernels support this shape, else a text that says what the kernels expect. The shape's
	 * pool and layer are not examined.
	 */
	const char *(*unsupported)(const struct skv_shape *);

	/*
	 * Returns the bytes of workspace that a call needs for up to n_seqs sequences, n_rows query rows and max_len
	 * tokens on `threads` threads. The result is an upper bound for every function below except those of sparse
	 * prefill, for which prefill_sparse_bytes() returns one.
	 */
	size_t (*workspace_bytes)(const struct skv_shape *, uint32_t n_seqs, uint32_t n_rows, uint32_t max_len,
	                     int threads);

	/* ---- rows ---------------------------------------------------------------------------- */

	/*
	 * Writes the rows of k and v into the KV cache: into the pages of tokens len - n_q … len - 1, or, if n_q = 1
	 * and mapping is not NULL, into the slots of the mapping. Rows are converted to the pool's dtype, rounded to
	 * nearest even; a NaN stays a NaN. With shape.sketch_bits and without a mapping, the function also makes the
	 * new tokens' sketches, as update_sketches() does.
	 */
	void (*append)(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *, const void *k,
	               const void *v, const struct skv_workspace *);

	/*
	 * Copies whole pages within the pool, page src[i] to page dst[i], for the copy-on-write of shared pages. The
	 * arrays dst and src are in host memory and are read before the function returns.
	 */
	void (*copy_pages)(const struct skv_shape *, const uint32_t *dst, const uint32_t *src, uint32_t n,
	                   const struct skv_workspace *);

	/* ---- decode: n_q = 1, out may be q ---------------------------------------------------- */

	/*
	 * Decode attention of each query row to every resident token. `scores` gets the attention scores; NULL: scores
	 * are not wanted. If `out` is NULL, the function computes only the scores of tokens and pages: V is not read,
	 * and kseq.attended does not change. Quantized tokens are dequantized on the fly.
	 */
	void (*decode_dense)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                     const struct skv_scores *scores, const struct skv_workspace *);

	/*
	 * Decode attention to the resident tokens of a window (StreamingLLM): [0, sinks) and [skv_window_start(w, len),
	 * len). If the two ranges overlap, a token in both counts once.
	 */
	void (*decode_window)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                      const struct skv_window *, const struct skv_workspace *);

	/*
	 * Decode attention to the tokens of the listed pages. Positions from len on, in the last page, are not attended
	 * to. If none of the listed pages is resident, the output row is zeros.
	 */
	void (*decode_pages)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                     const struct skv_index_list *, const struct skv_workspace *);

	/*
	 * Decode attention to all resident tokens, in one softmax. Listed tokens take part with their rows of K and V.
	 * Other tokens take part with their sketches' scores, as in score_sketches(), and with their values of
	 * value_bits bits. The list has rows 1 or n_kv_heads. kseq.attended counts the listed tokens. A sequence
	 * of fewer than T tokens, which has no sketches yet, attends to the listed tokens alone. NULL: the backend has
	 * no such function.
	 */
	void (*decode_sketches)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                      const struct skv_index_list *, const struct skv_workspace *);

	/* Decode attention to the listed tokens. */
	void (*decode_tokens)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                      const struct skv_index_list *, const struct skv_workspace *);

	/*
	 * Top-k attention of a layer that selects for itself: the function scores every resident key, fills `list` with
	 * the tokens that select() would take by the scores of decode_dense(), and attends to these tokens. V rows of
	 * other tokens are not read. scores->rows (which must not be n_heads) and scores->sum say how weights are
	 * reduced over heads. scores->token must not be NULL: the function uses the buffer as workspace and leaves
	 * undefined contents in it. Up to rounding, the output equals that of decode_dense(), select() and
	 * decode_tokens() one after the other. On a device, scores are rounded to 16 bits, and weights are compared as
	 * in select_sketches().
	 */
	void (*decode_topk)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                      const struct skv_scores *scores, const struct skv_select *, struct skv_index_list *list,
	                      const struct skv_workspace *);

	/* ---- selection --------------------------------------------------------------------------- */

	/*
	 * Makes the page bounds of the pages that contain tokens len - n_state … len - 1. The bounds of a page are
	 * always made from all of its K rows up to len, so the result does not depend on when, or in how many calls,
	 * bounds are made. A page is skipped if the page itself or its state page is not resident. With a slot mapping
	 * (n_q = 1), the function makes for each kv head the bounds of the page that has the new token's slot, from the
	 * rows up to that slot. If n_state is above 1, bounds are also made of the other pages that hold the last
	 * n_state slots; all of these pages are full.
	 */
	void (*update_bounds)(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *,
	                      const struct skv_workspace *);

	/*
	 * Scores the pages of each sequence (n_q = 1) by their page bounds (Quest): Σ_d max(q_d kmin_d, q_d kmax_d), an
	 * upper bound of q·k over the page's tokens. A sequence has 1, n_kv_heads or n_heads rows of scores, and
	 * `reduce` (enum skv_reduce) says how the scores of the q heads that share a row are combined.
	 * SKV_REDUCE_MEAN_Q (not with n_heads rows) scores the mean of q over each GQA group, and sums these scores
	 * over the kv heads that share a row. The scores are written to scores->page; a page that is not resident or
	 * has no bounds gets -infinity.
	 */
	void (*score_pages)(const struct skv_shape *, const struct skv_batch *, const void *q, uint32_t reduce,
	                    const struct skv_scores *scores, const struct skv_workspace *);

	/*
	 * Makes the sketches of tokens len - n_state … len - 1. If one of these tokens completes the sequence's first
	 * page, sketches are made of all tokens, because no token has a sketch before the first T tokens are there. A
	 * page is skipped if its K rows or its state page are not resident. With shape.value_bits the function also
	 * makes the tokens' values of so many bits.
	 */
	void (*update_sketches)(const struct skv_shape *, const struct skv_batch *, const struct skv_workspace *);

	/*
	 * Scores the tokens of each sequence (n_q = 1) by their sketches: the scores are the softmax weights of q over
	 * the sketches of the keys. Like decode_dense(), the function fills scores->token and scores->page, either of
	 * which may be NULL. The softmax denominators are estimated from a sample of tokens (skv_sketch_pair()). Tokens
	 * that are not resident get weight 0, and so do the positions from len to the end of the last page. In a
	 * sequence of fewer than T tokens, which has no sketches yet, each token gets weight 1. q is rounded to 8 bits.
	 */
	void (*score_sketches)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_scores *,
	                       const struct skv_workspace *);

	/*
	 * Does the work of score_sketches() and of a select() of tokens by those weights in one step, without storing
	 * the weights: rows = n_kv_heads, `sum` as in struct skv_scores. Weights are compared coarsely: weights below
	 * 2^-31 / len count as equal, and so do weights above 2^33 / len, and weights that differ by less than 2^-10 in
	 * log2. NULL: the backend has no such function; callers call score_sketches() and select().
	 */
	void (*select_sketches)(const struct skv_shape *, const struct skv_batch *, const void *q, bool sum,
	                        const struct skv_select *, struct skv_index_list *, const struct skv_workspace *);

	/*
	 * Computes scores->page from scores->token, in the same order of summation as decode_dense(). Callers need this
	 * if token weights have changed since decode_dense(), because they were reduced over tensor-parallel ranks. The
	 * sum of the last page includes the weights from len to the end of the page, which must be 0.
	 */
	void (*sum_pages)(const struct skv_batch *, const struct skv_scores *, const struct skv_workspace *);

	/*
	 * Fills `list` with the top-k pages by scores->page, or, with `tokens`, with the top-k tokens by scores->token;
	 * struct skv_select gives the numbers. list->rows is scores->rows, or n_kv_heads if the selections of the q
	 * heads of a GQA group are united (scores->rows = n_heads). list->stride must be at least the number of pages
	 * or tokens of max_len. Of equal scores, the one with the lower index is selected. A page or token whose score
	 * is a NaN or -infinity is never selected, so a list may have fewer than k entries. The function may overwrite
	 * the scores.
	 */
	void (*select)(const struct skv_shape *, const struct skv_batch *, const struct skv_scores *scores,
	               bool tokens, const struct skv_select *, struct skv_index_list *list, const struct skv_workspace *);

	/*
	 * Selects tokens as select() does, but from a row of scores->token for each q head to one list for the sequence
	 * (LessIsMore's union of heads). The order of selection: first the best token of each head, then the second
	 * best token of each head, and so on.
	 */
	void (*select_union)(const struct skv_shape *, const struct skv_batch *, const struct skv_scores *scores,
	                     const struct skv_select *, struct skv_index_list *list, const struct skv_workspace *);

	/*
	 * Computes the attention recall (DELTA, Eq. 9): the share of the softmax weight that is on the tokens or pages
	 * that a layer attended to, averaged over q heads. The recall of sequence i is written to ret[i]. `scores` must
	 * come from decode_dense() over the same sequences, with `sum`; scores->rows is 1 for a window, else the list's
	 * number of rows. The function reads token weights for a window and for a list of tokens, page weights for a
	 * list of pages.
	 */
	void (*recall)(const struct skv_shape *, const struct skv_batch *, const struct skv_scores *scores,
	               const struct skv_attended *, float *ret, const struct skv_workspace *);

	/* ---- eviction ---------------------------------------------------------------------------- */

	/*
	 * Allocates a slot for the new token of each sequence (n_q = 1), and makes the slot metadata of the entries [0,
	 * entries of len) of each kv head. A free or evicted entry in that range is a target. Targets, in ascending
	 * order, get the rows of the retained entries beyond the range, also in ascending order; a page's bounds are
	 * copied with its rows if the state pages are resident. The last target, for which no retained entry is left,
	 * is for the new token. With granularity T the new token takes a target only if it begins a page, (len - 1) % T
	 * = 0; the new entry's pos is then (n_tokens - 1) / T. Else the token goes into the partial page, which is the
	 * entry with the largest pos. The score of a new entry is 0. The function writes all metadata of `set` up to
	 * the end of the last page of `len`, where entries beyond those of `len` are marked free, and writes
	 * mapping->slot. With n_q = 0 there is no new token, and there must be as many targets as retained entries
	 * beyond the range.
	 */
	void (*alloc_slots)(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *,
	              const struct skv_workspace *);

	/*
	 * Prepares the move of the partial page (the one with the largest pos) to the end of the slots. The function
	 * requires granularity T, n_q = 0 and that all entries of `len` are retained. If the partial page is not the
	 * last one, the last page and the partial page are copied, with their bounds, to the two entries that follow,
	 * which must have pages; then the two original entries are marked free. The next alloc_slots() with n_q = 0
	 * moves both copies back, so that the partial page is last and slots [0, len) have no gap. Slots must be
	 * without a gap before a prompt, or before the layer attends in another way. The function writes the metadata
	 * of `set` for two more entries than `len` has.
	 */
	void (*move_partial_page)(const struct skv_shape *, const struct skv_batch *, const struct skv_workspace *);

	/*
	 * Allocates the slots of a prompt: copies the metadata of [0, len - n_q), where all entries are retained and
	 * without gaps, to `set`, and makes metadata for the prompt's n_q new tokens, with score 0. New tokens are
	 * stored in the order of their positions. mapping->slot becomes len - 1, the slot of the last token, for a
	 * prompt of one token. With granularity T, the pos of a new page is the number of the page of the sequence to
	 * which the first token in it belongs.
	 */
	void (*alloc_prompt_slots)(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *,
	                     const struct skv_workspace *);

	/*
	 * Makes the slot metadata of a sequence that has none yet. The metadata is written as if by the last commit: to
	 * the set that is not `set`, for the entries of slot_end. Slot x is given to token x if the page of token x is
	 * resident; else the slot is marked free.
	 */
	void (*init_slot_meta)(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *,
	                      const struct skv_workspace *);

	/*
	 * Adds a decode step's attention weights, scores->token (rows = n_kv_heads, sums), divided by the number of q
	 * heads in a GQA group, to the accumulated scores of [0, len). kseq.accumulate says whether weights are added,
	 * replace the earlier scores, or are ignored (H2O). Unless weights are ignored, all entries become active.
	 */
	void (*accumulate_scores)(const struct skv_shape *, const struct skv_batch *, const struct skv_scores *scores,
	              const struct skv_workspace *);

	/*
	 * Adds weights to accumulated scores like accumulate_scores(), but computes the weights itself, as the softmax
	 * over the listed slots alone (rows = n_kv_heads). All listed slots must be active. The scores of other slots
	 * are unchanged.
	 */
	void (*accumulate_list)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_index_list *,
	                   const struct skv_workspace *);

	/*
	 * Adds the weights of the last min(window, n_q) rows of each prompt to the accumulated scores (SnapKV's
	 * observation window); if window is 0, the weights of all rows. A row's weight on a token is the row's softmax
	 * over the tokens up to its own position, averaged over the GQA group. If window is not 0, a prompt with at
	 * least `window` rows replaces earlier scores. All tokens become active.
	 */
	void (*accumulate_prompt)(const struct skv_shape *, const struct skv_batch *, const void *q, uint32_t window,
	                     const struct skv_workspace *);

	/*
	 * Fills rank[seq][n_kv_heads][stride], by which evict() and allocate_head_budgets() choose, for [0, len) of the
	 * sequences whose kseq.n_retained is below len, or whose kseq.n_active is not UINT32_MAX. The function requires
	 * granularity 1, and that [0, len) has no evicted entries. An inactive entry gets rank -infinity; where scores
	 * are smoothed, its score counts as 0 for its neighbours.
	 */
	void (*rank_tokens)(const struct skv_shape *, const struct skv_batch *, const struct skv_rank *, float *rank,
	             uint32_t stride, const struct skv_workspace *);

	/*
	 * Evicts down to kseq.n_retained entries of each kv head: if `len` has more entries, marks all except the best
	 * n_retained as evicted. The best are found by `rank`, or, if rank is NULL, by the entries' scores.
	 */
	void (*evict)(const struct skv_shape *, const struct skv_batch *, const struct skv_evict_rule *, const float *rank,
	             uint32_t stride, const struct skv_workspace *);

	/*
	 * Divides the layer's budget among heads (Ada-KV): if kseq.n_active is not UINT32_MAX, makes all entries
	 * inactive except those that struct skv_head_budget_rule chooses. The function requires granularity 1 and is
	 * called after evict().
	 */
	void (*allocate_head_budgets)(const struct skv_shape *, const struct skv_batch *, const struct skv_head_budget_rule *, const float *rank,
	              uint32_t stride, const struct skv_workspace *);

	/* Fills `list` (rows = n_kv_heads) with the active slots of [0, len), ascending, and sets list->max_count. */
	void (*list_active)(const struct skv_shape *, const struct skv_batch *, struct skv_index_list *list,
	                    const struct skv_workspace *);

	/*
	 * Notes which pages matter in this step (RaaS), with granularity T: a page that matters by scores->page (rows =
	 * n_heads), and a page that begins with this step's token, get n_tokens as their score. The function fills
	 * `list` (rows = n_kv_heads) with the pages to attend to, the partial page last, and sets list->max_count and
	 * list->last_partial.
	 */
	void (*touch_pages)(const struct skv_shape *, const struct skv_batch *, const struct skv_scores *scores,
	              const struct skv_touch_rule *, struct skv_index_list *list, const struct skv_workspace *);

	/* ---- prefill: out may be q ------------------------------------------------------------------ */

	/*
	 * Causal attention of n_q >= 1 rows of each sequence: a row attends to every resident token up to its own. The
	 * bits of an output row do not depend on how a prompt is chunked. Exception: on a device, a K or V value that
	 * is not finite may affect the rows of up to 63 tokens before the value's token.
	 */
	void (*prefill_dense)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                      const struct skv_workspace *);

	/*
	 * Causal attention of a prompt's rows in which sparse rows attend to some tokens only, as struct skv_sparse
	 * says. The output of a dense row has the same bits as with prefill_dense(). No row's bits depend on how a
	 * prompt is chunked, except for values that are not finite, as with prefill_dense(). save_queries() and the
	 * functions that fill lists must be called before prefill_sparse(), because they also read q, and `out` may be
	 * the same buffer as q.
	 */
	void (*prefill_sparse)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                       const struct skv_sparse *, const struct skv_workspace *);

	/*
	 * Returns the bytes of workspace that prefill_sparse() and the functions after it, up to minference_lists(),
	 * need for batches within these bounds; bounds->seq is not read.
	 */
	size_t (*prefill_sparse_bytes)(const struct skv_shape *, const struct skv_batch *bounds,
	                               const struct skv_sparse *, int threads);

	/*
	 * Saves queries for later calls of the same prompt: for each sequence whose prompt continues, the queries of
	 * representative rows, from q or from the set that the previous call saved.
	 */
	void (*save_queries)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
	                     const struct skv_workspace *);

	/*
	 * Makes the lists of Kascade (section 3.4 of the paper), rows = n_kv_heads, unit 1. For a tile that begins at
	 * position x, a multiple of sparse->tile, the list has the best skv_budget_of(top, x, floor) of the resident
	 * tokens [0, x). Tokens are ranked by the softmax weights over [0, x) of the tile's representative row, summed
	 * over the GQA group; of equal weights, the lower token is better.
	 */
	void (*kascade_lists)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
	                  struct skv_budget top, uint32_t floor, const struct skv_tile_lists *ret, const struct skv_workspace *);

	/*
	 * Makes the lists of HiP (see SKV_PREFILL_HIP), rows = n_heads, unit 8. Of chunks with equal scores, the lower
	 * one is better; of two halves with equal scores, the first. A token that is not resident scores -infinity, and
	 * a chunk whose representative token is not resident is not chosen.
	 */
	void (*hip_lists)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
	                    const uint32_t keep[], const struct skv_tile_lists *ret, const struct skv_workspace *);

	/*
	 * Makes the lists of MInference (see SKV_PREFILL_MINFERENCE), rows = n_heads. Of tokens or distances with equal
	 * weights, the lower one is better; tokens that are not resident have no weight. The candidates are the n
	 * tokens that the dense rows of a segment attend to, and the distances 0 … n - 1. A chosen distance adds to a
	 * tile's list the blocks that the distance reaches from any of the tile's 64 positions. `blocks` lists blocks
	 * of 64 tokens; `tokens` lists the chosen tokens before the tile that are in no listed block. The lists of a
	 * tile that ends before the last of its segment's dense rows may stay empty.
	 */
	void (*minference_lists)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
	                   uint32_t vertical, uint32_t slash, const struct skv_tile_lists *blocks, const struct skv_tile_lists *tokens,
	                   const struct skv_workspace *);

	/* ---- compression ----------------------------------------------------------------------------- */

	/* Returns NULL if the compression kernels take the shape's codec, else a text that says what they expect. */
	const char *(*unsupported_codec)(const struct skv_shape *);

	/*
	 * Returns this tensor-parallel rank's part of x for tokens [n_compressed, compress_to) of each sequence, which
	 * are rows in pages: x[n][max_compress][d], d = skv_codec_dims(). Elements of other ranks' heads are -INFINITY,
	 * and so are rows of x for which the sequence has no token to compress. The codec must be latent.
	 */
	void (*gather_tokens)(const struct skv_shape *, const struct skv_batch *, float *x, const struct skv_workspace *);

	/*
	 * Compresses tokens [n_compressed, compress_to) of each sequence, which are rows in pages: writes the records
	 * of these tokens, in n_layers layers that share the batch and whose codecs differ only in pointers. If nothing
	 * was compressed yet, compression begins at codec->first, and the tokens before codec->first become references,
	 * too. `x` is NULL; or, with the latent codec of several ranks and one layer, x is the element-wise maximum
	 * over all ranks of the results of gather_tokens().
	 */
	void (*compress)(const struct skv_shape *, uint32_t n_layers, const struct skv_batch *, const float *x,
	                 const struct skv_workspace *);

	/*
	 * Makes rows of K and V, in the form that attention reads, of a layer's tokens, compressed or not. The rows are
	 * those of the listed tokens, in the list's order (rows = 1; a list ends at the first id that is not below
	 * len), or, if `list` is NULL, of all tokens [0, len). If to->pool is NULL (then `list` must be NULL), rows are
	 * made of the compressed tokens only, each in the token's own page.
	 */
	void (*decompress)(const struct skv_shape *, const struct skv_batch *, const struct skv_index_list *,
	                const struct skv_decompressed *to, const struct skv_workspace *);

	/* Returns whether decode_latent() takes this shape with its codec. NULL: decode_latent() takes no shape. */
	bool (*fuses_latent)(const struct skv_shape *);

	/*
	 * Decode attention over the listed tokens (rows = 1), compressed or not, fused with decompression. Up to
	 * rounding, the output equals that of decompress() and of decode_dense() over the rows made, but no
	 * decompressed row is written to memory.
	 */
	void (*decode_latent)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                     const struct skv_index_list *, const struct skv_workspace *);

	/* ---- rows of other kinds ----------------------------------------------------------------------- */

	/*
	 * Convert rows of q, k, v and out for a backend that takes only contiguous fp32 rows (the host's); NULL in
	 * other backends. load_rows() converts n rows of `width` elements, a multiple of 16, of a dtype (enum
	 * skv_dtype), `stride` elements apart, to contiguous fp32 rows. store_rows() converts back, with rounding to
	 * nearest even; a NaN stays a NaN.
	 */
	void (*load_rows)(uint32_t dtype, uint32_t n, uint32_t width, uint32_t stride, const void *from, float *to,
	                  const struct skv_workspace *);
	void (*store_rows)(uint32_t dtype, uint32_t n, uint32_t width, uint32_t stride, const float *from, void *to,
	                   const struct skv_workspace *);
};

/*
 * Returns the host kernels for this processor: the best of avx512, avx2 and generic, or those of the instruction set
 * that `isa` names. If isa is NULL or "", $SPARSEKV_ISA names the instruction set; without it the best is chosen.
 * Returns NULL if the processor lacks the instruction set or the name is unknown.
 */
const struct skv_kernels *skv_kernels_host(const char *isa);

#ifdef __cplusplus
}
#endif
#endif
