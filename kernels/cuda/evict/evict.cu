/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/evict/evict.cu - which units of a kv head live on.
 *
 * A block has a sequence's kv head. As a rule one unit goes, and the latest ones all live: then it is the least of the
 * others, which one pass finds. Where more go, as when a prompt has ended, the last one that stays is found first.
 */
#include "kernels/cuda/evict/slot-meta.cuh"
#include "kernels/cuda/select/topk-key.cuh"

#define THREADS 512
#define KEY_RECENT UINT64_MAX

typedef team<THREADS, 0, 0> whole;

struct call {
	const struct skv_kseq *seq;
	struct notes notes;
	struct skv_keep_by by;
	const float *rank; /* [seq][kv head][stride], or NULL: values */
	uint32_t stride, heads;
};

/* What a block has to decide: of so many units so many stay, those from a position on whatever their rank. */
struct job {
	const struct skv_kseq *s;
	const float *rank; /* or NULL */
	uint32_t h, units, keep, from;
};

/* The higher the key, the sooner a unit stays. */
DEVICE uint64_t key_of(const struct call *c, const struct job *j, uint32_t pos, float rank)
{
	if (pos >= j->from)
		return KEY_RECENT;
	return (uint64_t)(pos < j->s->pinned) << 63 | score_key(rank, pos, c->by.old_first);
}

/* use(unit, pos, rank) */
template <class F> DEVICE void each_unit(const struct call *c, const struct job *j, F use)
{
	each_pair<THREADS>(&c->notes, j->s, j->h, j->s->set, 0, j->units, j->units, [=](uint32_t u, struct pair p) {
#pragma unroll
		for (int x = 0; x < 2; x++)
			if (u + x < j->units)
				use(u + x, p.pos[x], j->rank ? j->rank[u + x] : p.value[x]);
	});
}

/* The least of the units, and how many there are from j->from on. */
__device__ static uint32_t find_least(const struct call *c, const struct job *j, uint32_t *ret_recent)
{
	__shared__ unsigned long long least;
	__shared__ uint32_t recent, unit;
	unsigned long long key = KEY_RECENT;
	uint32_t mine = 0, latest = 0;

	if (threadIdx.x == 0) {
		least = KEY_RECENT;
		recent = unit = 0;
	}
	__syncthreads();
	each_unit(c, j, [&](uint32_t u, uint32_t pos, float rank) {
		const uint64_t k = key_of(c, j, pos, rank);
		latest += k == KEY_RECENT;
		mine = k < key ? u : mine;
		key = k < key ? k : key;
	});
	const unsigned long long of_thread = key;
#pragma unroll
	for (int lane = 1; lane < 32; lane *= 2)
		key = min(key, __shfl_xor_sync(~0u, key, lane));
	latest = __reduce_add_sync(~0u, latest);
	if (threadIdx.x % 32 == 0) {
		atomicMin(&least, key);
		atomicAdd(&recent, latest);
	}
	__syncthreads();
	if (of_thread == least && least != KEY_RECENT)
		unit = mine; /* keys differ: one thread */
	__syncthreads();
	*ret_recent = recent;
	return unit;
}

/* Have the `recent` units with the largest positions from j->from on, where some of the latest have gone before. */
__device__ static void find_recent(const struct call *c, struct job *j, struct select_room *room, uint32_t recent)
{
	const uint64_t last = nth_key<whole>(room, recent, [=](auto use) {
		each_unit(c, j, [=](uint32_t, uint32_t pos, float) { use((uint64_t)pos << 32); });
	});
	j->from = (uint32_t)(last >> 32);
}

/* Those below the last that stays go. */
__device__ static void mark(const struct call *c, const struct job *j, uint64_t last)
{
	each_unit(c, j, [=](uint32_t u, uint32_t pos, float rank) {
		struct skv_note *note = note_at(&c->notes, j->s, j->h, j->s->set, u);
		if (key_of(c, j, pos, rank) < last)
			note->pos = pos | SKV_NOTE_GONE;
		else if (c->by.forget)
			note->value = 0;
	});
}

/* Grid: kv heads, sequences. */
__global__ void __launch_bounds__(THREADS, 2) keep_kernel(const __grid_constant__ struct call c)
{
	__shared__ struct select_room room;
	const struct skv_kseq *s = &c.seq[blockIdx.y];
	struct job j = {.s = s, .h = blockIdx.x, .units = units_of(c.by.unit, s->len), .keep = s->keep};
	if (j.keep >= j.units)
		return;
	const uint32_t recent = min(skv_recent_of(&c.by, j.keep), j.keep), last = units_of(c.by.unit, s->all);
	uint32_t there = 0;

	j.from = recent ? last - recent : SKV_NOTE_FREE;
	j.rank = c.rank ? c.rank + ((size_t)blockIdx.y * c.heads + j.h) * c.stride : NULL;
	const uint32_t least = find_least(&c, &j, &there);
	if (there == recent && j.keep + 1 == j.units && !c.by.forget) {
		if (threadIdx.x == 0)
			note_at(&c.notes, s, j.h, s->set, least)->pos |= SKV_NOTE_GONE;
		return;
	}
	if (there != recent)
		find_recent(&c, &j, &room, recent);
	const struct job *job = &j;
	const uint64_t stays = j.keep == 0 ? KEY_RECENT : nth_key<whole>(&room, j.keep, [=](auto use) {
		each_unit(&c, job, [=](uint32_t, uint32_t pos, float rank) { use(key_of(&c, job, pos, rank)); });
	});
	mark(&c, &j, stays);
}

void skv_cuda_keep(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_keep_by *by,
                   const float *rank, uint32_t stride, const struct skv_work *work)
{
	struct call c = {};

	c.seq = b->seq;
	c.notes = notes_of(sh);
	c.by = *by;
	c.rank = rank;
	c.stride = stride;
	c.heads = sh->n_kv_heads;
	if (b->n > 0)
		keep_kernel<<<dim3(c.heads, b->n), THREADS, 0, stream_of(work)>>>(c);
}
