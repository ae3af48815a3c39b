/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/runtime/cuda.h - how the parts of the CUDA backend see each other.
 *
 *   decode.cu    one query row a sequence, over all pages, a window, pages or tokens, with pooled weights of
 *                tokens and pages, or choosing tokens on the way (decode.cuh, merge.cu)
 *   decode-codes.cu  one query row a sequence, over tokens of a layer that packs (decode-codes.cuh)
 *   select.cu    top-k by radix select
 *   union.cu     one list of what q heads want
 *   prefill.cu   causal attention of many rows, dense and sparse (prompt.cuh, prompt-out.cuh, rows.cuh)
 *   prefill-wide.cu  the same with products of warpgroups (wide.cuh, wgmma.cuh)
 *   kept.cu      queries that a prompt's later calls need
 *   tiles.cu     Kascade's lists of tiles (strided.cuh); stages.cu: HiP's; lines.cu: MInference's
 *   append.cu    K and V into pages, copies of pages
 *   bounds.cu    bounds of pages, scores by them
 *   place.cu     slots of new tokens, notes carried from step to step (notes.cuh)
 *   votes.cu     values of tokens: the attention that they get
 *   rank.cu      ranks by values
 *   keep.cu      which units live on (nth.cuh)
 *   allot.cu     heads that share a layer's budget: who is awake, votes over these, the allotment
 *   stamp.cu     which pages matter
 *   pack.cu      tokens become references and codes (codes.cuh): search.cu, encode.cu (gemm.cuh)
 *   rebuild.cu   and rows again
 *   low.cu       K and V in few bits
 *   table.cu     the table of functions, scratch
 *   module.h     the module around them: devices, memory, streams, graphs, steps (kernels/device.h)
 *   read.cu      a plain read, to measure against
 *
 * Kernels are launched on the caller's stream and on whatever device is current. A launch that fails shows
 * at the caller's next check of the stream (cudaGetLastError), like every asynchronous error.
 *
 * Scratch (skv_work.mem) is laid out by struct layout from shape and bounds alone, so that a recorded graph
 * finds everything where it was.
 */
#ifndef SKV_CUDA_H
#define SKV_CUDA_H

#include <cuda_runtime.h>
#include "kernels/compress.h"
#include "kernels/evict.h"
#include "kernels/kernels.h"
#include "kernels/prefill.h"
#include "kernels/select.h"

#define HEAD_TILE 8u      /* q heads of one kv head that a warp takes together: columns of one product */
#define CHUNKS_MOST 8u
#define CHUNK_TILES 256u /* of a chunk, at most, until there are CHUNKS_MOST */
#define OWNERS_MOST 512u /* sequences, or lists of them, of one launch of decode */

static inline uint32_t ceil_div(uint32_t a, uint32_t b)
{
	return (a + b - 1) / b;
}

/*
 * How many chunks an owner of so many tiles (16 tokens each) is cut into, all of one length. They keep a
 * device busy when there are few owners; but each writes a partial result, and starts anew.
 */
static inline __host__ __device__ uint32_t chunks_of(uint32_t tiles)
{
	const uint32_t n = (tiles + CHUNK_TILES - 1) / CHUNK_TILES;
	return n == 0 ? 1 : n < CHUNKS_MOST ? n : CHUNKS_MOST;
}

/* Columns of products: a kv head's group in tiles of HEAD_TILE heads; but heads with lists of their own are apart. */
static inline uint32_t head_tiles(const struct skv_shape *sh)
{
	return sh->n_kv_heads * ceil_div(sh->n_heads / sh->n_kv_heads, HEAD_TILE);
}

/* Columns of a head tile's scores, an even number: the heads of a group, or a tile's. */
static inline uint32_t columns(const struct skv_shape *sh)
{
	const uint32_t group = sh->n_heads / sh->n_kv_heads;
	return group < HEAD_TILE ? (group + 1) / 2 * 2 : HEAD_TILE;
}

/* The most units that a selection takes of so many. */
static inline uint32_t select_most(const struct skv_select *s, uint32_t units)
{
	const uint32_t pin = s->pin < units ? s->pin : units, most = skv_budget_of(s->budget, units, s->floor) + pin;
	return most < units ? most : units;
}

/* A place for the scores of one owner after the other: slots.cuh. All 0 between launches. */
struct slot {
	uint32_t turn; /* owners that have left */
	uint32_t jobs; /* of this one that are done */
	uint32_t uses; /* likewise */
};

/* Byte offsets in the scratch of a call. Scores are in log2, as differences from a maximum. */
struct layout {
	size_t slot;     /* struct slot [OWNERS_MOST]; at the same place for all calls */
	size_t part;     /* float [n][head tiles, or q heads][CHUNKS_MOST][part_floats()]; of votes: votes.cu */
	size_t chosen;   /* __half [n][tokens][head tiles][columns]; or 4 bytes a token and kv head, whatever for */
	size_t score;    /* __half [slots of head tiles][tokens][columns] */
	size_t top;      /* float [slots of head tiles][tokens / 16][columns] */
	size_t total;    /* a union of heads has all from `chosen` on, room for a sequence at least */
	uint32_t tokens; /* of a sequence, at most: whole pages */
	uint32_t slots;  /* for a sequence's rows, or fewer */
};
struct layout layout_of(const struct skv_shape *sh, uint32_t n, uint32_t max_len, uint32_t rows);

/* A partial result: HEAD_TILE maxima, HEAD_TILE sums, and a row of head_dim for each of the tile's heads. */
static inline __host__ __device__ uint32_t part_floats(uint32_t heads, uint32_t head_dim)
{
	return 2 * HEAD_TILE + heads * head_dim;
}

static inline cudaStream_t stream_of(const struct skv_work *w)
{
	return (cudaStream_t)w->stream;
}

void skv_cuda_append(const struct skv_shape *, const struct skv_batch *, const struct skv_slots *, const void *k,
                     const void *v, const struct skv_work *);
void skv_cuda_copy_pages(const struct skv_shape *, const uint32_t *dst, const uint32_t *src, uint32_t n,
                         const struct skv_work *);
void skv_cuda_decode_dense(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                           const struct skv_evidence *, const struct skv_work *);
void skv_cuda_decode_window(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                            const struct skv_window *, const struct skv_work *);
void skv_cuda_decode_pages(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                           const struct skv_list *, const struct skv_work *);
void skv_cuda_decode_tokens(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                            const struct skv_list *, const struct skv_work *);
void skv_cuda_decode_chosen(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                            const struct skv_evidence *, const struct skv_select *, struct skv_list *,
                            const struct skv_work *);
void skv_cuda_decode_codes(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                           const struct skv_list *, const struct skv_work *);
bool skv_cuda_fuses(const struct skv_shape *);
size_t skv_cuda_decode_codes_bytes(const struct skv_shape *, uint32_t n_seqs); /* from layout.part on */
void skv_cuda_update_bounds(const struct skv_shape *, const struct skv_batch *, const struct skv_slots *,
                            const struct skv_work *);
void skv_cuda_score_pages(const struct skv_shape *, const struct skv_batch *, const void *q, uint32_t pool,
                          const struct skv_evidence *, const struct skv_work *);
void skv_cuda_prefill_dense(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                            const struct skv_work *);
void skv_cuda_prefill_sparse(const struct skv_shape *, const struct skv_batch *, const void *q, void *out,
                             const struct skv_sparse *, const struct skv_work *);
size_t skv_cuda_sparse_bytes(const struct skv_shape *, const struct skv_batch *bounds, const struct skv_sparse *, int threads);
void skv_cuda_select(const struct skv_shape *, const struct skv_batch *, const struct skv_evidence *,
                     bool tokens, const struct skv_select *, struct skv_list *, const struct skv_work *);
void skv_cuda_recall(const struct skv_shape *, const struct skv_batch *, const struct skv_evidence *,
                     const struct skv_seen *, float *ret, const struct skv_work *);

void skv_cuda_select_union(const struct skv_shape *, const struct skv_batch *, const struct skv_evidence *,
                           const struct skv_select *, struct skv_list *, const struct skv_work *);
#define UNION_SORT_BYTES 4096u /* that sorting in two buffers asks for beside them: hardly anything */
size_t skv_cuda_union_bytes(const struct skv_shape *, uint32_t tokens); /* of one sequence, at most */

void skv_cuda_place(const struct skv_shape *, const struct skv_batch *, const struct skv_slots *,
                    const struct skv_work *);
void skv_cuda_lift(const struct skv_shape *, const struct skv_batch *, const struct skv_work *);
void skv_cuda_place_prompt(const struct skv_shape *, const struct skv_batch *, const struct skv_slots *,
                           const struct skv_work *);
void skv_cuda_note_resident(const struct skv_shape *, const struct skv_batch *, const struct skv_slots *,
                            const struct skv_work *);
void skv_cuda_tally(const struct skv_shape *, const struct skv_batch *, const struct skv_evidence *,
                    const struct skv_work *);
void skv_cuda_tally_list(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_list *,
                         const struct skv_work *);
void skv_cuda_tally_prompt(const struct skv_shape *, const struct skv_batch *, const void *q, uint32_t window,
                           const struct skv_work *);
void skv_cuda_rank(const struct skv_shape *, const struct skv_batch *, const struct skv_rank *, float *rank,
                   uint32_t stride, const struct skv_work *);
void skv_cuda_keep(const struct skv_shape *, const struct skv_batch *, const struct skv_keep_by *, const float *rank,
                   uint32_t stride, const struct skv_work *);
void skv_cuda_allot(const struct skv_shape *, const struct skv_batch *, const struct skv_allot *, const float *rank,
                    uint32_t stride, const struct skv_work *);
void skv_cuda_list_awake(const struct skv_shape *, const struct skv_batch *, struct skv_list *, const struct skv_work *);
void skv_cuda_stamp(const struct skv_shape *, const struct skv_batch *, const struct skv_evidence *,
                    const struct skv_stamp *, struct skv_list *, const struct skv_work *);

void skv_cuda_pack(const struct skv_shape *, uint32_t n_layers, const struct skv_batch *, const struct skv_work *);
void skv_cuda_rebuild(const struct skv_shape *, const struct skv_batch *, const struct skv_list *, const struct skv_rebuilt *,
                      const struct skv_work *);
/* Scratch of these two, from skv_cuda_scratch_at() on; shape->code is set. */
size_t skv_cuda_pack_bytes(const struct skv_shape *);
size_t skv_cuda_rebuild_bytes(const struct skv_shape *);
/* The same of layers that keep K and V in few bits, without scratch. */
void skv_cuda_pack_low(const struct skv_shape *, uint32_t n_layers, const struct skv_batch *, const struct skv_work *);
void skv_cuda_rebuild_low(const struct skv_shape *, const struct skv_batch *, const struct skv_list *,
                          const struct skv_rebuilt *, const struct skv_work *);
size_t skv_cuda_scratch_at(const struct skv_shape *); /* behind what is to stay 0 */

void skv_cuda_keep_queries(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
                           const struct skv_work *);
void skv_cuda_tile_best(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
                        struct skv_budget top, uint32_t floor, const struct skv_tiles *ret, const struct skv_work *);
void skv_cuda_tile_stages(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
                          const uint32_t keep[SKV_HIP_STAGES], const struct skv_tiles *ret, const struct skv_work *);
void skv_cuda_tile_lines(const struct skv_shape *, const struct skv_batch *, const void *q, const struct skv_sparse *,
                         uint32_t vertical, uint32_t slash, const struct skv_tiles *units, const struct skv_tiles *more,
                         const struct skv_work *);
/* Scratch of those that fill lists of tiles, from its beginning, on batches within these bounds; of one, behind what stays 0. */
size_t skv_cuda_tiles_bytes(const struct skv_shape *, const struct skv_batch *bounds, const struct skv_sparse *);
size_t skv_cuda_best_bytes(const struct skv_shape *, const struct skv_batch *bounds, const struct skv_sparse *);
size_t skv_cuda_stages_bytes(const struct skv_shape *, const struct skv_batch *bounds, const struct skv_sparse *);
size_t skv_cuda_lines_bytes(const struct skv_shape *, const struct skv_batch *bounds, const struct skv_sparse *);

/* Before the first launch on a device, which is current: more shared memory than kernels have by default. */
cudaError_t skv_cuda_decode_init(void);
cudaError_t skv_cuda_decode_low_init(void); /* of skv_cuda_decode_init() */
cudaError_t skv_cuda_decode_codes_init(uint32_t room);
cudaError_t skv_cuda_prefill_init(void);
cudaError_t skv_cuda_select_init(void);
cudaError_t skv_cuda_votes_init(void);
cudaError_t skv_cuda_tiles_init(void);
cudaError_t skv_cuda_stages_init(void);
cudaError_t skv_cuda_lines_init(void);
cudaError_t skv_cuda_search_init(void);
cudaError_t skv_cuda_encode_init(void);
cudaError_t skv_cuda_rebuild_init(void);

/* Multiprocessors of the current device; bytes of shared memory that a block of it may have. */
uint32_t skv_cuda_sms(void);
uint32_t skv_cuda_room(void);

#endif
