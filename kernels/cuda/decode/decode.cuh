/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/decode/decode.cuh - decode attention: one query row per sequence.
 *
 *   decode.cuh         parameters, requests and split-KV work items: how work is partitioned
 *   tile.cuh           what a warp does with a tile
 *   leaf.cuh           what a warp does with a leaf, which has LEAF_TILES tiles
 *   score-ring.cuh     the ring of scores between the warps that compute them and the warps that use them
 *   scores.cuh         the helper warp that reduces scores to softmax weights of tokens and pages
 *   parts.cuh          sums of partial results
 *   decode-leaves.cuh  the kernel without helper warps
 *   decode-teams.cuh   the kernel for many columns
 *   decode-kernel.cuh  the kernel whose scores are used while it runs, with the merge of an item's warps
 *   ../compress/decode-quant.cuh  tiles of quantized KV, for decode-leaves.cuh and decode-kernel.cuh
 *   instances.h        the table of these kernels; instance.cu is compiled for each head dimension and mode
 *   decode.cu          launches
 *   merge.cu           the split-KV merge of a request's partial results
 *   ../select/topk-scores.cu  the top-k tokens by stored scores
 *
 * Decoding is bound by memory bandwidth. Each K and V row is read once, directly into the registers that feed the
 * tensor cores, and speed depends on keeping enough reads in flight. So K and V are not staged in shared memory, unless
 * several warps need them: a warp uses one tile of 16 tokens while its next tiles are being loaded.
 *
 * The tensor core product (mma.m16n8k16) takes the 16 tokens of a tile as rows and up to 8 q heads of one kv head as
 * columns. Both products of attention, K Qᵀ and Vᵀ Pᵀ, sum over an index whose order is free. The loads choose this
 * order so that a lane reads 16 consecutive bytes (lane = 4 g + c):
 *
 *   scores Sᵀ = K Qᵀ: lane (g, c) holds dimensions 32 b + 8 c … + 7 of tokens g and g + 8, and of head g of q
 *   output Oᵀ = Vᵀ Pᵀ: lane (g, c) holds dimensions 64 b + 8 g … + 7 of tokens 2 c, 2 c + 1, 2 c + 8, 2 c + 9
 *
 * After the first product a lane has the scores Sᵀ of tokens g and g + 8 for heads 2 c and 2 c + 1. The second product
 * needs weights Pᵀ of tokens 2 c … for head g in the lane. The instruction movmatrix transposes them.
 *
 * A request is a sequence, or one of its kv heads or q heads if that head has an index list of its own. The tokens of a
 * request are divided into leaves of LEAF_TILES tiles. Each leaf has a separate softmax. The results of leaves are
 * added in pairs, the results of pairs in pairs, and so on (parts.cuh), so the order of additions is fixed. A launch
 * may therefore be divided in any way that keeps all SMs busy (divide_requests()), and the bits of a result depend on
 * the sequence alone, not on the batch.
 *
 * A warp takes a run: one leaf, or two or four consecutive leaves, whose results the warp adds itself. A work item is
 * one or more runs of a request and head tile. The grid is persistent, with one block per SM: a block takes its next
 * work item when its warps get to it, and the warps take the item's runs round robin. Of two neighbouring sums, the one
 * that is ready first is left in shared memory; the warp with the other sum adds both and goes on to the next pair. So
 * no warp adds all runs of an item, and no warp waits for another warp's reads: while one warp locates its tiles or
 * adds, the other warps load.
 *
 * Results of a work item go to memory only if its request has several items. If there are few items, and no block has
 * two, the last block of a request adds the results of the request's items; else merge.cu adds them. (Letting blocks
 * with further items add results was tried: a warp that signals its result waits for its outstanding reads.) There are
 * as few items as possible, because writes among the reads cost bandwidth many times their size: 1.6% of writes make
 * reading 9% slower.
 *
 * In passes that write weights, a request is divided along KV into a few chunks, whose number depends only on the
 * request's length. A chunk of one request and head tile is a work item, whose tiles the block's warps take round
 * robin.
 *
 * Scores are in log2: the scale includes the factor log2(e).
 */
#ifndef SKV_CUDA_DECODE_CUH
#define SKV_CUDA_DECODE_CUH

#include "kernels/cuda/runtime/convert.cuh"
#include "kernels/cuda/runtime/cuda.h"
#include "kernels/cuda/runtime/softmax.cuh"
#include "kernels/cuda/compress/quant.cuh"

#define TEAM_DIM 128 /* max head_dim of MODE_TEAMS, because waiting sums take all registers */
#define TEAM_RUN_LEAVES 16u

#define BATCH 32 /* tiles that a warp locates at a time: lane k locates tile k */

enum kv_source { KV_DENSE, KV_WINDOW, KV_PAGES, KV_TOKENS };

/*
 * Variants that the kernels are compiled for. In MODE_TOKENS and later modes, a tile is 16 listed tokens in any slots.
 */
enum decode_mode {
	MODE_PLAIN,
	MODE_TEAMS,     /* teams of warps process several head tiles together: several rows, or large GQA groups */
	MODE_SCORES,    /* scores are reduced to weights of tokens and pages */
	MODE_TOPK_KEYS, /* scores are stored for topk-scores.cu; V is not read, and there is no output */
	MODE_QUANT,     /* like MODE_PLAIN, over quantized KV: decode-quant.cuh */
	MODE_QUANT_SCORES, /* like MODE_SCORES, over quantized KV */
	MODE_TOKENS,
	MODE_TOPK_VALUES /* listed tokens whose scores are known: K is not read */
};

template <enum decode_mode mode> static constexpr bool quantized = mode == MODE_QUANT || mode == MODE_QUANT_SCORES;
/* Does the pass write its scores to the score ring, from which one helper warp per block reduces them? */
template <enum decode_mode mode>
static constexpr bool writes_scores = mode == MODE_SCORES || mode == MODE_QUANT_SCORES;
/* Does a warp attend to whole leaves, rather than to single tiles? */
template <enum decode_mode mode> static constexpr bool by_leaves = !writes_scores<mode>;

/*
 * Warps of a block that read K and V, without helper warps; there is one block per SM. The number of all warps is
 * limited by the registers, and is a multiple of four, since each quarter of an SM has its own registers. So the helper
 * warp that reduces scores takes the place of a reading warp. Eight warps with two tiles in flight are as fast as
 * twelve warps with one tile, and need less shared memory.
 */
template <int D, enum decode_mode mode>
static constexpr int warps =
	(D <= 128 && (quantized<mode> || mode == MODE_SCORES) ? 12 : 8) - writes_scores<mode>;

/* Dimensions of a result; 0 if only scores are computed. */
template <int D, enum decode_mode mode> static constexpr int result_dims = mode == MODE_TOPK_KEYS ? 0 : D;

/* Number of elements read per token, counted in dimensions of K and V: half of head_dim if only K is read. */
static inline __host__ __device__ constexpr uint32_t dims_read(uint32_t head_dim, enum decode_mode mode)
{
	return mode == MODE_TOPK_KEYS ? head_dim / 2 : head_dim;
}

/*
 * Max leaves of a run, for head tiles of `heads` heads. In shared memory, a leaf's result waits for the result that it
 * is added to. Loads in flight need the rest of the SM's memory, so a few kilobytes are worth more than long runs.
 */
template <int D, enum decode_mode mode>
static constexpr uint32_t run_leaves = mode == MODE_TOPK_KEYS || (mode == MODE_PLAIN && D <= 128) ? RUN_LEAVES : RUN_FEWER;
static inline uint32_t run_leaves_of(uint32_t head_dim, enum decode_mode mode, uint32_t heads)
{
	return mode == MODE_TOPK_KEYS || (mode == MODE_PLAIN && head_dim <= 128 && heads <= HEAD_TILE / 2) ? RUN_LEAVES : RUN_FEWER;
}

struct decode_params {
	const struct skv_kseq *seq;
	const uint8_t *pool;
	size_t page_bytes;
	const void *q;
	void *out;
	uint32_t q_stride, out_stride; /* elements from one row to the next, of q and of out */
	struct score_scale scale;
	const float *sinks; /* [q head] logits of sinks, or NULL */
	float *lse;         /* [row][q head] log-sum-exp without the sink's term, or NULL */
	uint32_t n_heads, n_kv_heads, group, layer, io_dtype;
	/*
	 * `rows`: rows of a sequence in one request. `columns`: columns of a kv head, [row][head of the group]. `seq`
	 * points at the entries of the sequences' last rows in skv_batch.seq.
	 */
	uint32_t rows, columns;
	enum kv_source source;
	struct skv_window window; /* for KV_WINDOW */
	struct skv_index_list list;     /* for KV_PAGES, KV_TOKENS */
	float *partial;
	uint32_t parts;       /* max partial results of a head tile, for which the workspace has room */
	/*
	 * [seq][head tile] blocks that are done; 0 between launches. The request's last block merges. NULL: merge.cu
	 * merges.
	 */
	uint32_t *arrived;
	uint32_t blocks;      /* max blocks of the launch */
	uint32_t *taken;      /* work items taken so far, except each block's first one; 0 between launches */
	struct division by;   /* how leaves form runs, and runs form items; item_runs is 0 if an item is a chunk */
	uint32_t run_slots;   /* sums of runs that shared memory has room for, at least for two items */
	uint32_t result_heads; /* max heads of each sum in shared memory: those of a head tile */
	/* The score ring (score-ring.cuh): scores of requests, as differences from running maxima stored per page. */
	struct ring_entry *ring;
	uint32_t ring_entries;
	/*
	 * Scores of the ring's entries. In MODE_TOPK_KEYS each request of a launch has an entry, and there is no ring.
	 */
	__half *score; /* [entry][head tile of the request][token][column] scores */
	float *page_max; /* [entry][head tile of the request][page][column] maxima */
	/* Outputs of helper warps, and `lse`; a NULL pointer in it: this output is not wanted. */
	struct skv_scores ev;
	struct skv_select select; /* the selection that follows MODE_TOPK_KEYS */
	__half *topk_scores; /* [request][token of its list][head tile][column]: differences from topk_max */
	float *topk_max;     /* [seq][q head]: the head's maximum score */
	uint32_t tokens; /* max tokens of a sequence: workspace_layout.tokens */
	uint32_t tile_heads, tiles_per_kv_head; /* max columns of a head tile; head tiles of a kv head */
	uint32_t heads, request_head_tiles; /* head tiles of a sequence; head tiles of a request */
	/* Warps of a team in MODE_TEAMS: 2, 4 or 8, a divisor of tiles_per_kv_head. 0 in other modes. */
	uint32_t team;
	uint32_t cols; /* columns of a tile's scores */
	uint32_t first_request, n_requests; /* index of the first request of this launch; number of its requests */
	struct quant_form quant; /* for MODE_QUANT and MODE_QUANT_SCORES: the form of quantized KV */
};

/* Does the pass have output? A pass for scores alone has none. */
template <enum decode_mode mode> DEVICE bool has_output(const struct decode_params *c)
{
	return mode != MODE_TOPK_KEYS && (!writes_scores<mode> || c->out);
}

/* A split-KV work item as one warp sees it: a chunk, or some runs, of a request, for one head tile. */
struct work_item {
	uint32_t i, x, request;  /* indices of the sequence, of its head tile, and of the request */
	uint32_t h, head, heads; /* kv head; the tile's first column and number of columns (q heads if rows is 1) */
	uint32_t len;
	const skv_pte *table;
	uint32_t entry, generation; /* index of the request's ring entry; ring generation of the request */
	uint32_t chunk, chunks; /* index of the work item in its request; number of the request's items */
	uint32_t first, n; /* the item's tiles are tiles [first, first + n) of the request */
	uint32_t stream;   /* this warp takes tiles `stream`, `stream` + warps, ... of the item; unused with leaves */
};

/*
 * A batch of a warp's tiles, located: lane k has the page id of tile k and a mask of its tokens that count. A tile is a
 * page, or 16 listed tokens in any slots. The KV slots of listed tokens (page id * 16 + row) are in shared memory.
 */
struct tile_batch {
	uint32_t n, page, mask;
	uint32_t quant; /* offset of the tile's record in its page, bit 0: its second half; or NOT_QUANTIZED */
	uint32_t *slots; /* [BATCH * 16] KV slots of listed tokens */
};
#define NOT_QUANTIZED 0xffffffffu

/* ---- requests and work items ----------------------------------------------------------------- */

/* Returns the number of the list of tokens that a request attends to. */
DEVICE uint32_t list_number(const struct decode_params *c, uint32_t request)
{
	if (!c->list.mapped)
		return request;
	const uint32_t row = request % c->list.rows;
	return request - row + c->list.map[row];
}

/*
 * Returns the number of pages in a window. Page *ret_at of the window and those after it are *ret_gap pages further in
 * the page table, because the pages between sinks and recent tokens are left out.
 */
DEVICE uint32_t window_tiles(const struct decode_params *c, uint32_t len, uint32_t *ret_at, uint32_t *ret_gap)
{
	*ret_at = skv_pages_of(min(c->window.sinks, len));
	*ret_gap = max(*ret_at, skv_window_start(&c->window, len) / SKV_PAGE_TOKENS) - *ret_at;
	return skv_pages_of(len) - *ret_gap;
}

DEVICE uint32_t request_tiles(const struct decode_params *c, uint32_t request)
{
	uint32_t at, gap;
	if (c->source == KV_PAGES)
		return c->list.count[list_number(c, request)];
	if (c->source == KV_TOKENS)
		return skv_pages_of(c->list.count[list_number(c, request)]);
	const uint32_t len = c->seq[request / c->list.rows].len;
	return c->source == KV_WINDOW ? window_tiles(c, len, &at, &gap) : skv_pages_of(len);
}

/* The requests of a launch, in shared memory: the data that a warp needs to begin a work item. */
struct request_plan {
	uint32_t first[MAX_REQUESTS + 1]; /* work items of the requests before each one */
	uint32_t tiles[MAX_REQUESTS], len[MAX_REQUESTS];
	const skv_pte *table[MAX_REQUESTS];
};

/* Number of work items, per head tile, of a request of `tiles` tiles. */
DEVICE uint32_t n_items(const struct decode_params *c, uint32_t tiles)
{
	return c->by.item_runs ? items_of(c->by, tiles) : n_chunks(tiles);
}

__device__ static void make_plan(const struct decode_params *c, struct request_plan *p)
{
	__shared__ uint32_t warp_sum[32];
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
	uint32_t base = 0;
	for (uint32_t from = 0; from < c->n_requests; from += blockDim.x) {
		const uint32_t o = from + threadIdx.x;
		uint32_t mine = 0;
		if (o < c->n_requests) {
			p->tiles[o] = request_tiles(c, c->first_request + o);
			const struct skv_kseq *q = &c->seq[(c->first_request + o) / c->list.rows];
			p->len[o] = q->len;
			p->table[o] = q->table + (size_t)c->layer * q->layer_stride;
			mine = n_items(c, p->tiles[o]);
		}
		uint32_t sum = mine;
#pragma unroll
		for (int x = 1; x < 32; x *= 2) {
			const uint32_t other = __shfl_up_sync(~0u, sum, x);
			sum += lane >= x ? other : 0;
		}
		if (lane == 31)
			warp_sum[warp] = sum;
		__syncthreads();
		for (uint32_t w = 0; w < warp; w++)
			base += warp_sum[w];
		if (o < c->n_requests)
			p->first[o] = base + sum - mine;
		for (uint32_t w = warp; w < warps; w++)
			base += warp_sum[w];
		__syncthreads();
	}
	if (threadIdx.x == 0)
		p->first[c->n_requests] = base;
	__syncthreads();
}

/* Sets the fields of *j that say which columns it has: those of head tile x of sequence i. */
DEVICE void head_tile(const struct decode_params *c, uint32_t i, uint32_t x, struct work_item *j)
{
	const uint32_t before = x % c->tiles_per_kv_head * c->tile_heads;
	j->i = i;
	j->x = x;
	j->h = x / c->tiles_per_kv_head;
	j->head = j->h * c->columns + before;
	j->heads = min(c->tile_heads, max(c->columns, before) - before);
}

/* row_of(): the row within the sequence's rows that column `at` of the head tile is for. head_of(): its q head. */
DEVICE uint32_t row_of(const struct decode_params *c, const struct work_item *j, uint32_t at)
{
	return c->rows == 1 ? 0 : (j->head - j->h * c->columns + at) / c->group;
}
DEVICE uint32_t head_of(const struct decode_params *c, const struct work_item *j, uint32_t at)
{
	return c->rows == 1 ? j->head + at : j->h * c->group + (j->head - j->h * c->columns + at) % c->group;
}

/* io_row(): the index of a column's row in q and out. end_of(): the number of tokens that the column attends to. */
DEVICE uint32_t io_row(const struct decode_params *c, const struct work_item *j, uint32_t at)
{
	return c->seq[j->i].row - (c->rows - 1) + row_of(c, j, at);
}
DEVICE uint32_t end_of(const struct decode_params *c, const struct work_item *j, uint32_t at)
{
	return j->len - (c->rows - 1) + row_of(c, j, at);
}

/* Returns the index, in this launch, of the request whose head tiles' work items include item number `at`. */
DEVICE uint32_t request_of(const struct decode_params *c, const struct request_plan *p, uint32_t at)
{
	uint32_t lo = 0, hi = c->n_requests;
	while (hi - lo > 1) {
		const uint32_t mid = (lo + hi) / 2;
		if (p->first[mid] <= at)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

/*
 * Looks up the block's work item number `turn` and copies it to the warp's own *j. Returns false if the block has no
 * more items. Consecutive items are neighbouring head tiles, since these read the same pages.
 */
template <int D, enum decode_mode mode>
__device__ static bool begin_item(const struct decode_params *c, const struct request_plan *p, uint32_t turn,
                                  struct work_item *j)
{
	const uint32_t id = blockIdx.x + turn * gridDim.x;
	const uint32_t heads = c->request_head_tiles, at = id / heads;
	if (at >= p->first[c->n_requests])
		return false;
	const uint32_t lo = request_of(c, p, at);
	const uint32_t request = c->first_request + lo, chunks = p->first[lo + 1] - p->first[lo];
	const uint32_t per = (p->tiles[lo] + chunks - 1) / chunks;
	__syncwarp(); /* all lanes have read the previous item; all lanes write the same values */
	head_tile(c, request / c->list.rows, request % c->list.rows * heads + id % heads, j);
	/* The warps' first tiles are rotated by `turn`, so that no warp gets the odd tile of every item. */
	j->stream = (threadIdx.x / 32 + turn * 4) % warps<D, mode>;
	j->len = p->len[lo];
	j->table = p->table[lo];
	j->request = request;
	j->entry = lo % c->ring_entries;
	j->generation = lo / c->ring_entries;
	j->chunk = at - p->first[lo];
	j->chunks = chunks;
	j->first = j->chunk * per;
	j->n = min(per, p->tiles[lo] - j->first);
	__syncwarp();
	return true;
}

/* Returns a mask of the tokens of a page that the request attends to. */
__device__ static uint32_t resident_mask(const struct decode_params *c, const struct work_item *j, uint32_t page)
{
	const uint32_t first = page * SKV_PAGE_TOKENS;
	if (first >= j->len)
		return 0;
	const uint32_t mask = 0xffffu >> (SKV_PAGE_TOKENS - min(SKV_PAGE_TOKENS, j->len - first));
	if (c->source != KV_WINDOW)
		return mask;
	const uint32_t start = skv_window_start(&c->window, j->len);
	const uint32_t sinks = c->window.sinks > first ? min(16u, c->window.sinks - first) : 0;
	const uint32_t head = sinks ? 0xffffu >> (16 - sinks) : 0;
	const uint32_t tail = start > first ? start - first < 16 ? 0xffffu << (start - first) : 0 : 0xffffu;
	return mask & (head | tail);
}

/* Returns a mask of the tokens of the page at position `at` of a list whose last page is partial. */
DEVICE uint32_t last_page_mask(const struct decode_params *c, const struct work_item *j, uint32_t list, uint32_t at)
{
	const bool last = at + 1 == c->list.count[list];
	return last ? 0xffffu >> (SKV_PAGE_TOKENS - 1 - (j->len - 1) % SKV_PAGE_TOKENS) : 0xffffu;
}

/* Returns the index, within the request, of this warp's tile k. */
template <int D, enum decode_mode mode> DEVICE uint32_t stream_tile(const struct work_item *j, uint32_t k)
{
	return by_leaves<mode> ? j->first + k : j->first + j->stream + warps<D, mode> * k;
}

template <int D, enum decode_mode mode> DEVICE uint32_t stream_tiles(const struct work_item *j)
{
	return by_leaves<mode> ? j->n : (j->n + warps<D, mode> - 1 - j->stream) / warps<D, mode>;
}

/*
 * For quantized KV: returns the table entry of the page with the record of these tokens and the item's kv head. Returns
 * `own`, the tokens' own page, if they are not quantized.
 */
DEVICE skv_pte quant_entry(const struct decode_params *c, const struct work_item *j, uint32_t page, skv_pte own,
                           uint32_t *ret_quant)
{
	const struct skv_kseq *s = &c->seq[j->i];
	const uint32_t record = page * SKV_PAGE_TOKENS / SKV_QUANT_BLOCK * c->n_kv_heads + j->h;
	*ret_quant = NOT_QUANTIZED;
	if (page * SKV_PAGE_TOKENS >= s->n_compressed)
		return own;
	/* Bit 0 of the offset, free since records begin at multiples of 16, is the half of the record. */
	*ret_quant = record % c->quant.each * c->quant.at.bytes + page % 2;
	return s->table[(size_t)c->quant.codes * s->layer_stride + record / c->quant.each];
}

/*
 * Returns the number of pairs of a column of a head tile and a token of `mask` in tile `tile` that the column attends
 * to.
 */
__device__ static uint32_t attended_by_columns(const struct decode_params *c, const struct work_item *j, uint32_t tile, uint32_t mask)
{
	const uint32_t last = tile * SKV_PAGE_TOKENS + SKV_PAGE_TOKENS, n = j->heads;
	uint32_t sum = 0;
	if (c->rows == 1 || last <= j->len - (c->rows - 1))
		return __popc(mask) * n;
	for (uint32_t at = 0; at < n; at++) {
		const uint32_t end = end_of(c, j, at);
		sum += __popc(end >= last ? mask : mask & 0xffffu >> min(16u, last - end));
	}
	return sum;
}

/*
 * Locates a batch of the warp's tiles, beginning with tile `first`, and adds to the sequence's count of attended
 * tokens.
 */
template <int D, enum decode_mode mode>
__device__ static void locate_tiles(const struct decode_params *c, const struct work_item *j, uint32_t first,
                                    struct tile_batch *t)
{
	const uint32_t list = list_number(c, j->request), lane = threadIdx.x % 32;
	const uint32_t *ids = c->list.ids + (size_t)list * c->list.stride;
	uint32_t entry, at, gap;
	t->n = min(BATCH, stream_tiles<D, mode>(j) - first);
	t->mask = 0;
	if constexpr (mode >= MODE_TOKENS) {
		constexpr int pairs = run_leaves<D, mode> * LEAF_TILES / 2; /* max pairs of tiles */
		const uint32_t n = c->list.count[list];
		uint32_t id[pairs];
#pragma unroll
		for (int a = 0; a < pairs; a++) { /* each lane locates one token of a pair of tiles */
			if (2 * a >= (int)t->n)
				break;
			const uint32_t u = stream_tile<D, mode>(j, first + 2 * a + lane / 16) * 16 + lane % 16;
			id[a] = 2 * a + lane / 16 < t->n && u < n ? ids[u] : 0xffffffff;
		}
		__syncwarp(); /* all lanes have read the slots of the previous batch */
#pragma unroll
		for (int a = 0; a < pairs; a++) {
			if (2 * a >= (int)t->n)
				break;
			entry = id[a] < j->len ? j->table[id[a] / SKV_PAGE_TOKENS] : 0;
			const uint32_t both = __ballot_sync(~0u, skv_pte_resident(entry));
			t->slots[a * 32 + lane] =
				skv_pte_id(entry) * SKV_PAGE_TOKENS + id[a] % SKV_PAGE_TOKENS;
			if (lane / 2 == a)
				t->mask = lane % 2 ? both >> 16 : both & 0xffff;
		}
		__syncwarp();
	} else if (lane < t->n) {
		const uint32_t tile = stream_tile<D, mode>(j, first + lane);
		uint32_t page = tile;
		if (c->source == KV_PAGES) {
			page = ids[page];
		} else if (c->source == KV_WINDOW) {
			window_tiles(c, j->len, &at, &gap);
			page += page < at ? 0 : gap;
		}
		const uint32_t mask = c->list.last_partial ? last_page_mask(c, j, list, tile) : resident_mask(c, j, page);
		entry = mask ? j->table[page] : 0;
		if constexpr (quantized<mode>)
			entry = quant_entry(c, j, page, entry, &t->quant);
		t->page = skv_pte_id(entry);
		t->mask = skv_pte_resident(entry) ? mask : 0;
	}
	unsigned long long *attended = (unsigned long long *)c->seq[j->i].attended;
	const uint32_t n = __reduce_add_sync(~0u, mode == MODE_TEAMS ? attended_by_columns(c, j, stream_tile<D, mode>(j, first + lane), t->mask)
	                                                            : __popc(t->mask) * j->heads);
	if (has_output<mode>(c) && lane == 0 && n && attended)
		atomicAdd(attended, n);
}

/* ---- results ---------------------------------------------------------------------------------- */

/* Returns the factor that rescales a result with maximum `max` to maximum `to`; 0 if the result has no tokens. */
DEVICE float rescale(float max, float to)
{
	return max == -INFINITY ? 0 : exp2_fast(max - to);
}

/* Does the item's sequence have a row to write? Padding has none. */
DEVICE bool has_row(const struct decode_params *c, const struct work_item *j)
{
	return c->seq[j->i].n_q > 0;
}

/* Returns the index in `out` of the first element of the item's column `head`. */
DEVICE size_t output_at(const struct decode_params *c, const struct work_item *j, uint32_t head, uint32_t head_dim)
{
	return (size_t)io_row(c, j, head) * c->out_stride + (size_t)head_of(c, j, head) * head_dim;
}

/* Returns the value that a head's maximum is relative to: 0, unless scores are stored as differences. */
DEVICE float max_from(const struct decode_params *c, const struct work_item *j, uint32_t head)
{
	return c->topk_max ? c->topk_max[(size_t)j->i * c->n_heads + j->head + head] : 0;
}

/* Returns the factor for a head's weighted sum of V: the inverse of its sum of weights, including the sink's. */
DEVICE float head_share(const struct decode_params *c, const struct work_item *j, uint32_t head, float max, float sum)
{
	if (!(sum > 0))
		return 0;
	if (c->sinks)
		sum += sink_term(c->sinks, head_of(c, j, head), max + max_from(c, j, head));
	return __fdividef(1, sum);
}

/* Writes a head's log-sum-exp, if the caller wants it. */
DEVICE void finish_head(const struct decode_params *c, const struct work_item *j, uint32_t head, float max, float sum)
{
	const uint32_t at = head_of(c, j, head);
	if (c->ev.lse)
		c->ev.lse[(size_t)j->i * c->n_heads + at] = log_sum(max, sum);
	if (c->lse && has_row(c, j))
		c->lse[(size_t)io_row(c, j, head) * c->n_heads + at] = log_sum(max + max_from(c, j, head), sum);
}

DEVICE float *partial_of(const struct decode_params *c, const struct work_item *j, uint32_t chunk, uint32_t head_dim)
{
	return c->partial + (((size_t)j->i * c->heads + j->x) * c->parts + chunk) *
	                    partial_floats(c->tile_heads, head_dim);
}

/*
 * skv_cuda_topk_by_scores() queues the selection for the launch's requests, by the scores that MODE_TOPK_KEYS stored.
 * The selection writes lists, the scores of selected tokens, and the maxima that these scores are relative to.
 * skv_cuda_selects_by_scores(): can the device select in this way, for sequences of up to max_len tokens?
 */
void skv_cuda_topk_by_scores(const struct decode_params *, uint32_t max_len, cudaStream_t);
bool skv_cuda_selects_by_scores(uint32_t max_len);

/* Queues the split-KV merge, which adds the results of each request's work items, for all sequences of a call. */
void skv_cuda_merge(const struct decode_params *, uint32_t n, uint32_t max_parts, uint32_t head_dim, cudaStream_t);

#endif
