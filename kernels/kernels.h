/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/kernels.h - the attention kernels: one table of functions for every backend.
 *
 * A backend is a struct skv_kernels. All functions work on a batch of sequences of ONE layer. They are deterministic:
 * the same inputs and backend give the same bits, with any number of threads and any other sequences in the batch. They
 * make no system calls and no allocations, and keep no state: the caller passes the workspace. They trust their
 * arguments; callers check untrusted input.
 *
 * No function returns an error. unsupported() and unsupported_codec() refuse a shape, with a text, before anything
 * runs. Launch errors are reported by the device's wait() or check() (device.h).
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

	/* Returns NULL if the kernels support this shape (apart from pool and layer), else what they expect instead. */
	const char *(*unsupported)(const struct skv_shape *);

	/*
	 * Bytes of workspace for calls of up to n_seqs sequences, n_rows query rows and max_len tokens on `threads`
	 * threads. An upper bound for every function below except sparse prefill.
	 */
	size_t (*workspace_bytes)(const struct skv_shape *, uint32_t n_seqs, uint32_t n_rows, uint32_t max_len,
	                     int threads);

	/* ---- rows ---------------------------------------------------------------------------- */

	/*
	 * Writes rows of k and v into the pages of tokens len - n_q … len - 1, or, if n_q = 1 and mapping is not NULL,
	 * into the slots of the mapping. Rows are converted to the pool's dtype (round to nearest even; a NaN stays
	 * one). With shape.sketch_bits and no mapping, also makes sketches as update_sketches() does.
	 */
	void (*append)(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *, const void *k,
	               const void *v, const struct skv_workspace *);

	/*
	 * Copies whole pages, page src[i] to page dst[i] (copy-on-write of a shared page). dst and src are in host
	 * memory and are read before this returns.
	 */
	void (*copy_pages)(const struct skv_shape *, const uint32_t *dst, const uint32_t *src, uint32_t n,
	                   const struct skv_workspace *);

	/* ---- decode: n_q = 1, out may be q ---------------------------------------------------- */

	/*
	 * Attends to every resident token; `scores` may be NULL. If `out` is NULL, only computes the scores of tokens
	 * and pages: V is not read, and no token counts as attended to. Quantized tokens are dequantized on the fly.
	 */
	void (*decode_dense)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                     const struct skv_scores *scores, const struct skv_workspace *);

	/*
	 * Attends to the resident tokens of a window (StreamingLLM): [0, sinks) and [skv_window_start(w, len), len).
	 * The two may overlap; a token counts once.
	 */
	void (*decode_window)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                      const struct skv_window *, const struct skv_workspace *);

	/*
	 * Attends to the listed pages; tokens >= len do not count. If none of the pages is resident, the output is
	 * zeros.
	 */
	void (*decode_pages)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                     const struct skv_index_list *, const struct skv_workspace *);

	/* Attends to the listed tokens. */
	void (*decode_tokens)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                      const struct skv_index_list *, const struct skv_workspace *);

	/*
	 * Top-k attention of a layer that is its own source: scores every resident key, fills `list` with the tokens
	 * that select() would take by the scores of decode_dense, and attends to them. V of other tokens is not read.
	 * scores->rows (not n_heads) and scores->sum say how weights are reduced; scores->token (not NULL) is workspace
	 * with undefined contents afterwards. The result equals decode_dense, select and decode_tokens up to rounding.
	 * On a device, scores are rounded to 16 bits, and weights are compared as in select_sketches().
	 */
	void (*decode_topk)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                      const struct skv_scores *scores, const struct skv_select *, struct skv_index_list *list,
	                      const struct skv_workspace *);

	/* ---- selection --------------------------------------------------------------------------- */

	/*
	 * Makes the bounds of the pages that contain tokens len - n_state … len - 1, each from all K rows of the page
	 * up to len. So the result does not depend on how often, or in how many calls, this is done. A page is skipped
	 * if it or its state page is not resident. With slots (n_q = 1): for each kv head, makes the bounds of the page
	 * with its new token's slot, from the rows up to that slot. If n_state is above 1, also those of the other
	 * pages of these tokens' slots, which are full.
	 */
	void (*update_bounds)(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *,
	                      const struct skv_workspace *);

	/*
	 * Scores the pages of each sequence (n_q = 1) by their bounds (Quest): Σ_d max(q_d kmin_d, q_d kmax_d), an
	 * upper bound of q·k over the page's tokens. `reduce` (enum skv_reduce) says how the scores of the q heads of
	 * one row of `scores` (1, n_kv_heads or n_heads rows) are combined. With SKV_REDUCE_MEAN_Q (not with n_heads
	 * rows) the mean of q over each GQA group is scored, and the scores are summed over kv heads. Fills
	 * scores->page; a page that is not resident or has no bounds gets -infinity.
	 */
	void (*score_pages)(const struct skv_shape *, const struct skv_batch *, const void *q, uint32_t reduce,
	                    const struct skv_scores *scores, const struct skv_workspace *);

	/*
	 * Makes the sketches of tokens len - n_state ... len - 1, or of all tokens if the first T tokens are complete
	 * only with these. Skips pages whose K rows or state page are not resident.
	 */
	void (*update_sketches)(const struct skv_shape *, const struct skv_batch *, const struct skv_workspace *);

	/*
	 * Scores the tokens of each sequence (n_q = 1) by their sketches. Fills scores->token and scores->page, either
	 * of which may be NULL, as decode_dense does, with the softmax weights of q over the sketches of the keys.
	 * Denominators are estimated from a sample (skv_sketch_pair()). Tokens that are not resident get weight 0, and
	 * so do the positions from len on to the end of the last page. In sequences of fewer than T tokens each token
	 * gets weight 1. q is rounded to 8 bits.
	 */
	void (*score_sketches)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_scores *,
	                       const struct skv_workspace *);

	/*
	 * score_sketches() and a select() of tokens by its weights in one step, without weights in memory:
	 * rows = n_kv_heads, `sum` as in struct skv_scores. Weights below 2^-31 / len count as equal, and so do those
	 * above 2^33 / len, and those that differ by less than 2^-10 in log2. NULL: not available; call the two
	 * functions instead.
	 */
	void (*select_sketches)(const struct skv_shape *, const struct skv_batch *, const void *q, bool sum,
	                        const struct skv_select *, struct skv_index_list *, const struct skv_workspace *);

	/*
	 * Computes scores->page from scores->token, with the sums of decode_dense(). For token weights that other ranks
	 * have changed since. Weights from the end of the sequence to the end of its last page are included, and must
	 * be 0.
	 */
	void (*sum_pages)(const struct skv_batch *, const struct skv_scores *, const struct skv_workspace *);

	/*
	 * Fills `list` with the top-k by the layer's scores, as struct skv_select says: by scores->page, or with
	 * `tokens` by scores->token. list->rows is scores->rows, or n_kv_heads if it unites the selections of the q
	 * heads (scores->rows = n_heads). list->stride is at least the number of pages or tokens of max_len. Ties go to
	 * the lower ids. A score that is a NaN or -infinity is never selected, so there may be fewer. May overwrite
	 * scores.
	 */
	void (*select)(const struct skv_shape *, const struct skv_batch *, const struct skv_scores *scores,
	               bool tokens, const struct skv_select *, struct skv_index_list *list, const struct skv_workspace *);

	/*
	 * select() with rows of scores->token for each q head and one list a sequence. Selects the tokens that come
	 * first when all heads name their best token, then their second best, and so on (LessIsMore's union of heads).
	 */
	void (*select_union)(const struct skv_shape *, const struct skv_batch *, const struct skv_scores *scores,
	                     const struct skv_select *, struct skv_index_list *list, const struct skv_workspace *);

	/*
	 * Attention recall (DELTA, Eq. 9): the share of the softmax weight on what a layer attended to, averaged over q
	 * heads, into ret[seq]. `scores` comes from decode_dense over the same sequences, with `sum`: rows is 1 for a
	 * window, else the list's rows. Token weights are used for a window and a list of tokens, page weights for a
	 * list of pages.
	 */
	void (*recall)(const struct skv_shape *, const struct skv_batch *, const struct skv_scores *scores,
	               const struct skv_attended *, float *ret, const struct skv_workspace *);

	/* ---- eviction ---------------------------------------------------------------------------- */

	/*
	 * Allocates a slot for the new token of each sequence (n_q = 1), and fills the entries [0, entries of len).
	 * Free entries among these, in ascending order, are targets: each gets the rows of a retained entry beyond
	 * them, in ascending order (pages also with their bounds, where state pages are resident). The last remaining
	 * target is for the new token. With granularity T this holds if the token begins a page, (len - 1) % T = 0 (pos
	 * is (n_tokens - 1) / T); else the token goes into the partial page, the one with the largest pos. A new
	 * entry's score is 0. Writes all metadata of `set` up to the end of the page of `len`, with entries beyond
	 * those of `len` marked free, and mapping->slot. With n_q = 0 there is no new token, and there are as many free
	 * entries as retained ones beyond them.
	 */
	void (*alloc_slots)(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *,
	              const struct skv_workspace *);

	/*
	 * Moves the partial page to the tail. Requires granularity T, n_q = 0 and all entries of `len` retained. If the
	 * partial page (the one with the largest pos) is not the last one, copies the last one and the partial one,
	 * with their bounds, to the two entries that follow, which must have pages, and frees the originals. The next
	 * alloc_slots() with n_q = 0 then puts the partial page last, and slots [0, len) have no gap. A prompt, or
	 * another way to attend, needs this. Writes the metadata of `set` for two more entries.
	 */
	void (*move_partial_page)(const struct skv_shape *, const struct skv_batch *, const struct skv_workspace *);

	/*
	 * Slots of a prompt: copies the metadata of [0, len - n_q), all retained and without gaps, to `set`, and makes
	 * metadata for the prompt's n_q new tokens, with score 0. New tokens are stored in order; mapping->slot is
	 * len - 1, for a prompt of one token. A page that begins with a token gets the pos of this token's page.
	 */
	void (*alloc_prompt_slots)(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *,
	                     const struct skv_workspace *);

	/*
	 * Makes initial metadata of a sequence that has none, as of the last commit: in the set that is not `set`, for
	 * the entries of slot_end. Slot x has token x if its page is resident, else it is free.
	 */
	void (*init_slot_meta)(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *,
	                      const struct skv_workspace *);

	/*
	 * Adds scores->token (rows = n_kv_heads, sums), divided by the group's size, to the accumulated scores of [0,
	 * len), as kseq.accumulate says (H2O). All entries become active.
	 */
	void (*accumulate_scores)(const struct skv_shape *, const struct skv_batch *, const struct skv_scores *scores,
	              const struct skv_workspace *);

	/*
	 * The same with weights that are computed here: the softmax over only the listed slots (rows = n_kv_heads),
	 * which are all active. Other scores are unchanged.
	 */
	void (*accumulate_list)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_index_list *,
	                   const struct skv_workspace *);

	/*
	 * Adds the weights of the last min(window, n_q) rows of each prompt to the accumulated scores (SnapKV's
	 * observation window), of all rows if window is 0. Each token gets the row's softmax weight on it, over the
	 * tokens up to the row's own, averaged over the GQA group. A prompt with at least `window` rows replaces
	 * earlier scores. All tokens become active.
	 */
	void (*accumulate_prompt)(const struct skv_shape *, const struct skv_batch *, const void *q, uint32_t window,
	                     const struct skv_workspace *);

	/*
	 * Fills rank [seq][n_kv_heads][stride] for [0, len) of sequences whose kseq.n_retained is below len, or whose
	 * kseq.n_active is not UINT32_MAX. Requires granularity 1 and no evicted entries. An inactive entry counts as 0
	 * for its neighbours, and its rank is -infinity.
	 */
	void (*rank_tokens)(const struct skv_shape *, const struct skv_batch *, const struct skv_rank *, float *rank,
	             uint32_t stride, const struct skv_workspace *);

	/*
	 * If kseq.n_retained is below the number of entries of len, marks the others evicted, by `rank`, or by score if
	 * it is NULL.
	 */
	void (*evict)(const struct skv_shape *, const struct skv_batch *, const struct skv_evict_rule *, const float *rank,
	             uint32_t stride, const struct skv_workspace *);

	/*
	 * If kseq.n_active is not UINT32_MAX, deactivates all entries except the chosen ones. Granularity 1; called
	 * after evict().
	 */
	void (*allocate_head_budgets)(const struct skv_shape *, const struct skv_batch *, const struct skv_head_budget_rule *, const float *rank,
	              uint32_t stride, const struct skv_workspace *);

	/* Fills `list` (rows = n_kv_heads) with the active slots of [0, len), ascending, and sets list->max_count. */
	void (*list_active)(const struct skv_shape *, const struct skv_batch *, struct skv_index_list *list,
	                    const struct skv_workspace *);

	/*
	 * Granularity T (RaaS): the pages that matter by scores->page (rows = n_heads), and a page that begins with
	 * this token, get n_tokens as their score. Fills `list` (rows = n_kv_heads) with the pages to attend to, the
	 * partial one last, and sets list->max_count and list->last_partial.
	 */
	void (*touch_pages)(const struct skv_shape *, const struct skv_batch *, const struct skv_scores *scores,
	              const struct skv_touch_rule *, struct skv_index_list *list, const struct skv_workspace *);

	/* ---- prefill: out may be q ------------------------------------------------------------------ */

	/*
	 * Causal attention of n_q >= 1 rows a sequence to every resident token up to each row's own. The bits of a row
	 * do not depend on how a prompt is chunked. Exception: on a device, a K or V value that is not finite may
	 * affect the rows of up to 63 tokens before it.
	 */
	void (*prefill_dense)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                      const struct skv_workspace *);

	/*
	 * Causal attention as struct skv_sparse says. A dense row has the same bits as with prefill_dense. No row's
	 * bits depend on how a prompt is chunked, except for values that are not finite, as above. Call save_queries()
	 * and the functions that fill lists before it, because they also read q.
	 */
	void (*prefill_sparse)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                       const struct skv_sparse *, const struct skv_workspace *);

	/*
	 * Bytes of workspace for prefill_sparse and the functions below it, up to minference_lists, for batches within
	 * these bounds; bounds->seq is not read.
	 */
	size_t (*prefill_sparse_bytes)(const struct skv_shape *, const struct skv_batch *bounds,
	                               const struct skv_sparse *, int threads);

	/*
	 * For each sequence whose prompt continues: saves the queries that later calls need, from q or from the set of
	 * the last call.
	 */
	void (*save_queries)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
	                     const struct skv_workspace *);

	/*
	 * Kascade (3.4): of the resident tokens before the tile, [0, x), x a multiple of sparse->tile, lists the best
	 * skv_budget_of(top, x, floor). They are ranked by the softmax weights over [0, x) of the tile's representative
	 * row, summed over the GQA group; ties go to the lower ones. rows = n_kv_heads, unit 1.
	 */
	void (*kascade_lists)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
	                  struct skv_budget top, uint32_t floor, const struct skv_tile_lists *ret, const struct skv_workspace *);

	/*
	 * HiP: see SKV_PREFILL_HIP. Ties go to the lower chunk, and to the first half. A token that is not resident
	 * scores -infinity, and a chunk with such a representative is not chosen. rows = n_heads, unit 8.
	 */
	void (*hip_lists)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
	                    const uint32_t keep[], const struct skv_tile_lists *ret, const struct skv_workspace *);

	/*
	 * MInference: see SKV_PREFILL_MINFERENCE. Ties go to the lower ones, and tokens that are not resident have no
	 * weight. Candidates are the tokens that a segment's dense rows attend to, and as many distances. A chosen
	 * distance adds the blocks that it reaches from any of the tile's 64 positions. rows = n_heads; `blocks` has
	 * blocks of 64 tokens, and `tokens` the tokens before the tile that are not in those. Lists of tiles that end
	 * before the last of a segment's dense rows may stay empty.
	 */
	void (*minference_lists)(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
	                   uint32_t vertical, uint32_t slash, const struct skv_tile_lists *blocks, const struct skv_tile_lists *tokens,
	                   const struct skv_workspace *);

	/* ---- compression ----------------------------------------------------------------------------- */

	/* Returns NULL if the kernels below take the shape's codec, else what they expect instead. */
	const char *(*unsupported_codec)(const struct skv_shape *);

	/*
	 * Returns a rank's part of x for tokens [n_compressed, compress_to) of each sequence, which are rows in pages:
	 * x[n][max_compress][d], d = skv_codec_dims(). Elements of other ranks' heads, and rows without a token, are
	 * -INFINITY. The codec is latent.
	 */
	void (*gather_tokens)(const struct skv_shape *, const struct skv_batch *, float *x, const struct skv_workspace *);

	/*
	 * Compresses tokens [n_compressed, compress_to) of each sequence, which are rows in pages: writes their
	 * records, in n_layers layers that share the batch and whose codecs differ only in pointers. If nothing was
	 * compressed yet, begins at codec->first, and the tokens before it become references, too. `x` is NULL; or,
	 * with the latent codec of several ranks and one layer, the maximum over all ranks of what gather_tokens()
	 * returned.
	 */
	void (*compress)(const struct skv_shape *, uint32_t n_layers, const struct skv_batch *, const float *x,
	                 const struct skv_workspace *);

	/*
	 * Makes rows of a layer's tokens, compressed or not, in the form that attention reads: of the listed tokens in
	 * their order (rows = 1; a list ends at the first id that is not below len), or of all of [0, len) if `list` is
	 * NULL. If to->pool is NULL (and there is no list): of the compressed tokens, each into its own page.
	 */
	void (*decompress)(const struct skv_shape *, const struct skv_batch *, const struct skv_index_list *,
	                const struct skv_decompressed *to, const struct skv_workspace *);

	/* Returns whether decode_latent() takes this shape with its codec. NULL: it takes none. */
	bool (*fuses_latent)(const struct skv_shape *);

	/*
	 * Fused decode over the listed tokens (rows = 1), compressed or not. Equals decompress() and decode_dense()
	 * over its rows up to rounding, but no decompressed row is written to memory.
	 */
	void (*decode_latent)(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
	                     const struct skv_index_list *, const struct skv_workspace *);

	/* ---- rows of other kinds ----------------------------------------------------------------------- */

	/*
	 * For kernels that take only contiguous fp32 rows (the host's); else NULL. Convert n rows of `width` elements,
	 * a multiple of 16, of a dtype (enum skv_dtype), `stride` elements apart, to such rows, or back with rounding
	 * to nearest even (a NaN stays one).
	 */
	void (*load_rows)(uint32_t dtype, uint32_t n, uint32_t width, uint32_t stride, const void *from, float *to,
	                  const struct skv_workspace *);
	void (*store_rows)(uint32_t dtype, uint32_t n, uint32_t width, uint32_t stride, const float *from, void *to,
	                   const struct skv_workspace *);
};

/*
 * Returns the host kernels for this processor: the best of avx512, avx2 and generic, or the ones that `isa` names (NULL
 * or "": $SPARSEKV_ISA, else the best). NULL if the processor lacks the ISA or the name is unknown.
 */
const struct skv_kernels *skv_kernels_host(const char *isa);

#ifdef __cplusplus
}
#endif
#endif
