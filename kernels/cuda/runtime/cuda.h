/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/runtime/cuda.h - the functions of the CUDA backend, by folder (file stems are those of kernels/host/).
 *
 *   decode/    decode.cu: one query row per sequence, over all pages, a window, listed pages or listed tokens, with
 *              reduced weights of tokens and pages, or storing the scores of a pass over the keys (decode.cuh);
 *              merge.cu: split-KV merge
 *   select/    page-bounds.cu: page bounds and scores by them; select.cu: radix top-k (topk.cuh); union.cu: one list
 *              for all q heads; recall.cu: attention recall; sketch.cu, sketch-scores.cu, sketch-topk.cu: sketches of
 *              keys, weights by sketches, and the best tokens by them (sketch.cuh); topk-scores.cu: the best tokens by
 *              stored scores; cluster-select.cuh: selection by the blocks of a cluster, for the last two
 *   evict/     slots.cu: slots of new tokens, metadata carried from step to step (slot-meta.cuh); accumulate.cu:
 *              accumulated attention scores; rank.cu: ranks by scores; evict.cu: which entries are retained;
 *              head-budgets.cu: heads that share a layer's budget; touch-pages.cu: which pages matter
 *   compress/  compress.cu: tokens to references and codes (records.cuh), with nearest-refs.cu and encode.cu;
 *              decompress.cu: back to rows; decode-latent.cu: fused decode over codes; quantize.cu: KV quantization;
 *              decode-quant.cuh: decode over quantized KV
 *   prefill/   prefill.cu: causal attention of many rows, dense and sparse (tiles.cuh, output.cuh); prefill-sm90.cu:
 *              the same with wgmma; saved-queries.cu: queries that later calls of a prompt need; kascade.cu, hip.cu,
 *              minference.cu: index lists of tiles (weights.cuh)
 *   runtime/   softmax.cuh: code shared by all softmaxes, softcap and sinks; launch.cuh: launches; overlap.cuh:
 *              overlapping launches; tensor-map.cuh: tensor copies; table.cu: the table of functions, workspace; append.cu: append rows, copy pages;
 *              device.cu, share.cu, step.cu: the module around the kernels (module.h, kernels/device.h); read.cu: a
 *              plain read, the baseline of measurements
 *
 * Kernels are launched on the caller's stream and on the current device. A failed launch is reported by the caller's
 * next check of the stream (cudaGetLastError), like every asynchronous error.
 *
 * struct workspace_layout lays out the workspace (skv_workspace.mem). The layout depends only on the shape and on
 * bounds, so that a recorded graph finds everything at the same addresses.
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

#define HEAD_TILE 8u      /* q heads of one kv head that a warp processes together: the columns of one product */
#define LEAF_TILES 4u    /* tiles of 16 tokens in a leaf, a range of tokens that has one softmax */
#define RUN_LEAVES 4u    /* max leaves of a run; one warp attends to a run's leaves one after the other */
#define RUN_FEWER 2u     /* max leaves of a run if results have more values; a power of two, as are the above */
#define MAX_CHUNKS 16u   /* max chunks of a request in passes that write scores */
#define CHUNK_TILES 256u /* max tiles of a chunk, except of requests that have MAX_CHUNKS chunks */
#define PROMPT_CHUNKS 8u /* chunks of a row's keys when accumulate.cu accumulates the attention weights of a prompt */
#define MAX_REQUESTS 512u /* max requests of one decode launch. A request is a sequence, or one of its index lists */
#define MERGE_PARTS 16u /* max partial results of a request that a thread adds up at a time */
#define MAX_MERGED 1024u /* max head tiles of a launch whose own blocks merge its results */

/* Number of multiprocessors of the current device, and maximum bytes of shared memory of a block on it. */
uint32_t skv_cuda_sms(void);
uint32_t skv_cuda_max_shared_memory(void);

static inline uint32_t ceil_div(uint32_t a, uint32_t b)
{
	return (a + b - 1) / b;
}

/* Returns the number of units of `unit` tiles that hold `tiles` tiles, at least 1. */
static inline __host__ __device__ uint32_t n_units(uint32_t tiles, uint32_t unit)
{
	return tiles ? (tiles + unit - 1) / unit : 1;
}

/*
 * Max runs of a work item. The sums of two work items that wait to be merged then take up to 80 KiB of shared memory.
 */
#define ITEM_RUNS 16u
static inline uint32_t max_item_runs(uint32_t heads, uint32_t head_dim)
{
	return heads * head_dim <= 512 ? ITEM_RUNS : heads * head_dim <= 1024 ? ITEM_RUNS / 2 : ITEM_RUNS / 4;
}

/* How the requests of a launch are divided: tiles per run, and runs per work item. */
struct division {
	uint32_t run_tiles, item_runs;
};

/* Number of work items, per head tile, of a request of `tiles` tiles. */
static inline __host__ __device__ uint32_t items_of(struct division by, uint32_t tiles)
{
	return n_units(tiles, by.run_tiles * by.item_runs);
}

/*
 * Do the blocks of a decode launch merge their results themselves, without a second launch? `items` is the number of
 * results of a head tile. This requires that no block has two work items, and that a thread can have all results of a
 * request in flight.
 */
static inline bool merges_itself(uint32_t head_tiles, uint32_t items, uint32_t blocks)
{
	return items > 1 && items <= MERGE_PARTS && head_tiles <= MAX_MERGED && head_tiles * items <= blocks;
}

/*
 * Size of a decode launch: at most `blocks` blocks over `head_tiles` head tiles of `heads` heads each, in requests of
 * at most `tiles` tiles.
 */
struct launch_size {
	uint32_t blocks, head_tiles, heads, tiles, head_dim;
};

/*
 * Number of blocks of a launch: one per SM. If `beside` other streams run work at the same time, the number is only so
 * large that each block has enough work.
 */
uint32_t launch_blocks(const struct launch_size *, uint32_t beside);

/* Divide the requests of a launch into runs of at most `most` leaves, and runs into work items; see table.cu. */
struct division divide_requests(const struct launch_size *, uint32_t most);
struct division divide_among_teams(const struct launch_size *, uint32_t team, uint32_t most);

/*
 * Number of chunks of a request of `tiles` tiles in passes that write scores; all chunks have the same length. Chunks
 * keep a device busy when there are few requests, but each one writes a partial result and starts a softmax of its own.
 */
static inline __host__ __device__ uint32_t n_chunks(uint32_t tiles)
{
	const uint32_t n = (tiles + CHUNK_TILES - 1) / CHUNK_TILES;
	return n == 0 ? 1 : n < MAX_CHUNKS ? n : MAX_CHUNKS;
}

/*
 * Number of head tiles of a sequence: each GQA group is divided into tiles of HEAD_TILE heads. (If heads have index
 * lists of their own, each head is a tile; this function does not count those.)
 */
static inline uint32_t n_head_tiles(const struct skv_shape *sh)
{
	return sh->n_kv_heads * ceil_div(sh->n_heads / sh->n_kv_heads, HEAD_TILE);
}

/* Number of columns of a head tile's scores: the heads of a group, rounded up to an even number, at most HEAD_TILE. */
static inline uint32_t score_columns(const struct skv_shape *sh)
{
	const uint32_t group = sh->n_heads / sh->n_kv_heads;
	return group < HEAD_TILE ? (group + 1) / 2 * 2 : HEAD_TILE;
}

/* Max ids that a selection takes from a sequence of `units` pages or tokens. */
static inline uint32_t max_selected(const struct skv_select *s, uint32_t units)
{
	const uint32_t pin = s->pin < units ? s->pin : units, most = skv_budget_of(s->budget, units, s->floor) + pin;
	return most < units ? most : units;
}

/* An entry of the score ring (score-ring.cuh): it holds the scores of one request at a time. All 0 between launches. */
struct ring_entry {
	uint32_t generation; /* number of requests that have released the entry */
	uint32_t items_done; /* number of work items of the current request that are done */
	uint32_t uses; /* number of completed uses of the current request's scores */
};

/* Byte offsets of arrays in the workspace of a call. Scores are in log2, as differences from a maximum. */
struct workspace_layout {
	size_t ring; /* struct ring_entry [MAX_REQUESTS]; at the same offset for all calls */
	size_t arrived; /* uint32_t [MAX_MERGED]; at the same offset for all calls */
	size_t taken; /* uint32_t; at the same offset for all calls */
	size_t partial; /* float [n][head tiles, or q heads][parts][partial_floats()]; or data of other kernels */
	size_t topk_max; /* float [n][q heads]: the maxima that `topk_scores` are relative to */
	size_t topk_scores; /* __half [n][tokens][head tiles][columns]; or 4 bytes per token and kv head, for any use */
	size_t score; /* __half [ring entries, or requests of `score_seqs` sequences][head tile][tokens][columns] */
	size_t page_max; /* float [entries and head tiles as in `score`][tokens / 16][columns] */
	size_t total; /* bytes in all; select_union() uses all bytes after `topk_scores`, for one sequence at least */
	uint32_t tokens; /* max tokens of a sequence, rounded up to whole pages */
	uint32_t ring_entries; /* entries of the score ring, each for one request */
	uint32_t score_seqs; /* sequences whose scores are stored at a time when tokens are selected by scores */
};
struct workspace_layout workspace_layout_of(const struct skv_shape *sh, uint32_t n, uint32_t max_len, uint32_t rows);

/*
 * Number of floats of a partial result: HEAD_TILE maxima, HEAD_TILE sums, and a row of head_dim for each of the tile's
 * heads.
 */
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
/* Workspace bytes after workspace_layout.partial that skv_cuda_decode_latent() uses. */
size_t skv_cuda_decode_latent_bytes(const struct skv_shape *, uint32_t n_seqs);
void skv_cuda_update_bounds(const struct skv_shape *, const struct skv_batch *, const struct skv_slot_mapping *,
                            const struct skv_workspace *);
void skv_cuda_score_pages(const struct skv_shape *, const struct skv_batch *, const void *q, uint32_t pool,
                          const struct skv_scores *, const struct skv_workspace *);
/* Make sketches of keys: of new rows while they are appended, or of keys that are already in their pages. */
void skv_cuda_append_sketches(const struct skv_shape *, const struct skv_batch *, const void *k, const void *v,
                              const struct skv_workspace *);
void skv_cuda_update_sketches(const struct skv_shape *, const struct skv_batch *, const struct skv_workspace *);
void skv_cuda_score_sketches(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_scores *,
                             const struct skv_workspace *);
void skv_cuda_select_sketches(const struct skv_shape *, const struct skv_batch *, const void *q, bool sum,
                              const struct skv_select *, struct skv_index_list *, const struct skv_workspace *);
/* Workspace bytes after workspace_layout.partial that the functions for sketches use. */
size_t skv_cuda_sketch_bytes(const struct skv_shape *, uint32_t n_seqs, uint32_t max_len);
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
#define UNION_SORT_BYTES 4096u /* CUB's temporary storage for a sort in two buffers */
size_t skv_cuda_union_bytes(const struct skv_shape *, uint32_t tokens); /* for one sequence, at most */

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
/* Workspace bytes that compress and decompress use after skv_cuda_workspace_offset(); shape->codec is set. */
size_t skv_cuda_compress_bytes(const struct skv_shape *);
size_t skv_cuda_decompress_bytes(const struct skv_shape *);
/* Compress and decompress for layers with KV quantization; these functions need no workspace memory. */
void skv_cuda_quantize(const struct skv_shape *, uint32_t n_layers, const struct skv_batch *,
                       const struct skv_workspace *);
void skv_cuda_dequantize(const struct skv_shape *, const struct skv_batch *, const struct skv_index_list *,
                         const struct skv_decompressed *, const struct skv_workspace *);
size_t skv_cuda_workspace_offset(const struct skv_shape *); /* end of the part that must stay 0 */

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
 * Workspace bytes of the kernels that fill lists of tiles, for batches within these bounds: the total, counted from the
 * beginning of the workspace, then the bytes that each kernel uses after skv_cuda_workspace_offset().
 */
size_t skv_cuda_tile_lists_bytes(const struct skv_shape *, const struct skv_batch *bounds, const struct skv_sparse *);
size_t skv_cuda_kascade_bytes(const struct skv_shape *, const struct skv_batch *bounds, const struct skv_sparse *);
size_t skv_cuda_hip_bytes(const struct skv_shape *, const struct skv_batch *bounds, const struct skv_sparse *);
size_t skv_cuda_minference_bytes(const struct skv_shape *, const struct skv_batch *bounds, const struct skv_sparse *);

/*
 * Does this build have the kernels that decode over pages of this shape, or, if `quantized`, over quantized KV? See
 * decode/instances.h.
 */
bool skv_cuda_decodes(const struct skv_shape *, bool quantized);

/* Permit kernels more shared memory than the default. Called on the current device, before the first launch. */
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

bool skv_cuda_overlaps(void); /* does the device have clusters and overlapping launches (Hopper and later)? */

#endif
