/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/evict/head-budgets.cu - kv heads that share a layer's budget (Ada-KV): lists of active entries, their
 * accumulated scores, and the allocation of head budgets.
 *
 * Lists of active slots are made in every step: a block takes one kv head of a sequence, and each thread has the
 * metadata of RUN slots in flight. The other kernels run in few steps, and are simple. Accumulation takes a block per
 * kv head: in two passes over the keys, one key per thread, the block computes the denominators of the softmax and then
 * the weights. Allocation first finds the guaranteed entries of each head, one block per head. Then one block takes all
 * heads of a sequence and finds the best of their entries, whose keys all differ.
 */
#include <cub/block/block_scan.cuh>
#include "kernels/cuda/evict/slot-meta.cuh"
#include "kernels/cuda/runtime/fp8.cuh"
#include "kernels/cuda/select/topk-key.cuh"
#include "kernels/cuda/runtime/softmax.cuh"

#define THREADS 512
#define WARPS (THREADS / 32)

/* ---- lists ----------------------------------------------------------------------------------- */

#define RUN 8u /* slots whose metadata a thread loads at a time */

struct list_params {
	const struct skv_kseq *seq;
	struct meta_table meta;
	uint32_t *ids, *count; /* ids: [seq][kv head][stride]; count: [seq][kv head] */
	uint32_t stride, heads;
};

/* Returns a bit mask of the active slots among [u, u + RUN). */
DEVICE uint32_t active_mask(const struct list_params *c, const struct skv_kseq *s, uint32_t h, uint32_t u)
{
	struct meta_pair p[RUN / 2];
	uint32_t bits = 0;
#pragma unroll
	for (uint32_t x = 0; x < RUN / 2; x++) {
		p[x] = {{SKV_SLOT_FREE, SKV_SLOT_FREE}, {0, 0}};
		if (u + 2 * x < s->len)
			p[x] = load_pair(meta_at(&c->meta, s, h, s->set, u + 2 * x));
	}
#pragma unroll
	for (uint32_t x = 0; x < RUN; x++) {
		const struct meta_pair *two = &p[x / 2];
		const bool active = u + x < s->len && is_retained(two->pos[x % 2]) && !is_inactive(two->value[x % 2]);
		bits |= (uint32_t)active << x;
	}
	return bits;
}

/* Lists the active slots of a kv head, ascending. The grid is kv heads (x) by sequences (y). */
__global__ void __launch_bounds__(THREADS, 2) list_active_kernel(const __grid_constant__ struct list_params c)
{
	typedef cub::BlockScan<uint32_t, THREADS> scan;
	__shared__ typename scan::TempStorage smem;
	const struct skv_kseq *s = &c.seq[blockIdx.y];
	const size_t row = (size_t)blockIdx.y * c.heads + blockIdx.x;
	uint32_t *ids = c.ids + row * c.stride, before = 0;

	for (uint32_t first = 0; first < s->len; first += RUN * THREADS) {
		const uint32_t u = first + RUN * threadIdx.x;
		uint32_t bits = active_mask(&c, s, blockIdx.x, u), k, n;
		scan(smem).ExclusiveSum(__popc(bits), k, n);
		for (k += before; bits; bits &= bits - 1)
			ids[k++] = u + __ffs(bits) - 1;
		before += n;
		__syncthreads();
	}
	if (threadIdx.x == 0)
		c.count[row] = before;
}

void skv_cuda_list_active(const struct skv_shape *sh, const struct skv_batch *b, struct skv_index_list *list,
                          const struct skv_workspace *work)
{
	struct list_params c = {};

	list->max_count = b->max_len;
	c.seq = b->seq;
	c.meta = meta_table_of(sh);
	c.ids = list->ids;
	c.count = list->count;
	c.stride = list->stride;
	c.heads = sh->n_kv_heads;
	if (b->n > 0)
		launch_grid(list_active_kernel, dim3(c.heads, b->n), THREADS, 0, stream_of(work), c);
}

/* ---- accumulated scores ---------------------------------------------------------------------- */

#define EIGHT 8u /* elements of a key that are read at a time: 16 bytes, 8 bytes of fp8 */

struct accumulate_params {
	const struct skv_kseq *seq;
	struct meta_table meta;
	const void *q;
	const uint32_t *ids, *count; /* ids: [seq][kv head][stride]; count: [seq][kv head] */
	struct score_scale scale;
	const float *sinks;
	uint32_t stride, q_stride, heads, group, head_dim, dtype, io_dtype, layer;
};

/* Shared memory for up to HEAD_TILE q heads of a kv head, which are processed at a time. */
struct accumulate_smem {
	float q[HEAD_TILE][SKV_MAX_HEAD_DIM]; /* times the scale, unless there is a softcap; zeros past the last head */
	struct partial_softmax parts[HEAD_TILE][WARPS];
	float lse[HEAD_TILE]; /* log2 of softmax denominators; infinity past the last head */
};

struct head_item {
	const struct skv_kseq *s;
	const uint32_t *ids; /* listed slots; a thread takes ids threadIdx.x + k THREADS */
	uint32_t h, n;       /* index of the kv head; number of its listed slots */
};

/* Computes the scores of slot u's key for HEAD_TILE q heads; -infinity if the slot's page is not resident. */
__device__ static void key_scores(const struct accumulate_params *c, const struct head_item *j,
                                  const struct accumulate_smem *smem, uint32_t u, float ret[HEAD_TILE])
{
	const skv_pte entry = j->s->table[(size_t)c->layer * j->s->layer_stride + u / SKV_PAGE_TOKENS];
	const bool resident = skv_pte_resident(entry);
#pragma unroll
	for (uint32_t g = 0; g < HEAD_TILE; g++)
		ret[g] = resident ? 0 : -INFINITY;
	if (!resident)
		return;
	const uint32_t row = j->h * SKV_PAGE_TOKENS + u % SKV_PAGE_TOKENS;
	const uint8_t *page = c->meta.pool + skv_pte_id(entry) * c->meta.page_bytes;
	const float unit = c->dtype == SKV_FP8 ? fp8_unit(page[(size_t)2 * c->heads * SKV_PAGE_TOKENS * c->head_dim + row]) : 1;
#pragma unroll 4
	for (uint32_t d = 0; d < c->head_dim; d += EIGHT) {
		const uint4 v = row_read8(c->dtype, page, row * c->head_dim + d);
		const float2 k[] = {row_pair(c->dtype, v, 0), row_pair(c->dtype, v, 1), row_pair(c->dtype, v, 2),
		                    row_pair(c->dtype, v, 3)};
#pragma unroll
		for (uint32_t g = 0; g < HEAD_TILE; g++) {
			const float4 *q = (const float4 *)&smem->q[g][d], a = q[0], b = q[1];
			ret[g] += k[0].x * a.x + k[0].y * a.y + k[1].x * a.z + k[1].y * a.w + k[2].x * b.x +
			          k[2].y * b.y + k[3].x * b.z + k[3].y * b.w;
		}
	}
#pragma unroll
	for (uint32_t g = 0; g < HEAD_TILE; g++)
		ret[g] *= unit;
	if (c->scale.cap != 0)
#pragma unroll
		for (uint32_t g = 0; g < HEAD_TILE; g++)
			ret[g] = c->scale.scale * soft_cap(c->scale.cap, ret[g]);
}

/* Loads the queries of `heads` q heads of the GQA group, beginning with head `first`. */
__device__ static void load_queries(const struct accumulate_params *c, const struct head_item *j,
                                    struct accumulate_smem *smem, uint32_t first, uint32_t heads)
{
	const size_t row = (size_t)j->s->row * c->q_stride + (j->h * c->group + first) * c->head_dim;
	const float by = c->scale.cap != 0 ? 1 : c->scale.scale;

	__syncthreads(); /* the previous queries are no longer needed */
	for (uint32_t e = threadIdx.x; e < HEAD_TILE * c->head_dim; e += THREADS) {
		const uint32_t g = e / c->head_dim, d = e % c->head_dim;
		const float q = g < heads ? io_load(c->io_dtype, c->q, row + e) : 0;
		smem->q[g][d] = q * by;
	}
	__syncthreads();
}

/*
 * Computes log2 of each head's softmax denominator, for `heads` q heads of the GQA group, beginning with head `first`.
 */
__device__ static void denominators(const struct accumulate_params *c, const struct head_item *j,
                                    struct accumulate_smem *smem, uint32_t first, uint32_t heads)
{
	const uint32_t head = j->h * c->group + first + threadIdx.x;
	struct partial_softmax mine[HEAD_TILE];
#pragma unroll
	for (uint32_t g = 0; g < HEAD_TILE; g++)
		mine[g] = {-INFINITY, 0};
	for (uint32_t i = threadIdx.x; i < j->n; i += THREADS) {
		float x[HEAD_TILE];
		key_scores(c, j, smem, j->ids[i], x);
#pragma unroll
		for (uint32_t g = 0; g < HEAD_TILE; g++)
			mine[g] = merge_softmax(mine[g], {x[g], 1});
	}
#pragma unroll
	for (uint32_t g = 0; g < HEAD_TILE; g++) {
		const struct partial_softmax all = warp_merge_softmax(mine[g]);
		if (threadIdx.x % 32 == 0)
			smem->parts[g][threadIdx.x / 32] = all;
	}
	__syncthreads();
	if (threadIdx.x < HEAD_TILE)
		smem->lse[threadIdx.x] =
			threadIdx.x < heads ? add_sink(c->sinks, head, log_denominator(smem->parts[threadIdx.x])) : INFINITY;
	__syncthreads();
}

/* Adds the weights of listed slots to their accumulated scores. The grid is kv heads (x) by sequences (y). */
__global__ void __launch_bounds__(THREADS,
                                  1) accumulate_list_kernel(const __grid_constant__ struct accumulate_params c)
{
	__shared__ __align__(16) struct accumulate_smem smem;
	const struct skv_kseq *s = &c.seq[blockIdx.y];
	const size_t row = (size_t)blockIdx.y * c.heads + blockIdx.x;
	const struct head_item j = {s, c.ids + row * c.stride, blockIdx.x, c.count[row]};

	if (s->accumulate == SKV_ACCUMULATE_NONE)
		return;
	for (uint32_t first = 0; first < c.group; first += HEAD_TILE) {
		const uint32_t heads = min(HEAD_TILE, c.group - first);
		const bool add = s->accumulate == SKV_ACCUMULATE_ADD || first > 0;
		load_queries(&c, &j, &smem, first, heads);
		denominators(&c, &j, &smem, first, heads);
		for (uint32_t i = threadIdx.x; i < j.n; i += THREADS) {
			const uint32_t u = j.ids[i];
			struct skv_slot_meta *meta = meta_at(&c.meta, s, j.h, s->set, u);
			float x[HEAD_TILE], sum = 0;
			key_scores(&c, &j, &smem, u, x);
#pragma unroll
			for (uint32_t g = 0; g < HEAD_TILE; g++)
				sum += exp2f(x[g] - smem.lse[g]);
			meta->score = (add ? meta->score : 0) + sum / (float)c.group;
		}
	}
}

void skv_cuda_accumulate_list(const struct skv_shape *sh, const struct skv_batch *b, const void *q,
                              const struct skv_index_list *list, const struct skv_workspace *work)
{
	struct accumulate_params c = {};

	c.seq = b->seq;
	c.meta = meta_table_of(sh);
	c.q = q;
	c.ids = list->ids;
	c.count = list->count;
	c.scale = score_scale_of(sh);
	c.sinks = sh->sinks;
	c.stride = list->stride;
	c.q_stride = skv_q_stride(sh);
	c.heads = sh->n_kv_heads;
	c.group = sh->n_heads / sh->n_kv_heads;
	c.head_dim = sh->head_dim;
	c.dtype = sh->dtype;
	c.io_dtype = sh->io_dtype;
	c.layer = sh->layer;
	if (b->n > 0)
		launch_grid(accumulate_list_kernel, dim3(c.heads, b->n), THREADS, 0, stream_of(work), c);
}

/* ---- head budgets ---------------------------------------------------------------------------- */

#define KEY_GUARANTEED UINT64_MAX /* key of an entry in its head's guaranteed share */
#define POS_BITS 24
#define HEAD_BITS 8

static_assert(SKV_MAX_TOKENS == 1u << POS_BITS && SKV_MAX_HEADS == 1u << HEAD_BITS, "they fit a key, below the rank");

typedef team<THREADS, 0, 0> whole;

/*
 * The guaranteed entries of a kv head: its candidates at position `from` and after it, and those with keys of at least
 * `key`.
 */
struct guaranteed {
	uint64_t key;
	uint32_t from;
	uint32_t candidates; /* number of candidates: the head's retained and active entries */
};

struct budget_params {
	const struct skv_kseq *seq;
	struct meta_table meta;
	struct skv_head_budget_rule by;
	const float *rank;             /* [seq][kv head][stride] ranks of entries */
	struct guaranteed *guaranteed; /* [seq][kv head] guaranteed entries */
	uint32_t stride, heads;
};

/* Returns the key by which entries of all heads are compared: entries with larger keys stay active first. */
DEVICE uint64_t topk_key(const struct guaranteed *guaranteed, uint32_t h, uint32_t pos, float rank)
{
	const uint32_t below = (SKV_MAX_TOKENS - 1 - pos) << HEAD_BITS | (SKV_MAX_HEADS - 1 - h);
	const uint64_t key = (uint64_t)ordered(rank) << 32 | below;
	return pos >= guaranteed->from || key >= guaranteed->key ? KEY_GUARANTEED : key;
}

/* Calls use(slot, position, key) for each candidate of kv head h: each entry that is retained and active. */
template <class F>
DEVICE void for_each_candidate(const struct budget_params *c, uint32_t h, struct guaranteed guaranteed, F use)
{
	const struct skv_kseq *s = &c->seq[blockIdx.y];
	const float *rank = c->rank + ((size_t)blockIdx.y * c->heads + h) * c->stride;

	for_each_pair<THREADS>(&c->meta, s, h, s->set, 0, s->len, s->len, [=](uint32_t u, struct meta_pair p) {
#pragma unroll
		for (int x = 0; x < 2; x++)
			if (is_retained(p.pos[x]) && !is_inactive(p.value[x]))
				use(u + x, p.pos[x], topk_key(&guaranteed, h, p.pos[x], rank[u + x]));
	});
}

__device__ static uint32_t count_candidates(const struct budget_params *c, struct guaranteed guaranteed)
{
	__shared__ uint32_t all;
	uint32_t mine = 0;

	if (threadIdx.x == 0)
		all = 0;
	__syncthreads();
	for_each_candidate(c, blockIdx.x, guaranteed, [&](uint32_t, uint32_t, uint64_t) { mine++; });
	mine = __reduce_add_sync(~0u, mine);
	if (threadIdx.x % 32 == 0)
		atomicAdd(&all, mine);
	__syncthreads();
	return all;
}

/* Finds the guaranteed entries of each kv head. The grid is kv heads (x) by sequences (y). */
__global__ void __launch_bounds__(THREADS, 2) guaranteed_kernel(const __grid_constant__ struct budget_params c)
{
	__shared__ struct topk_smem smem;
	const struct budget_params *call = &c;
	const uint32_t h = blockIdx.x, active = c.seq[blockIdx.y].n_active;
	struct guaranteed guaranteed = {KEY_GUARANTEED, SKV_SLOT_FREE, 0};

	if (active == UINT32_MAX)
		return;
	guaranteed.candidates = count_candidates(call, guaranteed);
	const uint32_t guarantee = min(skv_safeguard_of(&c.by, active), guaranteed.candidates);
	const uint32_t recent = min(c.by.recent ? c.by.recent - 1 : 0, guarantee);
	if (recent > 0) {
		const uint64_t last = kth_largest_key<whole>(&smem, recent, [=](auto use) {
			for_each_candidate(call, h, guaranteed, [=](uint32_t, uint32_t pos, uint64_t) {
				use((uint64_t)pos << (KEY_BITS - POS_BITS));
			});
		});
		guaranteed.from = (uint32_t)(last >> (KEY_BITS - POS_BITS));
	}
	if (guarantee > 0)
		guaranteed.key = kth_largest_key<whole>(&smem, guarantee, [=](auto use) {
			for_each_candidate(call, h, guaranteed, [=](uint32_t, uint32_t, uint64_t key) { use(key); });
		});
	if (threadIdx.x == 0)
		c.guaranteed[(size_t)blockIdx.y * c.heads + h] = guaranteed;
}

/*
 * Makes all entries of a sequence's kv heads inactive, except the best and the guaranteed ones. The grid is 1 (x) by
 * sequences (y).
 */
__global__ void __launch_bounds__(THREADS, 2)
head_budgets_kernel(const __grid_constant__ struct budget_params c)
{
	__shared__ struct topk_smem smem;
	const struct skv_kseq *s = &c.seq[blockIdx.y];
	const struct guaranteed *guaranteed = c.guaranteed + (size_t)blockIdx.y * c.heads;
	const struct budget_params *call = &c;
	uint64_t want, n_candidates = 0;

	if (s->n_active == UINT32_MAX)
		return;
	for (uint32_t h = 0; h < c.heads; h++)
		n_candidates += guaranteed[h].candidates;
	want = (uint64_t)c.heads * s->n_active;
	if (n_candidates <= want)
		return;
	const uint64_t last = want == 0 ? KEY_GUARANTEED : kth_largest_key<whole>(&smem, (uint32_t)want,
	                                                                          [=](auto use) {
		for (uint32_t h = 0; h < call->heads; h++)
			for_each_candidate(call, h, guaranteed[h],
			                   [=](uint32_t, uint32_t, uint64_t key) { use(key); });
	});
	for (uint32_t h = 0; h < c.heads; h++)
		for_each_candidate(call, h, guaranteed[h], [=](uint32_t u, uint32_t, uint64_t key) {
			struct skv_slot_meta *meta = meta_at(&call->meta, s, h, s->set, u);
			if (key < last)
				meta->score = copysignf(meta->score, -1);
		});
}

void skv_cuda_allocate_head_budgets(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_head_budget_rule *by,
                                    const float *rank, uint32_t stride, const struct skv_workspace *work)
{
	const struct workspace_layout l = workspace_layout_of(sh, b->n, b->max_len, 1);
	struct budget_params c = {};

	c.seq = b->seq;
	c.meta = meta_table_of(sh);
	c.by = *by;
	c.rank = rank;
	c.guaranteed = (struct guaranteed *)((uint8_t *)work->mem + l.topk_scores);
	c.stride = stride;
	c.heads = sh->n_kv_heads;
	if (b->n == 0)
		return;
	launch_grid(guaranteed_kernel, dim3(c.heads, b->n), THREADS, 0, stream_of(work), c);
	launch_grid(head_budgets_kernel, dim3(1, b->n), THREADS, 0, stream_of(work), c);
}
