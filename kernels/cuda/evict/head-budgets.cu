/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/evict/head-budgets.cu - heads that share a layer's budget: who is awake, votes over these, the allotment.
 *
 * Lists are made in every step: a block has a sequence's kv head, and a thread has a run of notes on its way. Votes and
 * allotments are of few steps, and plain. A block has a kv head's votes too: in two passes over the keys, a key a
 * thread, it finds what the softmax divides by, then the weights. An allotment first finds what each head has anyhow,
 * a block a head; then a block has all heads of a sequence, whose units have keys that no two of them share.
 */
#include <cub/block/block_scan.cuh>
#include "kernels/cuda/evict/slot-meta.cuh"
#include "kernels/cuda/select/topk-key.cuh"
#include "kernels/cuda/runtime/softmax.cuh"

#define THREADS 512
#define WARPS (THREADS / 32)

/* ---- lists ----------------------------------------------------------------------------------- */

#define RUN 8u /* slots that a thread has at a time */

struct listing {
	const struct skv_kseq *seq;
	struct notes notes;
	uint32_t *ids, *count; /* [seq][kv head] of `stride` elements */
	uint32_t stride, heads;
};

/* Which of the slots [u, u + RUN) are awake, a bit each. */
DEVICE uint32_t awake_of(const struct listing *c, const struct skv_kseq *s, uint32_t h, uint32_t u)
{
	struct pair p[RUN / 2];
	uint32_t bits = 0;
#pragma unroll
	for (uint32_t x = 0; x < RUN / 2; x++) {
		p[x] = {{SKV_NOTE_FREE, SKV_NOTE_FREE}, {0, 0}};
		if (u + 2 * x < s->len)
			p[x] = pair_load(note_at(&c->notes, s, h, s->set, u + 2 * x));
	}
#pragma unroll
	for (uint32_t x = 0; x < RUN; x++) {
		const struct pair *two = &p[x / 2];
		const bool awake = u + x < s->len && lives(two->pos[x % 2]) && !sleeps(two->value[x % 2]);
		bits |= (uint32_t)awake << x;
	}
	return bits;
}

/* Grid: kv heads, sequences. */
__global__ void __launch_bounds__(THREADS, 2) list_kernel(const __grid_constant__ struct listing c)
{
	typedef cub::BlockScan<uint32_t, THREADS> scan;
	__shared__ typename scan::TempStorage room;
	const struct skv_kseq *s = &c.seq[blockIdx.y];
	const size_t row = (size_t)blockIdx.y * c.heads + blockIdx.x;
	uint32_t *ids = c.ids + row * c.stride, before = 0;

	for (uint32_t first = 0; first < s->len; first += RUN * THREADS) {
		const uint32_t u = first + RUN * threadIdx.x;
		uint32_t bits = awake_of(&c, s, blockIdx.x, u), k, n;
		scan(room).ExclusiveSum(__popc(bits), k, n);
		for (k += before; bits; bits &= bits - 1)
			ids[k++] = u + __ffs(bits) - 1;
		before += n;
		__syncthreads();
	}
	if (threadIdx.x == 0)
		c.count[row] = before;
}

void skv_cuda_list_awake(const struct skv_shape *sh, const struct skv_batch *b, struct skv_list *list,
                         const struct skv_work *work)
{
	struct listing c = {};

	list->most = b->max_len;
	c.seq = b->seq;
	c.notes = notes_of(sh);
	c.ids = list->ids;
	c.count = list->count;
	c.stride = list->stride;
	c.heads = sh->n_kv_heads;
	if (b->n > 0)
		list_kernel<<<dim3(c.heads, b->n), THREADS, 0, stream_of(work)>>>(c);
}

/* ---- votes ----------------------------------------------------------------------------------- */

#define EIGHT 8u /* elements of a key that are read at a time: 16 bytes */

struct votes {
	const struct skv_kseq *seq;
	struct notes notes;
	const void *q;
	const uint32_t *ids, *count; /* [seq][kv head] of `stride` elements */
	float scale;                 /* of scores in powers of two */
	uint32_t stride, heads, group, head_dim, dtype, io_dtype, layer;
};

/* q heads of a kv head, at most so many at a time. */
struct room {
	float q[HEAD_TILE][SKV_MAX_HEAD_DIM]; /* times the scale; zeros where there is no head */
	struct part parts[HEAD_TILE][WARPS];
	float lse[HEAD_TILE]; /* infinite where there is no head */
};

struct job {
	const struct skv_kseq *s;
	const uint32_t *ids; /* the thread has those of threadIdx.x + k THREADS */
	uint32_t h, n;       /* kv head, its listed slots */
};

/* The scores of a slot's key: -infinity if it is not there. */
__device__ static void score(const struct votes *c, const struct job *j, const struct room *room, uint32_t u,
                             float ret[HEAD_TILE])
{
	const skv_pte entry = j->s->table[(size_t)c->layer * j->s->layer_stride + u / SKV_PAGE_TOKENS];
	const bool there = skv_pte_resident(entry);
#pragma unroll
	for (uint32_t g = 0; g < HEAD_TILE; g++)
		ret[g] = there ? 0 : -INFINITY;
	if (!there)
		return;
	const uint32_t row = j->h * SKV_PAGE_TOKENS + u % SKV_PAGE_TOKENS;
	const uint8_t *page = c->notes.pool + skv_pte_id(entry) * c->notes.page_bytes;
	const uint4 *key = (const uint4 *)(page + row * c->head_dim * sizeof(uint16_t));
#pragma unroll 4
	for (uint32_t d = 0; d < c->head_dim; d += EIGHT) {
		const uint4 v = key[d / EIGHT];
		const float2 k[] = {io_two(c->dtype, v.x), io_two(c->dtype, v.y), io_two(c->dtype, v.z),
		                    io_two(c->dtype, v.w)};
#pragma unroll
		for (uint32_t g = 0; g < HEAD_TILE; g++) {
			const float4 *q = (const float4 *)&room->q[g][d], a = q[0], b = q[1];
			ret[g] += k[0].x * a.x + k[0].y * a.y + k[1].x * a.z + k[1].y * a.w + k[2].x * b.x +
			          k[2].y * b.y + k[3].x * b.z + k[3].y * b.w;
		}
	}
}

/* The queries of `heads` of the group, from its q head `first` on. */
__device__ static void load_queries(const struct votes *c, const struct job *j, struct room *room, uint32_t first,
                                    uint32_t heads)
{
	const size_t row = (size_t)j->s->row * c->heads * c->group + j->h * c->group + first;

	__syncthreads(); /* the last ones have been read */
	for (uint32_t e = threadIdx.x; e < HEAD_TILE * c->head_dim; e += THREADS) {
		const uint32_t g = e / c->head_dim, d = e % c->head_dim;
		const float q = g < heads ? io_load(c->io_dtype, c->q, (row + g) * c->head_dim + d) : 0;
		room->q[g][d] = q * c->scale;
	}
	__syncthreads();
}

/* Logarithms of what the softmax of each of them divides by. */
__device__ static void denominators(const struct votes *c, const struct job *j, struct room *room, uint32_t heads)
{
	struct part mine[HEAD_TILE];
#pragma unroll
	for (uint32_t g = 0; g < HEAD_TILE; g++)
		mine[g] = {-INFINITY, 0};
	for (uint32_t i = threadIdx.x; i < j->n; i += THREADS) {
		float x[HEAD_TILE];
		score(c, j, room, j->ids[i], x);
#pragma unroll
		for (uint32_t g = 0; g < HEAD_TILE; g++)
			mine[g] = join(mine[g], {x[g], 1});
	}
#pragma unroll
	for (uint32_t g = 0; g < HEAD_TILE; g++) {
		const struct part all = warp_join(mine[g]);
		if (threadIdx.x % 32 == 0)
			room->parts[g][threadIdx.x / 32] = all;
	}
	__syncthreads();
	if (threadIdx.x < HEAD_TILE)
		room->lse[threadIdx.x] = threadIdx.x < heads ? denominator(room->parts[threadIdx.x]) : INFINITY;
	__syncthreads();
}

/* Grid: kv heads, sequences. */
__global__ void __launch_bounds__(THREADS, 1) votes_kernel(const __grid_constant__ struct votes c)
{
	__shared__ __align__(16) struct room room;
	const struct skv_kseq *s = &c.seq[blockIdx.y];
	const size_t row = (size_t)blockIdx.y * c.heads + blockIdx.x;
	const struct job j = {s, c.ids + row * c.stride, blockIdx.x, c.count[row]};

	if (s->tally == SKV_TALLY_NONE)
		return;
	for (uint32_t first = 0; first < c.group; first += HEAD_TILE) {
		const uint32_t heads = min(HEAD_TILE, c.group - first);
		const bool add = s->tally == SKV_TALLY_ADD || first > 0;
		load_queries(&c, &j, &room, first, heads);
		denominators(&c, &j, &room, heads);
		for (uint32_t i = threadIdx.x; i < j.n; i += THREADS) {
			const uint32_t u = j.ids[i];
			struct skv_note *note = note_at(&c.notes, s, j.h, s->set, u);
			float x[HEAD_TILE], sum = 0;
			score(&c, &j, &room, u, x);
#pragma unroll
			for (uint32_t g = 0; g < HEAD_TILE; g++)
				sum += exp2f(x[g] - room.lse[g]);
			note->value = (add ? note->value : 0) + sum / (float)c.group;
		}
	}
}

void skv_cuda_tally_list(const struct skv_shape *sh, const struct skv_batch *b, const void *q,
                         const struct skv_list *list, const struct skv_work *work)
{
	struct votes c = {};

	c.seq = b->seq;
	c.notes = notes_of(sh);
	c.q = q;
	c.ids = list->ids;
	c.count = list->count;
	c.scale = sh->scale * LOG2E;
	c.stride = list->stride;
	c.heads = sh->n_kv_heads;
	c.group = sh->n_heads / sh->n_kv_heads;
	c.head_dim = sh->head_dim;
	c.dtype = sh->dtype;
	c.io_dtype = sh->io_dtype;
	c.layer = sh->layer;
	if (b->n > 0)
		votes_kernel<<<dim3(c.heads, b->n), THREADS, 0, stream_of(work)>>>(c);
}

/* ---- the allotment --------------------------------------------------------------------------- */

#define KEY_SURE UINT64_MAX /* of a unit that its head has awake anyhow */
#define POS_BITS 24
#define HEAD_BITS 8

static_assert(SKV_MAX_TOKENS == 1u << POS_BITS && SKV_MAX_HEADS == 1u << HEAD_BITS, "they fit a key, below the rank");

typedef team<THREADS, 0, 0> whole;

/* What a kv head has awake anyhow: candidates from a position on, and those whose key is so high. */
struct share {
	uint64_t key;
	uint32_t from;
	uint32_t candidates; /* that it has: units that live and are awake */
};

struct call {
	const struct skv_kseq *seq;
	struct notes notes;
	struct skv_allot by;
	const float *rank;   /* [seq][kv head][stride] */
	struct share *share; /* [seq][kv head] */
	uint32_t stride, heads;
};

/* The higher the key, the sooner a unit is awake. */
DEVICE uint64_t key_of(const struct share *share, uint32_t h, uint32_t pos, float rank)
{
	const uint32_t below = (SKV_MAX_TOKENS - 1 - pos) << HEAD_BITS | (SKV_MAX_HEADS - 1 - h);
	const uint64_t key = (uint64_t)ordered(rank) << 32 | below;
	return pos >= share->from || key >= share->key ? KEY_SURE : key;
}

/* use(unit, pos, key) of a kv head's candidates */
template <class F> DEVICE void each_candidate(const struct call *c, uint32_t h, struct share share, F use)
{
	const struct skv_kseq *s = &c->seq[blockIdx.y];
	const float *rank = c->rank + ((size_t)blockIdx.y * c->heads + h) * c->stride;

	each_pair<THREADS>(&c->notes, s, h, s->set, 0, s->len, s->len, [=](uint32_t u, struct pair p) {
#pragma unroll
		for (int x = 0; x < 2; x++)
			if (lives(p.pos[x]) && !sleeps(p.value[x]))
				use(u + x, p.pos[x], key_of(&share, h, p.pos[x], rank[u + x]));
	});
}

__device__ static uint32_t count_candidates(const struct call *c, struct share share)
{
	__shared__ uint32_t all;
	uint32_t mine = 0;

	if (threadIdx.x == 0)
		all = 0;
	__syncthreads();
	each_candidate(c, blockIdx.x, share, [&](uint32_t, uint32_t, uint64_t) { mine++; });
	mine = __reduce_add_sync(~0u, mine);
	if (threadIdx.x % 32 == 0)
		atomicAdd(&all, mine);
	__syncthreads();
	return all;
}

/* Grid: kv heads, sequences. */
__global__ void __launch_bounds__(THREADS, 2) share_kernel(const __grid_constant__ struct call c)
{
	__shared__ struct select_room room;
	const struct call *call = &c;
	const uint32_t h = blockIdx.x, awake = c.seq[blockIdx.y].awake;
	struct share share = {KEY_SURE, SKV_NOTE_FREE, 0};

	if (awake == UINT32_MAX)
		return;
	share.candidates = count_candidates(call, share);
	const uint32_t sure = min(skv_sure_of(&c.by, awake), share.candidates);
	const uint32_t recent = min(c.by.recent ? c.by.recent - 1 : 0, sure);
	if (recent > 0) {
		const uint64_t last = nth_key<whole>(&room, recent, [=](auto use) {
			each_candidate(call, h, share, [=](uint32_t, uint32_t pos, uint64_t) {
				use((uint64_t)pos << (KEY_BITS - POS_BITS));
			});
		});
		share.from = (uint32_t)(last >> (KEY_BITS - POS_BITS));
	}
	if (sure > 0)
		share.key = nth_key<whole>(&room, sure, [=](auto use) {
			each_candidate(call, h, share, [=](uint32_t, uint32_t, uint64_t key) { use(key); });
		});
	if (threadIdx.x == 0)
		c.share[(size_t)blockIdx.y * c.heads + h] = share;
}

/* Grid: 1, sequences. */
__global__ void __launch_bounds__(THREADS, 2) allot_kernel(const __grid_constant__ struct call c)
{
	__shared__ struct select_room room;
	const struct skv_kseq *s = &c.seq[blockIdx.y];
	const struct share *share = c.share + (size_t)blockIdx.y * c.heads;
	const struct call *call = &c;
	uint64_t want, there = 0;

	if (s->awake == UINT32_MAX)
		return;
	for (uint32_t h = 0; h < c.heads; h++)
		there += share[h].candidates;
	want = (uint64_t)c.heads * s->awake;
	if (there <= want)
		return;
	const uint64_t last = want == 0 ? KEY_SURE : nth_key<whole>(&room, (uint32_t)want, [=](auto use) {
		for (uint32_t h = 0; h < call->heads; h++)
			each_candidate(call, h, share[h], [=](uint32_t, uint32_t, uint64_t key) { use(key); });
	});
	for (uint32_t h = 0; h < c.heads; h++)
		each_candidate(call, h, share[h], [=](uint32_t u, uint32_t, uint64_t key) {
			struct skv_note *note = note_at(&call->notes, s, h, s->set, u);
			if (key < last)
				note->value = copysignf(note->value, -1);
		});
}

void skv_cuda_allot(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_allot *by,
                    const float *rank, uint32_t stride, const struct skv_work *work)
{
	const struct layout l = layout_of(sh, b->n, b->max_len, 1);
	struct call c = {};

	c.seq = b->seq;
	c.notes = notes_of(sh);
	c.by = *by;
	c.rank = rank;
	c.share = (struct share *)((uint8_t *)work->mem + l.chosen);
	c.stride = stride;
	c.heads = sh->n_kv_heads;
	if (b->n == 0)
		return;
	share_kernel<<<dim3(c.heads, b->n), THREADS, 0, stream_of(work)>>>(c);
	allot_kernel<<<dim3(1, b->n), THREADS, 0, stream_of(work)>>>(c);
}
