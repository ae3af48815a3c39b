/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/runtime/table.cu - the CUDA backend's table of functions, the shapes that it supports, and its
 * workspace.
 */
#include "kernels/compress-check.h"
#include "kernels/cuda/runtime/cuda.h"

static const char *unsupported(const struct skv_shape *sh)
{
	if (sh->dtype != SKV_F16 && sh->dtype != SKV_BF16 && sh->dtype != SKV_FP8)
		return "the CUDA kernels take pages of fp16, bf16 and fp8";
	if (sh->io_dtype > SKV_BF16)
		return "rows of q, k, v and out must be fp32, fp16 or bf16";
	if (sh->head_dim != 64 && sh->head_dim != 96 && sh->head_dim != 128 && sh->head_dim != 256)
		return "the CUDA kernels take a head_dim of 64, 96, 128 or 256";
	if (!skv_cuda_decodes(sh, false))
		return "the CUDA kernels of this build take a head_dim of 96 or 256 with pages of bf16 alone: configure it with --with-cuda-instances=all";
	if (sh->n_kv_heads == 0 || sh->n_heads == 0 || sh->n_heads % sh->n_kv_heads ||
	    sh->n_heads > SKV_MAX_HEADS)
		return "n_heads must be a multiple of n_kv_heads, at most 256";
	return NULL;
}

static const char *unsupported_codec(const struct skv_shape *sh)
{
	const struct skv_codec *c = sh->codec;
	const char *wrong = skv_codec_wrong(sh);

	if (sh->dtype == SKV_FP8)
		return "K and V are compressed from pages of fp16 or bf16, not of fp8";
	if (!wrong && c->kind == SKV_COMPRESS_QUANT && !skv_cuda_decodes(sh, true))
		return "the CUDA kernels of this build quantize KV with a head_dim of 64 or 128 alone: configure it with --with-cuda-instances=all";
	if (wrong || c->kind == SKV_COMPRESS_QUANT)
		return wrong;
	if (c->spans && c->bits != 16 && c->width / (2 * c->spans) % c->scale_block)
		return "width / (2 * spans) must be a multiple of group";
	if (c->rope_dims % 16)
		return "rope_dims must be a multiple of 16 on a device";
	return NULL;
}

static size_t larger_of(size_t a, size_t b)
{
	return a > b ? a : b;
}

static size_t carve(size_t *at, size_t bytes)
{
	const size_t here = *at;
	*at = (here + bytes + 255) / 256 * 256;
	return here;
}

/*
 * Size of the score ring, in tokens of head tiles. The ring has room for all work items that run at a time (an item of
 * a long sequence has more than a chunk's CHUNK_TILES), and for two whole sequences, whose scores may be in use. A
 * larger ring would leave too little of the L2 cache for other data; the size was found by measurement.
 */
static size_t ring_tokens(const struct skv_shape *sh, uint32_t n, uint32_t tokens)
{
	const size_t all = (size_t)n * n_head_tiles(sh) * tokens;
	const uint32_t chunk = CHUNK_TILES * SKV_PAGE_TOKENS, resident_items = skv_cuda_sms() * 2;
	const uint32_t item = tokens > MAX_CHUNKS * chunk ? tokens / MAX_CHUNKS : tokens < chunk ? tokens : chunk;
	const size_t some = (size_t)resident_items * item + 2 * (size_t)n_head_tiles(sh) * tokens;
	return all < some ? all : some;
}

/* Bytes of scores that stay in the L2 cache between the pass that stores scores and the pass that reads them. */
#define CACHED_SCORES (36u << 20)

/* Number of pages of scores of a sequence, over all its head tiles, and the bytes of the scores of one page. */
static size_t score_pages(const struct skv_shape *sh, uint32_t tokens)
{
	return (size_t)n_head_tiles(sh) * (tokens / SKV_PAGE_TOKENS);
}
static size_t score_page_bytes(const struct skv_shape *sh)
{
	return score_columns(sh) * (SKV_PAGE_TOKENS * sizeof(uint16_t) + sizeof(float));
}

/*
 * Number of sequences processed at a time when tokens are selected by stored scores: at least one. Batches are divided
 * into slices of about the same size.
 */
static uint32_t scored_sequences(const struct skv_shape *sh, uint32_t n, uint32_t tokens)
{
	const size_t each = score_pages(sh, tokens), most = CACHED_SCORES / score_page_bytes(sh) / (each ? each : 1);
	return most == 0 ? 1 : most < n ? ceil_div(n, ceil_div(n, (uint32_t)most)) : n;
}

/*
 * Room for the stored scores of scored_sequences(), in tokens of head tiles. It also suffices for calls with smaller
 * bounds, which process more sequences at a time.
 */
static size_t scored_tokens(const struct skv_shape *sh, uint32_t n, uint32_t tokens)
{
	const size_t one = score_pages(sh, tokens), some = larger_of(one, CACHED_SCORES / score_page_bytes(sh));
	return (n * one < some ? n * one : some) * SKV_PAGE_TOKENS;
}

/*
 * Max runs of a work item if blocks take several items. If results have few values, writing many results costs less
 * than long items.
 */
static uint32_t later_runs(uint32_t heads, uint32_t head_dim)
{
	return heads * head_dim <= 128 ? 4 : max_item_runs(heads, head_dim);
}

/* Max work items per SM, unless items have the largest size. */
#define SM_ITEMS 8u

#define MERGE_LAUNCH 10000u /* ns of a launch that merges results */
#define MERGE_BLOCKS 3000u /* ns of a merge by the decode kernel's own blocks */

/* Nanoseconds in which an SM, with its share of the memory bandwidth, reads a tile. */
static uint64_t tile_time(const struct launch_size *l)
{
	return 360 * l->head_dim / 128;
}

/*
 * Estimates a launch's time in nanoseconds. The time is the larger of two: the busiest SM's reads, and the waits of its
 * warps, if there are few warps. Added to it is the time to write and merge results, including the next launch's wait
 * for them. The constants were measured on an H100.
 */
static uint64_t time_of(struct division by, const struct launch_size *l)
{
	const uint32_t parts = items_of(by, l->tiles);
	const uint32_t merge = parts == 1 ? 0 : merges_itself(l->head_tiles, parts, l->blocks) ? MERGE_BLOCKS : MERGE_LAUNCH;
	const uint64_t items = (uint64_t)l->head_tiles * parts;
	const uint64_t runs = (items + l->blocks - 1) / l->blocks * by.item_runs, rounds = (runs + 7) / 8;
	const uint64_t reads = runs * by.run_tiles * tile_time(l), waits = rounds * (by.run_tiles * 600 + 1500);

	return (reads > waits ? reads : waits) + items * 2 + merge;
}

/*
 * Nanoseconds of work that justify a block if other streams wait for its SM. With half of this value, work took 2%
 * longer; with a quarter of it, 25% (H100).
 */
#define BLOCK_WORK 40000u

uint32_t launch_blocks(const struct launch_size *l, uint32_t beside)
{
	const uint64_t work = (uint64_t)l->head_tiles * l->tiles * tile_time(l), blocks = (work + BLOCK_WORK - 1) / BLOCK_WORK;
	const uint32_t sms = skv_cuda_sms();

	return beside == 0 || blocks > sms ? sms : blocks ? (uint32_t)blocks : 1;
}

/*
 * Chooses the sizes of runs and work items. Results have the same bits however requests are divided. Large runs and
 * items are better as long as there are enough for all SMs: each run and item has a fixed cost at its beginning and
 * end, and each item writes a result.
 */
struct division divide_requests(const struct launch_size *l, uint32_t most)
{
	struct division best = {most * LEAF_TILES, max_item_runs(l->heads, l->head_dim)};
	uint64_t least = UINT64_MAX;

	for (struct division by = best; by.run_tiles >= LEAF_TILES; by.run_tiles /= 2)
		for (by.item_runs = max_item_runs(l->heads, l->head_dim); by.item_runs; by.item_runs /= 2) {
			const uint64_t items = (uint64_t)l->head_tiles * items_of(by, l->tiles), time = time_of(by, l);
			if (least != UINT64_MAX && (items > SM_ITEMS * l->blocks || time * 25 > least * 24))
				continue;
			best = by;
			least = time;
		}
	if ((uint64_t)l->head_tiles * items_of(best, l->tiles) > l->blocks && best.run_tiles >= RUN_FEWER * LEAF_TILES)
		best.item_runs = min(best.item_runs, later_runs(l->heads, l->head_dim));
	return best;
}

/*
 * Like divide_requests(), for teams of warps: each team takes `team` head tiles of eight heads together, one run at a
 * time. Their results have many values.
 */
struct division divide_among_teams(const struct launch_size *l, uint32_t team, uint32_t most)
{
	struct division best = {most * LEAF_TILES, 1};
	const uint32_t teams = 8 / team;
	uint64_t least = UINT64_MAX;

	for (struct division by = best; by.run_tiles >= LEAF_TILES; by.run_tiles /= 2) {
		const uint64_t results = (uint64_t)l->head_tiles * items_of(by, l->tiles), runs = results / team;
		const uint64_t rounds = (runs + l->blocks - 1) / l->blocks;
		const uint64_t reads = rounds * by.run_tiles * tile_time(l), waits = (rounds + teams - 1) / teams * (by.run_tiles * 500 + 2000);
		const uint64_t time = (reads > waits ? reads : waits) + results * 4;

		if (least != UINT64_MAX && (results > SM_ITEMS * l->blocks || time * 25 > least * 24))
			continue;
		best = by;
		least = time;
	}
	return best;
}

/*
 * Max number of partial results of a launch over `head_tiles` head tiles of `heads` heads each, in requests of at most
 * `tokens` tokens.
 */
static size_t partial_results(const struct skv_shape *sh, uint32_t head_tiles, uint32_t heads, uint32_t tokens)
{
	const uint32_t tiles = tokens / SKV_PAGE_TOKENS + 3; /* with a window, pages are cut at up to three positions */
	const struct division largest = {RUN_FEWER * LEAF_TILES, later_runs(heads, sh->head_dim)};
	const size_t chunks = (size_t)head_tiles * MAX_CHUNKS, items = (size_t)head_tiles * items_of(largest, tiles);
	const size_t few = SM_ITEMS * (size_t)skv_cuda_sms();

	return larger_of(larger_of(chunks, items), few);
}

struct workspace_layout workspace_layout_of(const struct skv_shape *sh, uint32_t n, uint32_t max_len, uint32_t rows)
{
	struct workspace_layout l;
	size_t at = 0;

	l.tokens = skv_pages_of(max_len) * SKV_PAGE_TOKENS;
	const size_t all = (size_t)n * n_head_tiles(sh) * l.tokens, some = ring_tokens(sh, n, l.tokens);
	const size_t owner = (size_t)n_head_tiles(sh) / rows * l.tokens;
	l.ring_entries = owner ? some / owner < MAX_REQUESTS ? (uint32_t)(some / owner) : MAX_REQUESTS : 0;
	l.ring = carve(&at, MAX_REQUESTS * sizeof(struct ring_entry));
	l.arrived = carve(&at, MAX_MERGED * sizeof(uint32_t));
	l.taken = carve(&at, sizeof(uint32_t));
	/* The factor 2 makes this an upper bound: MODE_TEAMS rounds up the head tiles of a kv head. */
	const uint32_t head_tiles = 2 * n * n_head_tiles(sh);
	const size_t together = partial_results(sh, head_tiles, HEAD_TILE, l.tokens) * partial_floats(HEAD_TILE, sh->head_dim);
	const size_t apart = partial_results(sh, n * sh->n_heads, 1, l.tokens) * partial_floats(1, sh->head_dim);
	l.partial = carve(&at, larger_of(together, apart) * sizeof(float));
	l.topk_max = carve(&at, (size_t)n * sh->n_heads * sizeof(float));
	l.topk_scores = carve(&at, all * score_columns(sh) * sizeof(uint16_t));
	const size_t scored = larger_of(some, scored_tokens(sh, n, l.tokens));
	l.score_seqs = scored_sequences(sh, n, l.tokens);
	l.score = carve(&at, scored * score_columns(sh) * sizeof(uint16_t));
	l.page_max = carve(&at, scored / SKV_PAGE_TOKENS * score_columns(sh) * sizeof(float));
	const size_t least = l.topk_scores + skv_cuda_union_bytes(sh, l.tokens);
	l.total = at > least ? at : least;
	return l;
}

static size_t workspace_bytes(const struct skv_shape *sh, uint32_t n_seqs, uint32_t n_rows, uint32_t max_len,
                         int threads)
{
	(void)threads;
	const struct workspace_layout l = workspace_layout_of(sh, n_seqs, max_len, 1);
	const size_t accumulate = l.partial + (size_t)n_rows * sh->n_heads * PROMPT_CHUNKS * sizeof(float2);
	const size_t compress = sh->codec ? l.partial + skv_cuda_compress_bytes(sh) : 0;
	const size_t decompress = sh->codec ? l.partial + skv_cuda_decompress_bytes(sh) : 0;
	const size_t codes = sh->codec && skv_cuda_fuses_latent(sh) ? l.partial + skv_cuda_decode_latent_bytes(sh, n_seqs) : 0;
	const size_t sketches = sh->sketch_bits ? l.partial + skv_cuda_sketch_bytes(sh, n_seqs, max_len) : 0;
	return larger_of(larger_of(larger_of(accumulate, l.total), sketches), larger_of(larger_of(compress, decompress), codes));
}

size_t skv_cuda_workspace_offset(const struct skv_shape *sh)
{
	return workspace_layout_of(sh, 0, 0, 1).partial;
}

size_t skv_cuda_tile_lists_bytes(const struct skv_shape *sh, const struct skv_batch *bounds,
                                 const struct skv_sparse *sp)
{
	const size_t best = skv_cuda_kascade_bytes(sh, bounds, sp), stages = skv_cuda_hip_bytes(sh, bounds, sp);

	if (!sp->n_saved_queries) /* no tile has a representative row */
		return 0;
	return skv_cuda_workspace_offset(sh) + (sp->segment ? skv_cuda_minference_bytes(sh, bounds,
	                                                                                sp) : larger_of(best,
	                                                                                                stages));
}

static const struct skv_kernels cuda = {
	.name = "cuda",
	.unsupported = unsupported,
	.workspace_bytes = workspace_bytes,
	.append = skv_cuda_append,
	.copy_pages = skv_cuda_copy_pages,
	.decode_dense = skv_cuda_decode_dense,
	.decode_window = skv_cuda_decode_window,
	.decode_pages = skv_cuda_decode_pages,
	.decode_tokens = skv_cuda_decode_tokens,
	.decode_topk = skv_cuda_decode_topk,
	.update_bounds = skv_cuda_update_bounds,
	.score_pages = skv_cuda_score_pages,
	.update_sketches = skv_cuda_update_sketches,
	.score_sketches = skv_cuda_score_sketches,
	.select_sketches = skv_cuda_select_sketches,
	.sum_pages = skv_cuda_sum_pages,
	.select = skv_cuda_select,
	.select_union = skv_cuda_select_union,
	.recall = skv_cuda_recall,
	.alloc_slots = skv_cuda_alloc_slots,
	.move_partial_page = skv_cuda_move_partial_page,
	.alloc_prompt_slots = skv_cuda_alloc_prompt_slots,
	.init_slot_meta = skv_cuda_init_slot_meta,
	.accumulate_scores = skv_cuda_accumulate_scores,
	.accumulate_list = skv_cuda_accumulate_list,
	.accumulate_prompt = skv_cuda_accumulate_prompt,
	.rank_tokens = skv_cuda_rank_tokens,
	.evict = skv_cuda_evict,
	.allocate_head_budgets = skv_cuda_allocate_head_budgets,
	.list_active = skv_cuda_list_active,
	.touch_pages = skv_cuda_touch_pages,
	.prefill_dense = skv_cuda_prefill_dense,
	.prefill_sparse = skv_cuda_prefill_sparse,
	.prefill_sparse_bytes = skv_cuda_prefill_sparse_bytes,
	.save_queries = skv_cuda_save_queries,
	.kascade_lists = skv_cuda_kascade_lists,
	.hip_lists = skv_cuda_hip_lists,
	.minference_lists = skv_cuda_minference_lists,
	.unsupported_codec = unsupported_codec,
	.gather_tokens = skv_cuda_gather_tokens,
	.compress = skv_cuda_compress,
	.decompress = skv_cuda_decompress,
	.fuses_latent = skv_cuda_fuses_latent,
	.decode_latent = skv_cuda_decode_latent,
};

extern "C" const struct skv_kernels *skv_kernels_cuda(void)
{
	return &cuda;
}
