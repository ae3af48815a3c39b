/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/decode/decode.cuh - attention of one query row a sequence.
 *
 *   decode.cuh       calls and jobs: how work is cut
 *   decode-tile.cuh  what a warp does with a tile
 *   slots.cuh        scores on their way from who makes them to who uses them
 *   evidence.cuh     who uses them: the warp that turns them into weights of tokens and pages ...
 *   chosen.cuh       ... and the warps that choose tokens by them
 *   decode-kernel.cuh  results of a job's warps, and the kernel
 *   decode.cu        launches
 *   decode-low.cu    the same of layers that keep tokens in few bits
 *   merge.cu         results of a sequence's chunks
 *
 * Decoding is bound by memory: each K and V row is read once, straight into the registers that feed the
 * tensor cores, and what is left to do is to keep enough reads in flight. So there is no shared-memory
 * ring: a warp holds one tile of 16 tokens while the next one is on its way, and a dozen warps an SM cover
 * the latency.
 *
 * The tensor cores' product (m16n8k16) takes the 16 tokens as rows and up to 8 q heads of one kv head as
 * columns. Both products sum over an index whose order is free, and the loads choose it so that a lane reads
 * 16 consecutive bytes (lane = 4 g + c):
 *
 *   scores Sᵀ = K Qᵀ: lane (g, c) holds dimensions 32 b + 8 c … + 7 of tokens g and g + 8, and of head g of q
 *   output Oᵀ = Vᵀ Pᵀ: lane (g, c) holds dimensions 64 b + 8 g … + 7 of tokens 2 c, 2 c + 1, 2 c + 8, 2 c + 9
 *
 * Sᵀ leaves token g (and g + 8) of heads 2 c and 2 c + 1 in a lane; Pᵀ needs tokens 2 c … of head g, which is
 * its transpose: movmatrix.
 *
 * A sequence (or a kv head or q head of it that has a list of its own) is an owner, cut into a few chunks; a chunk of one owner and head tile is
 * a job. One block an SM takes one job after the other; its warps take the job's tiles in turns and leave
 * their results in shared memory, where the warp that comes last merges them. Nobody waits for anybody: while
 * one warp looks up places or merges, the others read. Results of a job go to memory only when its owner has
 * more chunks; a second kernel merges those. Chunks are few because to begin one costs, and because writes
 * among all the reads cost memory many times their size: 1.6 % of writes make reading 9 % slower. How an owner
 * is cut follows from its own length, so the bits of a result depend on the sequence alone.
 *
 * Scores are in units of log2: the scale carries the factor log2(e).
 */
#ifndef SKV_CUDA_DECODE_CUH
#define SKV_CUDA_DECODE_CUH

#include "kernels/cuda/runtime/convert.cuh"
#include "kernels/cuda/runtime/cuda.h"
#include "kernels/cuda/compress/quant.cuh"

#define LOG2E 1.44269504088896340736f
#define LN2 0.693147180559945309417f
#define BATCH 32 /* tiles whose places a warp looks up at a time, one a lane */

enum what { DENSE, WINDOW, PAGES, TOKENS };

/* What a kernel is compiled for. From ROWS on, tiles are rows anywhere. */
enum how {
	PLAIN,
	KEEP,  /* scores become evidence */
	KEYS,  /* tokens are chosen by their scores, and there is no output: V is not read */
	LOW,   /* as PLAIN, and as KEEP, of layers that keep older tokens in few bits: decode-low.cu */
	LOW_KEEP,
	ROWS,
	SCORED /* rows whose scores are there: K is not read */
};

template <enum how how> static constexpr bool keeps = how == KEEP || how == KEYS || how == LOW_KEEP;
template <enum how how> static constexpr bool low = how == LOW || how == LOW_KEEP;
/* One warp makes evidence. */
template <enum how how> static constexpr bool tells = how == KEEP || how == LOW_KEEP;

/*
 * Warps of a block that read, and those that help; one block an SM. There are as many as have registers enough,
 * a multiple of four, since each quarter of an SM has its own; so the warp that makes evidence is one less that
 * reads. Who reads keys alone needs fewer registers, and the more helpers, the sooner tokens are chosen.
 */
template <int D, enum how how>
static constexpr int warps = (D > 128 || how == KEYS ? 8 : 12) - tells<how>;
template <int D, enum how how>
static constexpr int helpers = tells<how> ? 1 : how != KEYS ? 0 : D > 128 ? 4 : 8;

/* Who reads values alone has two tiles on their way instead of one. */
template <enum how how> static constexpr bool by_twos = how == SCORED;

struct call {
	const struct skv_kseq *seq;
	const uint8_t *pool;
	size_t page_bytes;
	const void *q;
	void *out;
	float scale;
	uint32_t n_heads, n_kv_heads, group, layer, io_dtype;
	enum what what;
	struct skv_window window; /* WINDOW */
	struct skv_list list;     /* PAGES, TOKENS */
	float *part;
	/* Where scores are kept: slots.cuh. Those of an owner, below maxima of pages. */
	struct slot *slot;
	uint32_t slots;
	__half *score;            /* [slot][head tile of the owner][token][column] */
	float *top;               /* [slot][head tile of the owner][page][column] */
	struct skv_evidence ev;   /* what helpers make, and `lse`; NULL where it is not wanted */
	struct skv_select select; /* KEYS */
	bool keys_fit;            /* KEYS: a list's keys fit shared memory; else they are in ev.token */
	__half *chosen;           /* [owner][token of its list][head tile][column]: below the head's maximum */
	uint32_t tokens;          /* of a sequence, at most: struct layout */
	uint32_t wide, per_kv;    /* q heads of a head tile, at most; head tiles of a kv head ... */
	uint32_t heads, owner_heads; /* ... of a sequence, and of an owner */
	uint32_t cols;            /* columns of a tile's scores */
	uint32_t first_owner, owners; /* of this launch */
	struct low_form low;      /* LOW, LOW_KEEP */
};

/* Where evidence is all that is wanted there is none. */
template <enum how how> DEVICE bool has_output(const struct call *c)
{
	return how != KEYS && (!tells<how> || c->out);
}

/* A chunk of an owner, for one head tile, as one warp sees it. */
struct job {
	uint32_t i, x, owner;    /* sequence, head tile */
	uint32_t h, head, heads; /* kv head, first q head and how many */
	uint32_t len;
	const skv_pte *table;
	uint32_t slot, turn; /* of the owner's scores */
	uint32_t chunk, chunks;
	uint32_t first, n; /* tiles [first, first + n) of the owner's */
	uint32_t stream;   /* of its tiles, one in so many as the block has warps: this warp's */
};

/*
 * Where a batch of a warp's tiles is: a tile is a page, or 16 rows anywhere. Lane k knows tile k's page id
 * and which of its tokens count; places of rows (page id * 16 + place) are in shared memory.
 */
struct tiles {
	uint32_t n, page, mask;
	uint32_t low;   /* LOW, LOW_KEEP: where in the page the tile's record is, and which half of it; or LOW_ROWS */
	uint32_t *rows; /* [BATCH * 16] */
};
#define LOW_ROWS 0xffffffffu

/* ---- jobs ------------------------------------------------------------------------------------ */

/* The number of an owner's list. */
DEVICE uint32_t list_of(const struct call *c, uint32_t owner)
{
	if (!c->list.mapped)
		return owner;
	const uint32_t row = owner % c->list.rows;
	return owner - row + c->list.map[row];
}

/* Pages of a window: those from *ret_at on lie *ret_gap further on. */
DEVICE uint32_t window_tiles(const struct call *c, uint32_t len, uint32_t *ret_at, uint32_t *ret_gap)
{
	*ret_at = skv_pages_of(min(c->window.sinks, len));
	*ret_gap = max(*ret_at, skv_window_start(&c->window, len) / SKV_PAGE_TOKENS) - *ret_at;
	return skv_pages_of(len) - *ret_gap;
}

DEVICE uint32_t owner_tiles(const struct call *c, uint32_t owner)
{
	uint32_t at, gap;
	if (c->what == PAGES)
		return c->list.count[list_of(c, owner)];
	if (c->what == TOKENS)
		return skv_pages_of(c->list.count[list_of(c, owner)]);
	const uint32_t len = c->seq[owner / c->list.rows].len;
	return c->what == WINDOW ? window_tiles(c, len, &at, &gap) : skv_pages_of(len);
}

/* The owners of this launch: what a job's beginning needs to know, at hand. */
struct plan {
	uint32_t first[OWNERS_MOST + 1]; /* chunks before an owner's */
	uint32_t tiles[OWNERS_MOST], len[OWNERS_MOST];
	const skv_pte *table[OWNERS_MOST];
};

__device__ static void plan_make(const struct call *c, struct plan *p)
{
	__shared__ uint32_t warp_sum[32];
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
	uint32_t base = 0;
	for (uint32_t from = 0; from < c->owners; from += blockDim.x) {
		const uint32_t o = from + threadIdx.x;
		uint32_t mine = 0;
		if (o < c->owners) {
			p->tiles[o] = owner_tiles(c, c->first_owner + o);
			const struct skv_kseq *q = &c->seq[(c->first_owner + o) / c->list.rows];
			p->len[o] = q->len;
			p->table[o] = q->table + (size_t)c->layer * q->layer_stride;
			mine = chunks_of(p->tiles[o]);
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
		if (o < c->owners)
			p->first[o] = base + sum - mine;
		for (uint32_t w = warp; w < warps; w++)
			base += warp_sum[w];
		__syncthreads();
	}
	if (threadIdx.x == 0)
		p->first[c->owners] = base;
	__syncthreads();
}

/* Head tile x of sequence i. */
DEVICE void head_tile(const struct call *c, uint32_t i, uint32_t x, struct job *j)
{
	const uint32_t before = x % c->per_kv * c->wide;
	j->i = i;
	j->x = x;
	j->h = x / c->per_kv;
	j->head = j->h * c->group + before;
	j->heads = min(c->wide, c->group - before);
}

/*
 * The block's job number `turn`, if there is one, in a warp's own memory. Head tiles are next to each other,
 * since they read the same pages.
 */
template <int D, enum how how>
__device__ static bool job_begin(const struct call *c, const struct plan *p, uint32_t turn, struct job *j)
{
	const uint32_t id = blockIdx.x + turn * gridDim.x;
	const uint32_t heads = c->owner_heads, at = id / heads;
	if (at >= p->first[c->owners])
		return false;
	uint32_t lo = 0, hi = c->owners;
	while (hi - lo > 1) {
		const uint32_t mid = (lo + hi) / 2;
		if (p->first[mid] <= at)
			lo = mid;
		else
			hi = mid;
	}
	const uint32_t owner = c->first_owner + lo, chunks = p->first[lo + 1] - p->first[lo];
	const uint32_t per = (p->tiles[lo] + chunks - 1) / chunks;
	__syncwarp(); /* what was there before has been read; all lanes write the same */
	head_tile(c, owner / c->list.rows, owner % c->list.rows * heads + id % heads, j);
	/* in turns, so that no warp has the odd tiles of all jobs */
	j->stream = (threadIdx.x / 32 + turn * 4) % warps<D, how>;
	j->len = p->len[lo];
	j->table = p->table[lo];
	j->owner = owner;
	if (keeps<how>) {
		j->slot = lo % c->slots;
		j->turn = lo / c->slots;
	}
	j->chunk = at - p->first[lo];
	j->chunks = chunks;
	j->first = j->chunk * per;
	j->n = min(per, p->tiles[lo] - j->first);
	__syncwarp();
	return true;
}

/* Which tokens of a page may be looked at. */
__device__ static uint32_t page_mask(const struct call *c, const struct job *j, uint32_t page)
{
	const uint32_t first = page * SKV_PAGE_TOKENS;
	if (first >= j->len)
		return 0;
	const uint32_t mask = 0xffffu >> (SKV_PAGE_TOKENS - min(SKV_PAGE_TOKENS, j->len - first));
	if (c->what != WINDOW)
		return mask;
	const uint32_t start = skv_window_start(&c->window, j->len);
	const uint32_t sinks = c->window.sinks > first ? min(16u, c->window.sinks - first) : 0;
	const uint32_t head = sinks ? 0xffffu >> (16 - sinks) : 0;
	const uint32_t tail = start > first ? start - first < 16 ? 0xffffu << (start - first) : 0 : 0xffffu;
	return mask & (head | tail);
}

/* The same for number `at` of a list whose last page is being filled. */
DEVICE uint32_t filling_mask(const struct call *c, const struct job *j, uint32_t list, uint32_t at)
{
	const bool last = at + 1 == c->list.count[list];
	return last ? 0xffffu >> (SKV_PAGE_TOKENS - 1 - (j->len - 1) % SKV_PAGE_TOKENS) : 0xffffu;
}

/* Tile k of a stream, in the owner's count. */
template <int D, enum how how> DEVICE uint32_t stream_tile(const struct job *j, uint32_t k)
{
	return j->first + j->stream + warps<D, how> * k;
}

template <int D, enum how how> DEVICE uint32_t stream_tiles(const struct job *j)
{
	return (j->n + warps<D, how> - 1 - j->stream) / warps<D, how>;
}

/* Of a layer that keeps tokens in few bits: the page that has the job's head of this one, where `own` would be its rows'. */
DEVICE skv_pte low_entry(const struct call *c, const struct job *j, uint32_t page, skv_pte own, uint32_t *ret_low)
{
	const struct skv_kseq *s = &c->seq[j->i];
	const uint32_t record = page * SKV_PAGE_TOKENS / SKV_LOW_BLOCK * c->n_kv_heads + j->h;
	*ret_low = LOW_ROWS;
	if (page * SKV_PAGE_TOKENS >= s->coded)
		return own;
	*ret_low = record % c->low.each * c->low.at.bytes + page % 2; /* records begin at multiples of 16 */
	return s->table[(size_t)c->low.codes * s->layer_stride + record / c->low.each];
}

/* Look up where a warp's tiles from `first` on are, and add to the sequence's count of tokens attended. */
template <int D, enum how how>
__device__ static void look_up(const struct call *c, const struct job *j, uint32_t first, struct tiles *t)
{
	const uint32_t list = list_of(c, j->owner), lane = threadIdx.x % 32;
	const uint32_t *ids = c->list.ids + (size_t)list * c->list.stride;
	uint32_t entry, at, gap;
	t->n = min(BATCH, stream_tiles<D, how>(j) - first);
	t->mask = 0;
	if constexpr (how >= ROWS) {
		const uint32_t n = c->list.count[list];
		uint32_t id[BATCH / 2];
#pragma unroll
		for (int a = 0; a < BATCH / 2; a++) { /* lane: a row of one of two tiles */
			const uint32_t u = stream_tile<D, how>(j, first + 2 * a + lane / 16) * 16 + lane % 16;
			id[a] = 2 * a + lane / 16 < t->n && u < n ? ids[u] : 0xffffffff;
		}
		__syncwarp(); /* the last batch has been read */
#pragma unroll
		for (int a = 0; a < BATCH / 2; a++) {
			entry = id[a] < j->len ? j->table[id[a] / SKV_PAGE_TOKENS] : 0;
			const uint32_t both = __ballot_sync(~0u, skv_pte_resident(entry));
			t->rows[a * 32 + lane] =
				skv_pte_id(entry) * SKV_PAGE_TOKENS + id[a] % SKV_PAGE_TOKENS;
			if (lane / 2 == a)
				t->mask = lane % 2 ? both >> 16 : both & 0xffff;
		}
		__syncwarp();
	} else if (lane < t->n) {
		const uint32_t tile = stream_tile<D, how>(j, first + lane);
		uint32_t page = tile;
		if (c->what == PAGES) {
			page = ids[page];
		} else if (c->what == WINDOW) {
			window_tiles(c, j->len, &at, &gap);
			page += page < at ? 0 : gap;
		}
		const uint32_t mask = c->list.filling ? filling_mask(c, j, list, tile) : page_mask(c, j, page);
		entry = mask ? j->table[page] : 0;
		if constexpr (low<how>)
			entry = low_entry(c, j, page, entry, &t->low);
		t->page = skv_pte_id(entry);
		t->mask = skv_pte_resident(entry) ? mask : 0;
	}
	unsigned long long *attended = (unsigned long long *)c->seq[j->i].attended;
	const uint32_t n = __reduce_add_sync(~0u, __popc(t->mask));
	if (has_output<how>(c) && lane == 0 && n && attended)
		atomicAdd(attended, n * j->heads);
}

/* ---- results ---------------------------------------------------------------------------------- */

/* What brings a result with this maximum to another: 0 where there was no token. */
DEVICE float rescale(float max, float to)
{
	return max == -INFINITY ? 0 : exp2_fast(max - to);
}

/* The head's share of the softmax, for who wants it. */
DEVICE void finish_head(const struct call *c, const struct job *j, uint32_t head, float max, float sum)
{
	const size_t at = (size_t)j->i * c->n_heads + j->head + head;
	if (c->ev.lse)
		c->ev.lse[at] = sum > 0 ? (max + log2f(sum)) * LN2 : -INFINITY;
}

DEVICE float *part_of(const struct call *c, const struct job *j, uint32_t chunk, uint32_t head_dim)
{
	return c->part + (((size_t)j->i * c->heads + j->x) * CHUNKS_MOST + chunk) * part_floats(c->wide, head_dim);
}

/* Queue the pass of a layer that keeps tokens in few bits. */
void skv_cuda_decode_low(const struct call *, uint32_t dtype, uint32_t head_dim, uint32_t jobs, cudaStream_t);

/* Queue the merge of what an owner's chunks left behind, of all sequences of a call. */
void skv_cuda_merge(const struct call *, uint32_t n, uint32_t head_dim, cudaStream_t);

#endif
