/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/select.cu - the best units of each list, by radix select.
 *
 * A block takes a list. Scores become keys whose order as integers is theirs as numbers, 0 for what must not
 * be chosen. Three passes over the keys, eleven bits each, find the key of the last one chosen; one more
 * collects what is better, and of its equals as many as are wanted, in ascending order. Keys are held in
 * shared memory where they fit, else in place of the scores.
 */
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/cuda.h"

#define THREADS 512
#define WARPS (THREADS / 32)
#define BITS 11
#define BINS (1 << BITS)
#define SHARED_BYTES 147456u /* of keys that fit shared memory: 36,864 units, on sm_80 too */
#define KEY_ALWAYS 0xffffffffu /* pinned and recent: above the key of every number */

struct call {
	const struct skv_kseq *seq;
	struct skv_evidence ev;
	struct skv_select select;
	struct skv_list list;
	uint32_t layer;
	bool tokens, shared; /* of keys: in shared memory */
};

/* What is chosen of a list. */
struct choice {
	uint32_t n, pin, recent; /* units; the first and the last that are taken in any case */
	uint32_t want;           /* of those between */
};

__device__ static uint32_t key_of(float score)
{
	const uint32_t u = __float_as_uint(score + 0.0f); /* -0 is 0 */
	if (isnan(score) || score == -INFINITY)
		return 0;
	return u ^ (u >> 31 ? 0xffffffffu : 0x80000000u);
}

__device__ static struct choice choice_of(const struct call *c, uint32_t len)
{
	const struct skv_select *s = &c->select;
	struct choice x;
	x.n = c->tokens ? len : skv_pages_of(len);
	const uint32_t k = skv_budget_of(s->budget, x.n, s->floor);
	x.recent = min(k, max(s->recent_floor, s->recent ? s->recent : k / 8));
	x.pin = min(s->pin, x.n - x.recent);
	x.want = k - x.recent;
	return x;
}

__device__ static void make_keys(const struct call *c, const struct choice *x, const skv_pte *table, const float *score,
                                 uint32_t *key)
{
	for (uint32_t u = threadIdx.x; u < x->n; u += THREADS) {
		const bool there = skv_pte_resident(table[c->tokens ? u / SKV_PAGE_TOKENS : u]);
		const bool always = u < x->pin || u >= x->n - x->recent;
		key[u] = !there ? 0 : always ? KEY_ALWAYS : key_of(score[u]);
	}
}

/* Exclusive prefix sum over the block; *ret_total is the sum. Two counts in one word. */
__device__ static uint64_t scan(uint64_t mine, uint64_t *ret_total)
{
	__shared__ uint64_t warp_sum[WARPS];
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	uint64_t sum = mine, before = 0, total = 0;
#pragma unroll
	for (int x = 1; x < 32; x *= 2) {
		const uint64_t other = __shfl_up_sync(~0u, sum, x);
		sum += lane >= x ? other : 0;
	}
	__syncthreads(); /* the last call's sums have been read */
	if (lane == 31)
		warp_sum[warp] = sum;
	__syncthreads();
#pragma unroll
	for (int w = 0; w < WARPS; w++) {
		before += w < warp ? warp_sum[w] : 0;
		total += warp_sum[w];
	}
	*ret_total = total;
	return before + sum - mine;
}

/*
 * The bin, from the top, in which the `want`th key lies, and how many of that bin are still wanted. Nothing
 * when there are fewer keys: *ret_bin stays.
 */
__device__ static void find_bin(const uint32_t *bins, uint32_t *ret_bin, uint32_t *ret_want)
{
	constexpr uint32_t per = BINS / THREADS;
	const uint32_t want = *ret_want, top = BINS - 1 - threadIdx.x * per;
	uint64_t mine = 0, total;
#pragma unroll
	for (uint32_t b = 0; b < per; b++)
		mine += bins[top - b];
	uint64_t above = scan(mine, &total);
#pragma unroll
	for (uint32_t b = 0; b < per; b++) {
		const uint32_t here = bins[top - b];
		if (above < want && above + here >= want) {
			*ret_bin = top - b;
			*ret_want = want - (uint32_t)above;
		}
		above += here;
	}
	__syncthreads();
}

/* The key of the last one chosen and how many of its equals; a key below all when all are wanted. */
__device__ static void find_last(const uint32_t *key, const struct choice *x, uint32_t *bins, uint32_t *ret_last,
                                 uint32_t *ret_equal)
{
	__shared__ uint32_t bin, want;
	const uint32_t from = x->pin, to = x->n - x->recent;
	uint32_t prefix = 0;

	if (threadIdx.x == 0)
		want = x->want;
#pragma unroll 1
	for (int pass = 0; pass < 3; pass++) {
		const uint32_t shift = pass == 0 ? 21 : pass == 1 ? 10 : 0;         /* 11, 11 and 10 bits */
		const uint32_t known = pass == 0 ? 0 : pass == 1 ? ~0u << 21 : ~0u << 10;
		const uint32_t digit = pass < 2 ? BINS - 1 : BINS / 2 - 1;
		for (uint32_t b = threadIdx.x; b < BINS; b += THREADS)
			bins[b] = 0;
		if (threadIdx.x == 0)
			bin = BINS;
		__syncthreads();
		for (uint32_t u = from + threadIdx.x; u < to; u += THREADS) {
			const uint32_t k = key[u];
			if (k && (k & known) == prefix)
				atomicAdd(&bins[k >> shift & digit], 1);
		}
		__syncthreads();
		find_bin(bins, &bin, &want);
		const uint32_t found = bin;
		__syncthreads(); /* all have read it: the next pass begins with writing it */
		if (found == BINS) { /* fewer than wanted: all of them */
			*ret_last = 0;
			*ret_equal = 0;
			return;
		}
		prefix |= found << shift;
	}
	*ret_last = prefix;
	*ret_equal = want;
}

/* Units above the last, and the first `equal` of its equals, ascending. */
__device__ static uint32_t collect(const uint32_t *key, uint32_t n, uint32_t last, uint32_t equal, uint32_t *ids)
{
	/* a thread takes a run of units: of odd length, so that the runs begin in different banks */
	const uint32_t per = ((n + THREADS - 1) / THREADS) | 1;
	const uint32_t from = min(n, threadIdx.x * per), to = min(n, from + per);
	uint32_t better = 0, same = 0;
	uint64_t total;

	for (uint32_t u = from; u < to; u++) {
		better += key[u] > last;
		same += key[u] == last;
	}
	const uint64_t before = scan((uint64_t)better << 32 | same, &total);
	uint32_t rank = (uint32_t)before, at = (uint32_t)(before >> 32) + min(rank, equal);
	for (uint32_t u = from; u < to; u++)
		if (key[u] > last || (key[u] == last && rank++ < equal))
			ids[at++] = u;
	return (uint32_t)(total >> 32) + min((uint32_t)total, equal);
}

__global__ void __launch_bounds__(THREADS) select_kernel(const __grid_constant__ struct call c)
{
	extern __shared__ uint32_t shared_keys[];
	__shared__ uint32_t bins[BINS];
	const uint32_t i = blockIdx.y, list = i * c.ev.rows + blockIdx.x;
	const struct skv_kseq *s = &c.seq[i];
	const skv_pte *table = s->table + (size_t)c.layer * s->layer_stride;
	float *score = c.tokens ? c.ev.token + (size_t)list * c.ev.token_stride : c.ev.page + (size_t)list * c.ev.page_stride;
	uint32_t *key = c.shared ? shared_keys : (uint32_t *)score;
	const struct choice x = choice_of(&c, s->len);
	uint32_t last = KEY_ALWAYS - 1, equal = 0;

	make_keys(&c, &x, table, score, key);
	__syncthreads();
	if (x.want)
		find_last(key, &x, bins, &last, &equal);
	const uint32_t count = collect(key, x.n, last, equal, c.list.ids + (size_t)list * c.list.stride);
	if (threadIdx.x == 0)
		c.list.count[list] = count;
}

cudaError_t skv_cuda_select_init(void)
{
	return cudaFuncSetAttribute(select_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
}

void skv_cuda_select(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_evidence *ev, bool tokens,
                     const struct skv_select *select, struct skv_list *list, const struct skv_work *work)
{
	const uint32_t units = tokens ? b->max_len : skv_pages_of(b->max_len);
	const uint32_t most = skv_budget_of(select->budget, units, select->floor) + min(select->pin, units);

	list->most = most < units ? most : units;
	const size_t bytes = units * sizeof(uint32_t);
	const struct call c = {
		.seq = b->seq,
		.ev = *ev,
		.select = *select,
		.list = *list,
		.layer = sh->layer,
		.tokens = tokens,
		.shared = bytes <= SHARED_BYTES,
	};

	if (b->n > 0)
		select_kernel<<<dim3(ev->rows, b->n), THREADS, c.shared ? bytes : 0, stream_of(work)>>>(c);
}
