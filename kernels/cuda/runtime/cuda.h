/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/runtime/cuda.h - the functions of the CUDA backend, by folder (the same stems as in kernels/host/).
 *
 *   decode/    decode.cu: one query row a sequence, over all pages, a window, listed pages or tokens, with reduced
 *              weights of tokens and pages, or storing the scores of a pass over the keys (decode.cuh); merge.cu: split-KV merge
 *   select/    page-bounds.cu: page bounds, and scores by them; select.cu: radix top-k (topk.cuh); union.cu: one list for
 *              all q heads; recall.cu: attention recall; sketch.cu, sketch-scores.cu, sketch-topk.cu: sketches of keys,
 *              weights by them, and the best tokens (sketch.cuh); topk-scores.cu: the best tokens by stored scores; both of
 *              these by the blocks of a cluster (cluster-select.cuh)
 *   evict/     slots.cu: slots of new tokens, metadata carried from step to step (slot-meta.cuh); accumulate.cu: accumulated
 *              attention scores; rank.cu: ranks by scores; evict.cu: which entries are retained; head-budgets.cu: heads
 *              that share a layer's budget; touch-pages.cu: which pages matter
 *   compress/  compress.cu: tokens to references and codes (records.cuh), with nearest-refs.cu and encode.cu; decompress.cu:
 *              and back to rows; decode-latent.cu: fused decode over codes; quantize.cu: KV quantization; decode-quant.cuh:
 *              decode over quantized KV
 *   prefill/   prefill.cu: causal attention of many rows, dense and sparse (tiles.cuh, output.cuh); prefill-sm90.cu: the same
 *              with wgmma; saved-queries.cu: queries that later calls of a prompt need; kascade.cu, hip.cu, minference.cu:
 *              lists of tiles (weights.cuh)
 *   runtime/   softmax.cuh: what all softmaxes share, softcap and sinks; launch.cuh: launches; overlap.cuh: those that overlap; table.cu: the table of
 *              functions, workspace; append.cu: append rows, copy pages; device.cu, share.cu, step.cu: the module around the kernels (module.h, kernels/device.h); read.cu: a plain read, to measure against
 *
 * Kernels are launched on the caller's stream and on whatever device is current. A launch that fails shows at the
 * caller's next check of the stream (cudaGetLastError), like every asynchronous error.
 *
 * The workspace (skv_workspace.mem) is laid out by struct workspace_layout from shape and bounds alone, so that a
 * recorded graph finds everything where it was.
 */
#ifndef SKV_CUDA_H
#define SKV_CUDA_H

#include <cuda_runtime.h>
#include "kernels/compress.h"
#include "kernels/cuda/runtime/launch.cuh"
#include "kernels/evict.h"
#include "kernels/kernels.h"
#include "kernels/prefill.h"
#include "kernels/select.h"

#define HEAD_TILE 8u      /* q heads of one kv head that a warp takes together: columns of one product */
#define LEAF_TILES 4u    /* of 16 tokens each: what is summed up in one go */
#define RUN_LEAVES 4u    /* that a warp attends to one after the other, at most; ... */
#define RUN_FEWER 2u     /* ... where their results have more values. All of these are powers of two */
#define MAX_CHUNKS 16u   /* where scores are written, a request is split into so many at most ... */
#define CHUNK_TILES 256u /* ... of so many tiles at most, until there are MAX_CHUNKS */
#define PROMPT_CHUNKS 8u /* that a row's keys are split into where weights of prompts are added up: accumulate.cu */
#define MAX_REQUESTS 512u /* sequences, or index lists of them, of one decode launch */
#define MERGE_PARTS 16u /* partial results of a request that a thread adds at a time */
#define MAX_MERGED 1024u /* head tiles of the sequences of a launch whose blocks merge their results themselves, at most */

/* Of the current device: its multiprocessors; the most bytes of shared memory that a block may have. */
uint32_t skv_cuda_sms(void);
uint32_t skv_cuda_max_shared_memory(void);

static inline uint32_t ceil_div(uint32_t a, uint32_t b)
{
	return (a + b - 1) / b;
}

/* Units of so many tiles that a request of `tiles` has; one at least. */
static inline __host__ __device__ uint32_t n_units(uint32_t tiles, uint32_t unit)
{
	return tiles ? (tiles + unit - 1) / unit : 1;
}

#define ITEM_RUNS 16u    /* of a work item, at most; sums of them that wait, of so many heads, take 80 KB of shared memory for two items */
static inline uint32_t max_item_runs(uint32_t heads, uint32_t head_dim)
{
	return heads * head_dim <= 512 ? ITEM_RUNS : heads * head_dim <= 1024 ? ITEM_RUNS / 2 : ITEM_RUNS / 4;
}

/* How the requests of a launch are divided: the tiles of a run, and the runs of a work item. */
struct division {
	uint32_t run_tiles, item_runs;
};

/* Work items of a request of so many tiles, for a head tile. */
static inline __host__ __device__ uint32_t items_of(struct division by, uint32_t tiles)
{
	return n_units(tiles, by.run_tiles * by.item_runs);
}

/*
 * Do a launch's blocks merge results themselves, of so many head tiles (or pairs, where a work item has two), each of so many items?
 * So it is where no block has two items, and a thread may have all results of a request in flight.
 */
static inline bool merges_itself(uint32_t head_tiles, uint32_t items, uint32_t blocks)
{
	return items > 1 && items <= MERGE_PARTS && head_tiles <= MAX_MERGED && head_tiles * items <= blocks;
}

/* A launch over so many head tiles, of so many heads, of requests of at most so many tiles, by `blocks` blocks at most. */
struct launch_size {
	uint32_t blocks, head_tiles, heads, tiles, head_dim;
};

/* Where work of `beside` other streams runs beside this one's, as many blocks as have enough work each; else one an SM. */
uint32_t launch_blocks(const struct launch_size *, uint32_t beside);

/* How it is divided, by runs of `most` leaves at most; see table.cu. */
struct division divide_requests(const struct launch_size *, uint32_t most);
struct division divide_among_teams(const struct launch_size *, uint32_t team, uint32_t most);

/*
 * Where scores are written: how many chunks a request of so many tiles is split into, all of one length. They keep a
 * device busy when there are few requests; but each writes a partial result, and starts anew.
 */
static inline __host__ __device__ uint32_t n_chunks(uint32_t tiles)
{
	const uint32_t n = (tiles + CHUNK_TILES - 1) / CHUNK_TILES;
	return n == 0 ? 1 : n < MAX_CHUNKS ? n : MAX_CHUNKS;
}

/*
 * Head tiles of a sequence: a kv head's group in tiles of HEAD_TILE heads; but heads with lists of their own are
 * apart.
 */
static inline uint32_t n_head_tiles(const struct skv_shape *sh)
{
	return sh->n_kv_heads * ceil_div(sh->n_heads / sh->n_kv_heads, HEAD_TILE);
}

/* Columns of a head tile's scores, an even number: the heads of a group, or a tile's. */
static inline uint32_t score_columns(const struct skv_shape *sh)
{
	const uint32_t group = sh->n_heads / sh->n_kv_heads;
	return group < HEAD_TILE ? (group + 1) / 2 * 2 : HEAD_TILE;
}

/* The most ids that a selection takes of so many. */
static inline uint32_t max_selected(const struct skv_select *s, uint32_t units)
{
	const uint32_t pin = s->pin < units ? s->pin : units, most = skv_budget_of(s->budget, units, s->floor) + pin;
	return most < units ? most : units;
}

/*
 * An entry of the score ring, for the scores of one request after the other: score-ring.cuh. All 0 between
 * launches.
 */
struct ring_entry {
	uint32_t generation; /* requests that have released it */
	uint32_t items_done; /* work items of this one that are done */
	uint32_t uses; /* and uses of its scores */
};

/* Byte offsets in the workspace of a call. Scores are in log2, as differences from a maximum. */
struct workspace_layout {
	size_t ring; /* struct ring_entry [MAX_REQUESTS]; at the same offset for all calls */
	size_t arrived; /* uint32_t [MAX_MERGED]; the same */
	size_t taken; /* uint32_t; the same */
	size_t partial; /* float [n][head tiles, or q heads][parts][partial_floats()]; or accumulate.cu's */
	size_t topk_max; /* float [n][q heads]: the maxima that `topk_scores` are counted from */
	size_t topk_scores; /* __half [n][tokens][head tiles][columns]; or 4 bytes a token and kv head, for any use */
	size_t score; /* __half [ring entries, by head tiles, or those of `score_seqs`][tokens][columns] */
	size_t page_max; /* float [the same][tokens / 16][columns] */
	size_t total; /* a union of heads has all from `topk_scores` on, room for a sequence at least */
	uint32_t tokens; /* of a sequence, at most: whole pages */
	uint32_t ring_entries; /* for a sequence's scores, or fewer */
	uint32_t score_seqs; /* sequences whose scores there is room for at a time where tokens are selected by them */
};
struct workspace_layout workspace_layout_of(const struct skv_shape *sh, uint32_t n, uint32_t max_len, uint32_t rows);

/* A partial result: HEAD_TILE maxima, HEAD_TILE sums, and a row of head_dim for each of the tile's heads. */
static inline __host__ __device__ uint32_t partial_floats(uint32_t heads, uint32_t head_dim)
{
	return 2 * HEAD_TILE + heads * head_dim;
}

static inline cudaStream_t stream_of(const struct skv_workspace *w)
{
	return (cudaStream_t)w->stream;
}

void skv_cuda_append(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *, const void *k,
                     const void *v, const struct skv_workspace *);
void skv_cuda_copy_pages(const struct skv_shape *, const uint32_t *dst, const uint32_t *src, uint32_t n,
                         const struct skv_workspace *);
void skv_cuda_decode_dense(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                           const struct skv_scores *, const struct skv_workspace *);
void skv_cuda_decode_window(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                            const struct skv_window *, const struct skv_workspace *);
void skv_cuda_decode_pages(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                           const struct skv_index_list *, const struct skv_workspace *);
void skv_cuda_decode_tokens(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                            const struct skv_index_list *, const struct skv_workspace *);
void skv_cuda_decode_topk(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                          const struct skv_scores *, const struct skv_select *, struct skv_index_list *,
                          const struct skv_workspace *);
void skv_cuda_decode_latent(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                            const struct skv_index_list *, const struct skv_workspace *);
bool skv_cuda_fuses_latent(const struct skv_shape *);
size_t skv_cuda_decode_latent_bytes(const struct skv_shape *, uint32_t n_seqs); /* from workspace_layout.partial on */
void skv_cuda_update_bounds(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *,
                            const struct skv_workspace *);
void skv_cuda_score_pages(const struct skv_shape *, const struct skv_batch *, const void *q, uint32_t pool,
                          const struct skv_scores *, const struct skv_workspace *);
/* Sketches, with the append of rows, or of keys that are in their pages. */
void skv_cuda_append_sketches(const struct skv_shape *, const struct skv_batch *, const void *k, const void *v,
                              const struct skv_workspace *);
void skv_cuda_update_sketches(const struct skv_shape *, const struct skv_batch *, const struct skv_workspace *);
void skv_cuda_score_sketches(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_scores *,
                             const struct skv_workspace *);
void skv_cuda_select_sketches(const struct skv_shape *, const struct skv_batch *, const void *q, bool sum,
                              const struct skv_select *, struct skv_index_list *, const struct skv_workspace *);
size_t skv_cuda_sketch_bytes(const struct skv_shape *, uint32_t n_seqs, uint32_t max_len); /* from workspace_layout.partial on */
void skv_cuda_prefill_dense(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                            const struct skv_workspace *);
void skv_cuda_prefill_sparse(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                             const struct skv_sparse *, const struct skv_workspace *);
size_t skv_cuda_prefill_sparse_bytes(const struct skv_shape *, const struct skv_batch *bounds,
                                     const struct skv_sparse *, int threads);
void skv_cuda_select(const struct skv_shape *, const struct skv_batch *, const struct skv_scores *,
                     bool tokens, const struct skv_select *, struct skv_index_list *, const struct skv_workspace *);
void skv_cuda_sum_pages(const struct skv_batch *, const struct skv_scores *, const struct skv_workspace *);
void skv_cuda_recall(const struct skv_shape *, const struct skv_batch *, const struct skv_scores *,
                     const struct skv_attended *, float *ret, const struct skv_workspace *);

void skv_cuda_select_union(const struct skv_shape *, const struct skv_batch *, const struct skv_scores *,
                           const struct skv_select *, struct skv_index_list *, const struct skv_workspace *);
#define UNION_SORT_BYTES 4096u /* that CUB's sort in two buffers needs beside them: hardly anything */
size_t skv_cuda_union_bytes(const struct skv_shape *, uint32_t tokens); /* of one sequence, at most */

void skv_cuda_alloc_slots(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *,
                          const struct skv_workspace *);
void skv_cuda_move_partial_page(const struct skv_shape *, const struct skv_batch *, const struct skv_workspace *);
void skv_cuda_alloc_prompt_slots(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *,
                                 const struct skv_workspace *);
void skv_cuda_init_slot_meta(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *,
                             const struct skv_workspace *);
void skv_cuda_accumulate_scores(const struct skv_shape *, const struct skv_batch *, const struct skv_scores *,
                                const struct skv_workspace *);
void skv_cuda_accumulate_list(const struct skv_shape *, const struct skv_batch *, const void *q,
                              const struct skv_index_list *, const struct skv_workspace *);
void skv_cuda_accumulate_prompt(const struct skv_shape *, const struct skv_batch *, const void *q, uint32_t window,
                                const struct skv_workspace *);
void skv_cuda_rank_tokens(const struct skv_shape *, const struct skv_batch *, const struct skv_rank *, float *rank,
                          uint32_t stride, const struct skv_workspace *);
void skv_cuda_evict(const struct skv_shape *, const struct skv_batch *, const struct skv_evict_rule *, const float *rank,
                    uint32_t stride, const struct skv_workspace *);
void skv_cuda_allocate_head_budgets(const struct skv_shape *, const struct skv_batch *,
                                    const struct skv_head_budget_rule *, const float *rank,
                                    uint32_t stride, const struct skv_workspace *);
void skv_cuda_list_active(const struct skv_shape *, const struct skv_batch *, struct skv_index_list *,
                          const struct skv_workspace *);
void skv_cuda_touch_pages(const struct skv_shape *, const struct skv_batch *, const struct skv_scores *,
                          const struct skv_touch_rule *, struct skv_index_list *, const struct skv_workspace *);

void skv_cuda_gather_tokens(const struct skv_shape *, const struct skv_batch *, float *x, const struct skv_workspace *);
void skv_cuda_compress(const struct skv_shape *, uint32_t n_layers, const struct skv_batch *, const float *x,
                       const struct skv_workspace *);
void skv_cuda_decompress(const struct skv_shape *, const struct skv_batch *, const struct skv_index_list *,
                         const struct skv_decompressed *, const struct skv_workspace *);
/* Workspace of these two, from skv_cuda_workspace_offset() on; shape->code is set. */
size_t skv_cuda_compress_bytes(const struct skv_shape *);
size_t skv_cuda_decompress_bytes(const struct skv_shape *);
/* The same of layers with KV quantization, without workspace. */
void skv_cuda_quantize(const struct skv_shape *, uint32_t n_layers, const struct skv_batch *,
                       const struct skv_workspace *);
void skv_cuda_dequantize(const struct skv_shape *, const struct skv_batch *, const struct skv_index_list *,
                         const struct skv_decompressed *, const struct skv_workspace *);
size_t skv_cuda_workspace_offset(const struct skv_shape *); /* behind what must stay 0 */

void skv_cuda_save_queries(const struct skv_shape *, const struct skv_batch *, const void *q,
                           const struct skv_sparse *, const struct skv_workspace *);
void skv_cuda_kascade_lists(const struct skv_shape *, const struct skv_batch *, const void *q,
                            const struct skv_sparse *,
                            struct skv_budget top, uint32_t floor, const struct skv_tile_lists *ret, const struct skv_workspace *);
void skv_cuda_hip_lists(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
                        const uint32_t keep[SKV_HIP_STAGES], const struct skv_tile_lists *ret, const struct skv_workspace *);
void skv_cuda_minference_lists(const struct skv_shape *, const struct skv_batch *, const void *q,
                               const struct skv_sparse *,
                               uint32_t vertical, uint32_t slash, const struct skv_tile_lists *units, const struct skv_tile_lists *more,
                               const struct skv_workspace *);
/*
 * Workspace of the kernels that fill lists of tiles: from its beginning, on batches within these bounds; of each
 * one, behind what must stay 0.
 */
size_t skv_cuda_tile_lists_bytes(const struct skv_shape *, const struct skv_batch *bounds, const struct skv_sparse *);
size_t skv_cuda_kascade_bytes(const struct skv_shape *, const struct skv_batch *bounds, const struct skv_sparse *);
size_t skv_cuda_hip_bytes(const struct skv_shape *, const struct skv_batch *bounds, const struct skv_sparse *);
size_t skv_cuda_minference_bytes(const struct skv_shape *, const struct skv_batch *bounds, const struct skv_sparse *);

/* Has this build the kernels that decode over pages of this shape, or over quantized KV? See decode/instances.h. */
bool skv_cuda_decodes(const struct skv_shape *, bool quantized);

/* Before the first launch on the current device: allow more shared memory than kernels have by default. */
cudaError_t skv_cuda_decode_init(void);
cudaError_t skv_cuda_decode_latent_init(uint32_t room);
cudaError_t skv_cuda_prefill_init(void);
cudaError_t skv_cuda_select_init(void);
cudaError_t skv_cuda_sketch_topk_init(unsigned device, uint32_t room);
cudaError_t skv_cuda_topk_scores_init(unsigned device, uint32_t room);
cudaError_t skv_cuda_accumulate_init(void);
cudaError_t skv_cuda_kascade_init(void);
cudaError_t skv_cuda_hip_init(void);
cudaError_t skv_cuda_minference_init(void);
cudaError_t skv_cuda_nearest_refs_init(void);
cudaError_t skv_cuda_encode_init(void);
cudaError_t skv_cuda_decompress_init(void);

bool skv_cuda_overlaps(void); /* has it clusters and launches that overlap (Hopper and later)? */

#endif
