/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/decode.cu - attention of one query row a sequence.
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
 * A sequence (or one of its lists) is an owner, cut into a few chunks; a chunk of one owner and head tile is a job.
 * One block an SM takes one job after the other; its warps take the job's tiles in turns and leave their results
 * in shared memory, where the warp that comes last merges them. Nobody waits for anybody: while one warp looks
 * up places or merges, the others read. Results of a job go to memory only when its owner has more chunks; a second
 * kernel merges those. Chunks are few because writes among all the reads cost memory many times their size: 1 % of
 * writes made reading 7 % slower. How an owner is cut follows from its own length, so the bits of a result
 * depend on the sequence alone.
 *
 * Scores are in units of log2: the scale carries the factor log2(e).
 */
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/cuda.h"

#define LOG2E 1.44269504088896340736f
#define LN2 0.693147180559945309417f
#define BATCH 32 /* tiles whose places a warp looks up at a time, one a lane */

/* Warps of a block, one block an SM: as many as have registers enough. */
template <int D> static constexpr int warps = D <= 128 ? 12 : 8;

enum what { DENSE, WINDOW, PAGES, TOKENS };

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
	float *lse;    /* with evidence, else NULL */
	float *ev_lse; /* [n][n_heads], natural logarithm, or NULL */
	float *score;
	uint32_t tokens;         /* of a sequence, at most: struct layout */
	uint32_t heads;          /* head tiles of a sequence */
	uint32_t first_owner, owners; /* of this launch */
};

/* A chunk of an owner, for one head tile. */
struct job {
	uint32_t i, x, owner;    /* sequence, head tile */
	uint32_t h, head, heads; /* kv head, first q head and how many */
	uint32_t len;
	const skv_pte *table;
	uint32_t chunk, chunks;
	uint32_t first, n; /* tiles [first, first + n) of the owner's */
};

/*
 * Where a batch of a warp's tiles is: a tile is a page, or 16 rows anywhere. Lane k knows tile k's page id and which of
 * its tokens count; places of rows (page id * 16 + place) are in shared memory.
 */
struct tiles {
	uint32_t n, page, mask;
	uint32_t *rows; /* [BATCH * 16] */
};

/* ---- jobs ------------------------------------------------------------------------------------ */

/* Head tiles of an owner. */
DEVICE uint32_t owner_heads(const struct call *c)
{
	const uint32_t per_kv = (c->group + HEAD_TILE - 1) / HEAD_TILE;
	return c->list.rows > 1 ? per_kv : per_kv * c->n_kv_heads;
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
		return c->list.count[owner];
	if (c->what == TOKENS)
		return skv_pages_of(c->list.count[owner]);
	const uint32_t len = c->seq[owner].len;
	return c->what == WINDOW ? window_tiles(c, len, &at, &gap) : skv_pages_of(len);
}

/* At least one chunk: an owner without a token has an output too. */
DEVICE uint32_t owner_chunks(uint32_t tiles)
{
	const uint32_t per = chunk_tiles(tiles);
	return max(1u, (tiles + per - 1) / per);
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
			mine = owner_chunks(p->tiles[o]);
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
	const uint32_t per_kv = (c->group + HEAD_TILE - 1) / HEAD_TILE;
	j->i = i;
	j->x = x;
	j->h = x / per_kv;
	j->head = j->h * c->group + x % per_kv * HEAD_TILE;
	j->heads = min(HEAD_TILE, c->group - x % per_kv * HEAD_TILE);
}

/* Job number `id`, if there is one: head tiles are next to each other, since they read the same pages. */
__device__ static bool job_begin(const struct call *c, const struct plan *p, uint32_t id, struct job *j)
{
	const uint32_t heads = owner_heads(c), at = id / heads;
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
	const uint32_t owner = c->first_owner + lo, per = chunk_tiles(p->tiles[lo]);
	head_tile(c, owner / c->list.rows, owner % c->list.rows * heads + id % heads, j);
	j->len = p->len[lo];
	j->table = p->table[lo];
	j->owner = owner;
	j->chunk = at - p->first[lo];
	j->chunks = p->first[lo + 1] - p->first[lo];
	j->first = j->chunk * per;
	j->n = min(per, p->tiles[lo] - j->first);
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
	const uint32_t head = c->window.sinks > first ? 0xffffu >> (16 - min(16u, c->window.sinks - first)) : 0;
	const uint32_t tail = start > first ? start - first < 16 ? 0xffffu << (start - first) : 0 : 0xffffu;
	return mask & (head | tail);
}

/* Tile k of a warp's, in the owner's count. */
template <int D> DEVICE uint32_t warp_tile(const struct job *j, uint32_t k)
{
	return j->first + threadIdx.x / 32 + warps<D> * k;
}

/* How many tiles of a job a warp has. */
template <int D> DEVICE uint32_t warp_tiles(const struct job *j)
{
	const uint32_t warp = threadIdx.x / 32;
	return j->n > warp ? (j->n - warp + warps<D> - 1) / warps<D> : 0;
}

/* Look up where a warp's tiles from `first` on are, and add to the sequence's count of tokens attended. */
template <int D, bool rows>
__device__ static void look_up(const struct call *c, const struct job *j, uint32_t first, struct tiles *t)
{
	const uint32_t *ids = c->list.ids + (size_t)j->owner * c->list.stride, lane = threadIdx.x % 32;
	uint32_t entry, at, gap;
	t->n = min(BATCH, warp_tiles<D>(j) - first);
	t->mask = 0;
	if constexpr (rows) {
		const uint32_t n = c->list.count[j->owner];
		uint32_t id[BATCH / 2];
#pragma unroll
		for (int a = 0; a < BATCH / 2; a++) { /* lane: a row of one of two tiles */
			const uint32_t u = warp_tile<D>(j, first + 2 * a + lane / 16) * 16 + lane % 16;
			id[a] = 2 * a + lane / 16 < t->n && u < n ? ids[u] : 0xffffffff;
		}
		__syncwarp(); /* the last batch has been read */
#pragma unroll
		for (int a = 0; a < BATCH / 2; a++) {
			entry = id[a] < j->len ? j->table[id[a] / SKV_PAGE_TOKENS] : 0;
			const uint32_t both = __ballot_sync(~0u, skv_pte_resident(entry));
			t->rows[a * 32 + lane] = skv_pte_id(entry) * SKV_PAGE_TOKENS + id[a] % SKV_PAGE_TOKENS;
			if (lane / 2 == a)
				t->mask = lane % 2 ? both >> 16 : both & 0xffff;
		}
		__syncwarp();
	} else if (lane < t->n) {
		uint32_t page = warp_tile<D>(j, first + lane);
		if (c->what == PAGES) {
			page = ids[page];
		} else if (c->what == WINDOW) {
			window_tiles(c, j->len, &at, &gap);
			page += page < at ? 0 : gap;
		}
		const uint32_t mask = page_mask(c, j, page);
		entry = mask ? j->table[page] : 0;
		t->page = skv_pte_id(entry);
		t->mask = skv_pte_resident(entry) ? mask : 0;
	}
	unsigned long long *attended = (unsigned long long *)c->seq[j->i].attended;
	const uint32_t n = __reduce_add_sync(~0u, __popc(t->mask));
	if (lane == 0 && n && attended && j->head == j->h * c->group)
		atomicAdd(attended, n);
}

/* ---- a tile ---------------------------------------------------------------------------------- */

/* One warp's part of a chunk. */
template <class T, int D> struct walk {
	static constexpr int WIDE = D / 64, REST = D % 64 / 32; /* of V's dimensions: by 64, and 32 more */
	static constexpr int ACC = D / 16;
	uint4 k[D / 32][2];
	uint4 v[WIDE][4];
	uint2 v_rest[REST ? 4 : 1];
	uint4 q[D / 32];
	float acc[ACC][4];
	float max[2], sum[2];
	uint64_t once; /* cache policy of K and V */
};

/* Byte address of token `t` of tile `k`, kv head h, in the K half. `page` is the tile's. */
template <int D, bool rows>
__device__ static const uint8_t *row_at(const struct call *c, const struct job *j, const struct tiles *ts, uint32_t page,
                                        uint32_t k, uint32_t t)
{
	if (!rows)
		return c->pool + page * c->page_bytes + (j->h * SKV_PAGE_TOKENS + t) * (D * 2);
	const uint32_t place = ts->rows[k * 16 + t];
	return c->pool + place / SKV_PAGE_TOKENS * c->page_bytes + (j->h * SKV_PAGE_TOKENS + place % SKV_PAGE_TOKENS) * (D * 2);
}

/* What is read of a token that does not count is not used, but it must be there: another one's row. */
template <bool rows> DEVICE uint32_t there(uint32_t mask, uint32_t t)
{
	return !rows || mask >> t & 1 ? t : __ffs(mask) - 1;
}

template <class T, int D, bool rows>
__device__ static void load_k(struct walk<T, D> *w, const struct call *c, const struct job *j, const struct tiles *ts,
                              uint32_t k)
{
	const uint32_t g = threadIdx.x % 32 / 4, at = threadIdx.x % 4 * 16;
	const uint32_t mask = __shfl_sync(~0u, ts->mask, k), page = rows ? 0 : __shfl_sync(~0u, ts->page, k);
	if (!mask)
		return;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const uint8_t *row = row_at<D, rows>(c, j, ts, page, k, there<rows>(mask, g + 8 * half)) + at;
#pragma unroll
		for (int b = 0; b < D / 32; b++)
			w->k[b][half] = load16(row + b * 64, w->once);
	}
}

template <class T, int D, bool rows>
__device__ static void load_v(struct walk<T, D> *w, const struct call *c, const struct job *j, const struct tiles *ts,
                              uint32_t k)
{
	const uint32_t g = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
	const uint32_t mask = __shfl_sync(~0u, ts->mask, k), page = rows ? 0 : __shfl_sync(~0u, ts->page, k);
	if (!mask)
		return;
#pragma unroll
	for (int t = 0; t < 4; t++) {
		const uint32_t token = pair + t % 2 + t / 2 * 8;
		const uint8_t *row = row_at<D, rows>(c, j, ts, page, k, there<rows>(mask, token)) + c->page_bytes / 2;
#pragma unroll
		for (int b = 0; b < w->WIDE; b++)
			w->v[b][t] = load16(row + b * 128 + g * 16, w->once);
		if (w->REST)
			w->v_rest[t] = load8(row + w->WIDE * 128 + g * 8, w->once);
	}
}

/* V of tokens that do not count may be anything, and 0 times anything may be NaN. */
template <class T, int D> __device__ static void clear_v(struct walk<T, D> *w, uint32_t mask)
{
	const uint32_t pair = threadIdx.x % 4 * 2;
#pragma unroll
	for (int t = 0; t < 4; t++) {
		if (mask >> (pair + t % 2 + t / 2 * 8) & 1)
			continue;
#pragma unroll
		for (int b = 0; b < w->WIDE; b++)
			w->v[b][t] = make_uint4(0, 0, 0, 0);
		if (w->REST)
			w->v_rest[t] = make_uint2(0, 0);
	}
}

/* s: token g of heads 2 c and 2 c + 1, then token g + 8. Not scaled. */
template <class T, int D> __device__ static void scores(const struct walk<T, D> *w, float s[4])
{
	float more[4] = {0, 0, 0, 0};
	s[0] = s[1] = s[2] = s[3] = 0;
#pragma unroll
	for (int b = 0; b < D / 32; b++) {
		const uint4 lo = w->k[b][0], hi = w->k[b][1], q = w->q[b];
		T::product(s, lo.x, hi.x, lo.y, hi.y, q.x, q.y);
		T::product(more, lo.z, hi.z, lo.w, hi.w, q.z, q.w);
	}
#pragma unroll
	for (int x = 0; x < 4; x++)
		s[x] += more[x];
}

/* Weights of the tile as columns of a product; the running maximum, sum and output follow. */
template <class T, int D> __device__ static void weigh(struct walk<T, D> *w, const float s[4], uint32_t p[2])
{
	float top[2], weight[4];
#pragma unroll
	for (int x = 0; x < 2; x++) {
		top[x] = fmaxf(s[x], s[x + 2]);
#pragma unroll
		for (int lane = 4; lane < 32; lane *= 2)
			top[x] = fmaxf(top[x], __shfl_xor_sync(~0u, top[x], lane));
		top[x] = fmaxf(top[x], w->max[x]);
	}
	if (__any_sync(~0u, top[0] > w->max[0] || top[1] > w->max[1])) {
		const float fix[2] = {top[0] > w->max[0] ? exp2_fast(w->max[0] - top[0]) : 1,
		                      top[1] > w->max[1] ? exp2_fast(w->max[1] - top[1]) : 1};
#pragma unroll
		for (int a = 0; a < w->ACC; a++)
#pragma unroll
			for (int x = 0; x < 4; x++)
				w->acc[a][x] *= fix[x % 2];
#pragma unroll
		for (int x = 0; x < 2; x++) {
			w->sum[x] *= fix[x];
			w->max[x] = top[x];
		}
	}
#pragma unroll
	for (int x = 0; x < 4; x++) /* no token so far: 0, not the NaN of inf - inf */
		weight[x] = s[x] == -INFINITY ? 0 : exp2_fast(s[x] - w->max[x % 2]);
	w->sum[0] += weight[0] + weight[2];
	w->sum[1] += weight[1] + weight[3];
	p[0] = transposed(T::pair(weight[0], weight[1]));
	p[1] = transposed(T::pair(weight[2], weight[3]));
}

/* Two words of two rows: the low halves of both, and the high halves. */
template <class T> __device__ static void add_pair(float acc[4], uint32_t a, uint32_t b, uint32_t c, uint32_t d,
                                                   const uint32_t p[2])
{
	T::product(acc, __byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632), __byte_perm(c, d, 0x5410),
	           __byte_perm(c, d, 0x7632), p[0], p[1]);
}

/* acc: dimensions 64 b + 8 g + 2 a (+ 1 from x = 2 on) of heads 2 c + x % 2, for acc[4 b + a][x]. */
template <class T, int D> __device__ static void add_values(struct walk<T, D> *w, const uint32_t p[2])
{
#pragma unroll
	for (int b = 0; b < w->WIDE; b++) {
		const uint4 *v = w->v[b];
		add_pair<T>(w->acc[4 * b], v[0].x, v[1].x, v[2].x, v[3].x, p);
		add_pair<T>(w->acc[4 * b + 1], v[0].y, v[1].y, v[2].y, v[3].y, p);
		add_pair<T>(w->acc[4 * b + 2], v[0].z, v[1].z, v[2].z, v[3].z, p);
		add_pair<T>(w->acc[4 * b + 3], v[0].w, v[1].w, v[2].w, v[3].w, p);
	}
	if (w->REST) {
		const uint2 *v = w->v_rest;
		add_pair<T>(w->acc[4 * w->WIDE], v[0].x, v[1].x, v[2].x, v[3].x, p);
		add_pair<T>(w->acc[4 * w->WIDE + 1], v[0].y, v[1].y, v[2].y, v[3].y, p);
	}
}

/* Scores of a page for the evidence to come: [token][q head of the group]. */
__device__ static void keep_scores(const struct call *c, const struct job *j, uint32_t page, const float s[4])
{
	const uint32_t g = threadIdx.x % 32 / 4, head = threadIdx.x % 4 * 2;
	float *row = c->score + ((size_t)j->i * c->n_kv_heads + j->h) * c->tokens * c->group + (j->head - j->h * c->group);
#pragma unroll
	for (int half = 0; half < 2; half++) {
		float *at = row + (size_t)(page * SKV_PAGE_TOKENS + g + 8 * half) * c->group + head;
		if (head + 1 < j->heads && c->group % 2 == 0) {
			*(float2 *)at = make_float2(s[2 * half], s[2 * half + 1]);
		} else {
			if (head < j->heads)
				at[0] = s[2 * half];
			if (head + 1 < j->heads)
				at[1] = s[2 * half + 1];
		}
	}
}

template <class T, int D> __device__ static void load_q(struct walk<T, D> *w, const struct call *c, const struct job *j)
{
	const uint32_t g = threadIdx.x % 32 / 4, at = threadIdx.x % 4 * 8;
	const size_t row = ((size_t)c->seq[j->i].row * c->n_heads + j->head + min(g, j->heads - 1)) * D + at;
	struct eight e[D / 32];
#pragma unroll
	for (int b = 0; b < D / 32; b++)
		e[b] = io_read8(c->io_dtype, c->q, row + b * 32);
#pragma unroll
	for (int b = 0; b < D / 32; b++) { /* columns past the last head are a copy of its: nobody looks at them */
		uint32_t word[4];
#pragma unroll
		for (int k = 0; k < 4; k++) {
			const float2 two = io_pair(c->io_dtype, &e[b], k);
			word[k] = T::pair(two.x, two.y);
		}
		w->q[b] = make_uint4(word[0], word[1], word[2], word[3]);
	}
}

template <class T, int D, bool rows, bool keep>
__device__ static void walk_batch(struct walk<T, D> *w, const struct call *c, const struct job *j, const struct tiles *ts,
                                  uint32_t first)
{
	const uint32_t g = threadIdx.x % 32 / 4, n = ts->n;

	load_k<T, D, rows>(w, c, j, ts, 0);
	load_v<T, D, rows>(w, c, j, ts, 0);
	for (uint32_t k = 0; k < n; k++) {
		const uint32_t mask = __shfl_sync(~0u, ts->mask, k);
		float s[4];
		uint32_t p[2];
		scores<T, D>(w, s);
		if (k + 1 < n)
			load_k<T, D, rows>(w, c, j, ts, k + 1);
		s[0] = mask >> g & 1 ? s[0] * c->scale : -INFINITY;
		s[1] = mask >> g & 1 ? s[1] * c->scale : -INFINITY;
		s[2] = mask >> g & 256 ? s[2] * c->scale : -INFINITY;
		s[3] = mask >> g & 256 ? s[3] * c->scale : -INFINITY;
		if (keep)
			keep_scores(c, j, warp_tile<D>(j, first + k), s);
		weigh<T, D>(w, s, p);
		if (mask != 0xffff)
			clear_v<T, D>(w, mask);
		add_values<T, D>(w, p);
		if (k + 1 < n)
			load_v<T, D, rows>(w, c, j, ts, k + 1);
	}
}

/* A warp's part of a job. */
template <class T, int D, bool rows, bool keep>
__device__ static void walk_job(struct walk<T, D> *w, const struct call *c, const struct job *j, struct tiles *ts)
{
#pragma unroll
	for (int a = 0; a < w->ACC; a++)
#pragma unroll
		for (int x = 0; x < 4; x++)
			w->acc[a][x] = 0;
	w->max[0] = w->max[1] = -INFINITY;
	w->sum[0] = w->sum[1] = 0;
	load_q<T, D>(w, c, j);
	for (uint32_t first = 0; first < warp_tiles<D>(j); first += BATCH) {
		look_up<D, rows>(c, j, first, ts);
		walk_batch<T, D, rows, keep>(w, c, j, ts, first);
	}
}

/* ---- merging --------------------------------------------------------------------------------- */

/* What brings a result with this maximum to another: 0 where there was no token. */
DEVICE float rescale(float max, float to)
{
	return max == -INFINITY ? 0 : exp2_fast(max - to);
}

/* The head's share of the softmax, for who wants it. */
DEVICE void finish_head(const struct call *c, const struct job *j, uint32_t head, float max, float sum)
{
	const size_t at = (size_t)j->i * c->n_heads + j->head + head;
	const float lse = sum > 0 ? max + log2f(sum) : -INFINITY;
	if (c->lse)
		c->lse[at] = lse;
	if (c->ev_lse)
		c->ev_lse[at] = lse * LN2;
}

DEVICE float *part_of(const struct call *c, const struct job *j, uint32_t chunk, uint32_t head_dim)
{
	return c->part + (((size_t)j->i * c->heads + j->x) * CHUNKS_MOST + chunk) * part_floats(head_dim);
}

/* The results of a job's warps: maxima, sums and rows of head_dim. */
template <int D> struct results {
	float max[warps<D>][HEAD_TILE], sum[warps<D>][HEAD_TILE];
	float acc[warps<D>][HEAD_TILE][D];
};

template <class T, int D> __device__ static void share(struct results<D> *r, struct walk<T, D> *w, uint32_t heads)
{
	const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, col = threadIdx.x % 4 * 2;
#pragma unroll
	for (int x = 0; x < 2; x++) {
		const uint32_t head = col + x;
		float sum = w->sum[x];
#pragma unroll
		for (int lane = 4; lane < 32; lane *= 2)
			sum += __shfl_xor_sync(~0u, sum, lane);
		if (head >= heads)
			continue;
		if (g == 0) {
			r->max[warp][head] = w->max[x];
			r->sum[warp][head] = sum;
		}
		float *row = r->acc[warp][head];
#pragma unroll
		for (int b = 0; b < w->WIDE; b++)
#pragma unroll
			for (int a = 0; a < 4; a++)
				*(float2 *)&row[64 * b + 8 * g + 2 * a] = make_float2(w->acc[4 * b + a][x], w->acc[4 * b + a][x + 2]);
#pragma unroll
		for (int a = 0; a < 2 * w->REST; a++)
			*(float2 *)&row[64 * w->WIDE + 4 * g + 2 * a] =
				make_float2(w->acc[4 * w->WIDE + a][x], w->acc[4 * w->WIDE + a][x + 2]);
	}
}

/* All warps have shared: the output, where one chunk is all there is, or a partial result. One warp's work. */
template <int D> __device__ static void merge_warps(const struct call *c, const struct job *j, const struct results<D> *r)
{
	float *part = part_of(c, j, j->chunk, D);
	for (uint32_t head = 0; head < j->heads; head++) {
		const size_t out = ((size_t)c->seq[j->i].row * c->n_heads + j->head + head) * D;
		float max = r->max[0][head], sum = 0, fix[warps<D>];
#pragma unroll
		for (int w = 1; w < warps<D>; w++)
			max = fmaxf(max, r->max[w][head]);
#pragma unroll
		for (int w = 0; w < warps<D>; w++) {
			fix[w] = rescale(r->max[w][head], max);
			sum += r->sum[w][head] * fix[w];
		}
		const float share = sum > 0 ? __fdividef(1, sum) : 0;
#pragma unroll
		for (uint32_t d = threadIdx.x % 32; d < D; d += 32) {
			float acc = 0;
#pragma unroll
			for (int w = 0; w < warps<D>; w++)
				acc += r->acc[w][head][d] * fix[w];
			if (j->chunks == 1)
				io_store(c->io_dtype, c->out, out + d, acc * share);
			else
				part[2 * HEAD_TILE + head * D + d] = acc;
		}
		if (threadIdx.x % 32)
			continue;
		if (j->chunks == 1) {
			finish_head(c, j, head, max, sum);
		} else {
			part[head] = max;
			part[HEAD_TILE + head] = sum;
		}
	}
}

#define MERGE_WIDE 128  /* threads that take four dimensions each ... */
#define MERGE_DEEP 4    /* ... of every MERGE_DEEPth chunk */
#define MERGE_CHUNKS 128 /* whose weights are held at a time */

/* The largest of a head's maxima. One warp's work. */
DEVICE float top_of(const float *part, uint32_t stride, uint32_t chunks, uint32_t head)
{
	float max = -INFINITY;
	for (uint32_t k = threadIdx.x % 32; k < chunks; k += 32)
		max = fmaxf(max, part[(size_t)k * stride + head]);
#pragma unroll
	for (int lane = 1; lane < 32; lane *= 2)
		max = fmaxf(max, __shfl_xor_sync(~0u, max, lane));
	return max;
}

/* Merge the chunks of a head tile, where there are several: a head's output is Σ fix acc / Σ fix sum. */
__global__ void __launch_bounds__(MERGE_WIDE * MERGE_DEEP) merge_kernel(const __grid_constant__ struct call c, uint32_t head_dim)
{
	__shared__ float top[HEAD_TILE], fix[MERGE_CHUNKS][HEAD_TILE], sums[MERGE_DEEP][HEAD_TILE];
	__shared__ float4 accs[MERGE_DEEP][MERGE_WIDE];
	const uint32_t stride = part_floats(head_dim), me = threadIdx.y * MERGE_WIDE + threadIdx.x;
	struct job j;

	head_tile(&c, blockIdx.y, blockIdx.x, &j);
	j.chunks = owner_chunks(owner_tiles(&c, c.list.rows > 1 ? j.i * c.list.rows + j.h : j.i));
	if (j.chunks == 1)
		return;
	const float *part = part_of(&c, &j, 0, head_dim);
	const size_t out = ((size_t)c.seq[j.i].row * c.n_heads + j.head) * head_dim;
	for (uint32_t head = me / 32; head < j.heads; head += MERGE_WIDE * MERGE_DEEP / 32) {
		const float max = top_of(part, stride, j.chunks, head);
		if (me % 32 == 0)
			top[head] = max;
	}
	for (uint32_t first = 0; first < j.heads * head_dim; first += 4 * MERGE_WIDE) {
		const uint32_t e = first + 4 * threadIdx.x, head = min(e / head_dim, j.heads - 1);
		const bool inside = e < j.heads * head_dim;
		float4 acc = make_float4(0, 0, 0, 0);
		float sum = 0;
		for (uint32_t from = 0; from < j.chunks; from += MERGE_CHUNKS) {
			const uint32_t n = min(MERGE_CHUNKS, j.chunks - from);
			__syncthreads();
			for (uint32_t x = me; x < n * HEAD_TILE; x += MERGE_WIDE * MERGE_DEEP)
				if (x % HEAD_TILE < j.heads)
					fix[x / HEAD_TILE][x % HEAD_TILE] =
						rescale(part[(size_t)(from + x / HEAD_TILE) * stride + x % HEAD_TILE], top[x % HEAD_TILE]);
			__syncthreads();
#pragma unroll 8
			for (uint32_t k = threadIdx.y; k < n; k += MERGE_DEEP) {
				const float *p = part + (size_t)(from + k) * stride, f = fix[k][head];
				const float4 x = *(const float4 *)(p + 2 * HEAD_TILE + (inside ? e : 0));
				sum += p[HEAD_TILE + head] * f;
				acc.x += x.x * f;
				acc.y += x.y * f;
				acc.z += x.z * f;
				acc.w += x.w * f;
			}
		}
		accs[threadIdx.y][threadIdx.x] = acc;
		if (inside && e % head_dim == 0)
			sums[threadIdx.y][head] = sum;
		__syncthreads();
		if (threadIdx.y || !inside)
			continue;
		sum = 0;
		acc = make_float4(0, 0, 0, 0);
#pragma unroll
		for (int y = 0; y < MERGE_DEEP; y++) {
			const float4 x = accs[y][threadIdx.x];
			sum += sums[y][head];
			acc.x += x.x;
			acc.y += x.y;
			acc.z += x.z;
			acc.w += x.w;
		}
		const float share = sum > 0 ? __fdividef(1, sum) : 0;
		io_store(c.io_dtype, c.out, out + e, acc.x * share);
		io_store(c.io_dtype, c.out, out + e + 1, acc.y * share);
		io_store(c.io_dtype, c.out, out + e + 2, acc.z * share);
		io_store(c.io_dtype, c.out, out + e + 3, acc.w * share);
		if (e % head_dim == 0)
			finish_head(&c, &j, head, top[head], sum);
	}
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/*
 * Results of two jobs in turns. A warp may be a job ahead of another one, not two: before it shares it waits until
 * what was there before has been merged.
 */
template <int D, bool rows> struct shared {
	struct results<D> results[2];
	uint32_t come[2]; /* warps that have shared */
	uint32_t merged;  /* jobs */
	struct plan plan;
	uint32_t places[rows ? warps<D> : 1][BATCH * 16];
};

/* Share a warp's results of the block's job number `turn`; the last of its warps merges them. */
template <class T, int D, bool rows>
__device__ static void hand_in(struct shared<D, rows> *s, struct walk<T, D> *w, const struct call *c, const struct job *j,
                               uint32_t turn)
{
	volatile uint32_t *merged = &s->merged;
	uint32_t come = 0;
	while (*merged + 2 <= turn)
		;
	__threadfence_block();
	share<T, D>(&s->results[turn % 2], w, j->heads);
	__syncwarp();
	if (threadIdx.x % 32 == 0) {
		__threadfence_block();
		come = atomicInc(&s->come[turn % 2], warps<D> - 1);
		__threadfence_block();
	}
	if (__shfl_sync(~0u, come, 0) < warps<D> - 1)
		return;
	while (*merged < turn) /* in order, or a job could be taken for the one before it */
		;
	merge_warps<D>(c, j, &s->results[turn % 2]);
	__syncwarp();
	if (threadIdx.x % 32 == 0) {
		__threadfence_block();
		*merged = turn + 1;
	}
}

template <class T, int D, bool rows, bool keep>
__global__ void __launch_bounds__(32 * warps<D>, 1) decode_kernel(const __grid_constant__ struct call c)
{
	extern __shared__ __align__(128) uint8_t memory[];
	struct shared<D, rows> *s = (struct shared<D, rows> *)memory;
	struct tiles tiles = {.rows = s->places[rows ? threadIdx.x / 32 : 0]};
	struct walk<T, D> w;
	struct job j;

	if (threadIdx.x == 0)
		s->come[0] = s->come[1] = s->merged = 0;
	w.once = policy_once();
	plan_make(&c, &s->plan);
	for (uint32_t turn = 0; job_begin(&c, &s->plan, blockIdx.x + turn * gridDim.x, &j); turn++) {
		walk_job<T, D, rows, keep>(&w, &c, &j, &tiles);
		hand_in<T, D, rows>(s, &w, &c, &j, turn);
	}
}

template <class T, int D, bool rows, bool keep> static cudaError_t init(void)
{
	return cudaFuncSetAttribute(decode_kernel<T, D, rows, keep>, cudaFuncAttributeMaxDynamicSharedMemorySize,
	                            (int)sizeof(struct shared<D, rows>));
}

template <class T, int D> static cudaError_t init_dim(void)
{
	cudaError_t e = init<T, D, true, false>();
	e = e ? e : init<T, D, false, true>();
	return e ? e : init<T, D, false, false>();
}

template <class T> static cudaError_t init_dtype(void)
{
	cudaError_t e = init_dim<T, 64>();
	e = e ? e : init_dim<T, 96>();
	e = e ? e : init_dim<T, 128>();
	return e ? e : init_dim<T, 256>();
}

cudaError_t skv_cuda_decode_init(void)
{
	cudaError_t e = init_dtype<F16>();
	return e ? e : init_dtype<BF16>();
}

template <class T, int D, bool rows, bool keep>
static void launch_kernel(const struct call *c, uint32_t jobs, cudaStream_t stream)
{
	const uint32_t sms = skv_cuda_sms();
	decode_kernel<T, D, rows, keep>
		<<<jobs < sms ? jobs : sms, 32 * warps<D>, sizeof(struct shared<D, rows>), stream>>>(*c);
}

template <class T, int D> static void launch_dim(const struct call *c, uint32_t jobs, cudaStream_t stream)
{
	if (c->what == TOKENS)
		launch_kernel<T, D, true, false>(c, jobs, stream);
	else if (c->lse)
		launch_kernel<T, D, false, true>(c, jobs, stream);
	else
		launch_kernel<T, D, false, false>(c, jobs, stream);
}

template <class T> static void launch(const struct call *c, uint32_t head_dim, uint32_t jobs, cudaStream_t stream)
{
	if (head_dim == 64)
		launch_dim<T, 64>(c, jobs, stream);
	else if (head_dim == 96)
		launch_dim<T, 96>(c, jobs, stream);
	else if (head_dim == 128)
		launch_dim<T, 128>(c, jobs, stream);
	else
		launch_dim<T, 256>(c, jobs, stream);
}

/* `tiles`: of an owner, at most. */
static void decode(struct call *c, const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                   uint32_t tiles, const struct layout *l, const struct skv_work *work)
{
	uint8_t *mem = (uint8_t *)work->mem;

	c->seq = b->seq;
	c->pool = sh->pool;
	c->page_bytes = sh->page_bytes;
	c->q = q;
	c->out = out;
	c->scale = sh->scale * LOG2E;
	c->n_heads = sh->n_heads;
	c->n_kv_heads = sh->n_kv_heads;
	c->group = sh->n_heads / sh->n_kv_heads;
	c->layer = sh->layer;
	c->io_dtype = sh->io_dtype;
	c->part = (float *)(mem + l->part);
	c->tokens = l->tokens;
	c->heads = head_tiles(sh);
	if (c->what == DENSE || c->what == WINDOW)
		c->list.rows = 1;
	const uint32_t rows = c->list.rows, most = OWNERS_MOST / rows; /* sequences */
	const uint32_t most_chunks = tiles <= chunk_tiles(0) ? 1 : CHUNKS_MOST;
	for (uint32_t from = 0; from < b->n; from += most) {
		const uint32_t n = min(most, b->n - from);
		const uint32_t jobs = n * c->heads * most_chunks;
		c->first_owner = from * rows;
		c->owners = n * rows;
		if (sh->dtype == SKV_F16)
			launch<F16>(c, sh->head_dim, jobs, stream_of(work));
		else
			launch<BF16>(c, sh->head_dim, jobs, stream_of(work));
	}
	if (most_chunks > 1)
		merge_kernel<<<dim3(c->heads, b->n), dim3(MERGE_WIDE, MERGE_DEEP), 0, stream_of(work)>>>(*c, sh->head_dim);
}

void skv_cuda_decode_dense(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                           const struct skv_evidence *ev, const struct skv_work *work)
{
	const struct layout l = layout_of(sh, b->n, b->max_len);
	struct call c = {.what = DENSE};
	const bool keep = ev && (ev->token || ev->page);

	if (keep) {
		c.lse = (float *)((uint8_t *)work->mem + l.lse);
		c.score = (float *)((uint8_t *)work->mem + l.score);
	}
	c.ev_lse = ev ? ev->lse : NULL;
	decode(&c, sh, b, q, out, skv_pages_of(b->max_len), &l, work);
	if (keep)
		skv_cuda_evidence(sh, b, ev, &l, work);
}

void skv_cuda_decode_window(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                            const struct skv_window *w, const struct skv_work *work)
{
	const struct layout l = layout_of(sh, b->n, b->max_len);
	struct call c = {.what = WINDOW, .window = *w};
	/* sinks, and what is recent, both with a page cut at either end */
	uint32_t seen = b->max_len - skv_window_start(w, b->max_len) + w->sinks;

	decode(&c, sh, b, q, out, skv_pages_of(seen < b->max_len ? seen : b->max_len) + 3, &l, work);
}

void skv_cuda_decode_pages(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                           const struct skv_list *list, const struct skv_work *work)
{
	const struct layout l = layout_of(sh, b->n, b->max_len);
	struct call c = {.what = PAGES, .list = *list};

	decode(&c, sh, b, q, out, list->most, &l, work);
}

void skv_cuda_decode_tokens(const struct skv_shape *sh, const struct skv_batch *b, const void *q, void *out,
                            const struct skv_list *list, const struct skv_work *work)
{
	const struct layout l = layout_of(sh, b->n, b->max_len);
	struct call c = {.what = TOKENS, .list = *list};

	decode(&c, sh, b, q, out, skv_pages_of(list->most), &l, work);
}
