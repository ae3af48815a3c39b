/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/evict/slots.cu - allocates KV slots for a step's tokens, and carries slot metadata from step to step.
 *
 * A block takes one kv head of a sequence. Usually no entry is retained beyond the first `len` slots, and among these
 * slots one entry is free, or the last one is new. Then one pass copies the metadata to the step's set and finds the
 * free entry. Only after more than one eviction, as after a prompt, are free entries and the retained entries beyond
 * `len` listed in ascending order, and rows copied.
 */
#include <cub/block/block_scan.cuh>
#include "kernels/cuda/evict/slot-meta.cuh"

#define THREADS 512
#define TILE (2 * THREADS) /* number of entries that are listed at a time */
#define PIECE 16u          /* number of bytes that a thread copies at a time */

struct slot_params {
	const struct skv_kseq *seq;
	struct meta_table meta;
	uint32_t unit;
	uint32_t *slot;   /* [seq][kv head] slot of the new token */
	uint32_t *target; /* [seq][kv head][stride] free entries that others are moved to */
	uint32_t stride;
	uint32_t heads, layer, state;
	uint32_t row, scale; /* bytes of a token's K row, and bytes of its scale: 0 unless pages are fp8 */
};

/* ---- copies ---------------------------------------------------------------------------------- */

/* Location of an entry's K rows in its page. V rows follow at a distance of all K rows of the page. */
struct page_rows {
	uint8_t *page; /* NULL: the page is not resident */
	uint32_t first;
};

/* Returns the K rows of entry u, of `unit` tokens, for kv head h in table number `table` of the layer. */
DEVICE struct page_rows rows_at(const struct slot_params *c, const struct skv_kseq *s, uint32_t table, uint32_t unit,
                                uint32_t h, uint32_t u)
{
	const skv_pte page = s->table[(size_t)table * s->layer_stride + (unit == 1 ? u / SKV_PAGE_TOKENS : u)];
	const uint32_t first = h * SKV_PAGE_TOKENS + (unit == 1 ? u % SKV_PAGE_TOKENS : 0);
	return {skv_pte_resident(page) ? c->meta.pool + skv_pte_id(page) * c->meta.page_bytes : NULL, first};
}

/* Copies the fp8 scales of the rows of n entries, from entries from[] to entries to[]. */
__device__ static void copy_scales(const struct slot_params *c, const struct skv_kseq *s, uint32_t table, uint32_t unit,
                                   uint32_t h, const uint32_t *from, const uint32_t *to, uint32_t n)
{
	const uint32_t rows = c->heads * SKV_PAGE_TOKENS; /* number of K rows of a page */

	for (uint32_t e = threadIdx.x; e < n * 2 * unit; e += THREADS) {
		const uint32_t k = e / (2 * unit), x = e % (2 * unit);
		const size_t offset = (size_t)2 * rows * c->row + (x < unit ? 0 : rows) + x % unit;
		const struct page_rows source = rows_at(c, s, table, unit, h, from[k]);
		const struct page_rows target = rows_at(c, s, table, unit, h, to[k]);
		if (source.page && target.page)
			target.page[target.first + offset] = source.page[source.first + offset];
	}
}

/* Copies the K and V rows of n entries, from entries from[] to entries to[]. */
__device__ static void copy_rows(const struct slot_params *c, const struct skv_kseq *s, uint32_t table, uint32_t unit,
                                 uint32_t h, const uint32_t *from, const uint32_t *to, uint32_t n)
{
	constexpr int deep = 4; /* number of loads in flight */
	const uint32_t half = unit * c->row / PIECE, pieces = 2 * half; /* K, then V */
	const size_t v = (size_t)c->heads * SKV_PAGE_TOKENS * c->row;

	for (uint32_t first = threadIdx.x; first < n * pieces; first += deep * THREADS) {
		uint4 row[deep];
		uint4 *at[deep];
#pragma unroll
		for (int d = 0; d < deep; d++) {
			const uint32_t e = first + d * THREADS, k = e / pieces, x = e % pieces;
			const size_t offset = (x < half ? 0 : v) + x % half * PIECE;
			at[d] = NULL;
			if (e >= n * pieces)
				continue;
			const struct page_rows source = rows_at(c, s, table, unit, h, from[k]);
			const struct page_rows target = rows_at(c, s, table, unit, h, to[k]);
			if (!source.page || !target.page)
				continue;
			row[d] = *(const uint4 *)(source.page + source.first * c->row + offset);
			at[d] = (uint4 *)(target.page + target.first * c->row + offset);
		}
#pragma unroll
		for (int d = 0; d < deep; d++)
			if (at[d])
				*at[d] = row[d];
	}
	if (c->scale)
		copy_scales(c, s, table, unit, h, from, to, n);
}

/* Copies n entries. Entries that are pages have page bounds, one row of a state page each, which are copied, too. */
__device__ static void copy_entries(const struct slot_params *c, const struct skv_kseq *s, uint32_t h,
                                    const uint32_t *from, const uint32_t *to, uint32_t n)
{
	copy_rows(c, s, c->layer, c->unit, h, from, to, n);
	if (c->unit > 1)
		copy_rows(c, s, c->state, 1, h, from, to, n);
}

/* Returns a key that orders entries by position: the entry of the largest position has the largest key. */
DEVICE unsigned long long latest_key(uint32_t pos, uint32_t u)
{
	return (unsigned long long)pos << 32 | u;
}

/* ---- entries beyond the end -------------------------------------------------------------------- */

/*
 * Visits the entries of [from, end), ascending, that are retained as of the last commit, or, if `retained` is false,
 * those that are not retained. Calls use(before, k, u, meta) in the thread that has entry u, which is number k of its
 * tile; earlier tiles have `before` visited entries. Calls then(before, n) in all threads after a tile with n visited
 * entries. Returns the number of visited entries.
 */
template <class Use, class Then>
__device__ static uint32_t for_each_in_order(const struct slot_params *c, const struct skv_kseq *s, uint32_t h,
                                             uint32_t from, uint32_t end, bool retained, Use use, Then then)
{
	typedef cub::BlockScan<uint32_t, THREADS> scan;
	__shared__ typename scan::TempStorage smem;
	const uint32_t n_had = entries_of(c->unit, s->slot_end);
	uint32_t before = 0;

	for (uint32_t first = from & ~1u; first < end; first += TILE) {
		const uint32_t u = first + 2 * threadIdx.x;
		struct meta_pair p = {{SKV_SLOT_FREE, SKV_SLOT_FREE}, {0, 0}};
		uint32_t k, n;
		if (u < end && u < n_had)
			p = load_pair(meta_at(&c->meta, s, h, !s->set, u));
		const bool one = u >= from && u < end && (u < n_had && is_retained(p.pos[0])) == retained;
		const bool other = u + 1 < end && (u + 1 < n_had && is_retained(p.pos[1])) == retained;
		scan(smem).ExclusiveSum((uint32_t)one + other, k, n);
		if (one)
			use(before, k, u, skv_slot_meta{p.pos[0], p.value[0]});
		if (other)
			use(before, k + one, u + 1, skv_slot_meta{p.pos[1], p.value[1]});
		__syncthreads();
		then(before, n);
		before += n;
	}
	return before;
}

/*
 * Moves retained entries beyond the first `len` slots to free entries among these. Sets *found to the last free entry,
 * which stays free; or, if no page begins, to the key of the entry of the largest position.
 */
__device__ static void fill_free_entries(const struct slot_params *c, const struct skv_kseq *s, uint32_t h,
                                         bool begins_page, unsigned long long *found)
{
	__shared__ uint32_t source[TILE];
	const uint32_t units = entries_of(c->unit, s->len);
	uint32_t *target = c->target + ((size_t)blockIdx.y * c->heads + h) * c->stride;

	const uint32_t free = for_each_in_order(c, s, h, 0, units, false,
	                                        [=](uint32_t before, uint32_t k, uint32_t u, skv_slot_meta) {
		target[before + k] = u;
	}, [](uint32_t, uint32_t) {});
	for_each_in_order(c, s, h, units, entries_of(c->unit, s->slot_end), true,
	                  [=](uint32_t before, uint32_t k, uint32_t u, skv_slot_meta meta) {
		source[k] = u;
		*meta_at(&c->meta, s, h, s->set, target[before + k]) = meta;
		if (!begins_page)
			atomicMax(found, latest_key(meta.pos, target[before + k]));
	}, [=](uint32_t before, uint32_t n) {
		copy_entries(c, s, h, source, target + before, n);
		__syncthreads();
	});
	if (begins_page && threadIdx.x == 0)
		*found = target[free - 1];
}

/* ---- alloc_slots ----------------------------------------------------------------------------- */

/*
 * Copies the metadata of retained entries to the step's set. *found is 0 before. Sets *found to a free entry if a token
 * or page begins, else to the key of the entry of the largest position. *found is visible to all threads on return.
 */
__device__ static void carry_metadata(const struct slot_params *c, const struct skv_kseq *s, uint32_t h,
                                      bool begins_page, unsigned long long *found)
{
	const uint32_t units = entries_of(c->unit, s->len), n_had = min(units, entries_of(c->unit, s->slot_end));
	const uint32_t end = c->unit == 1 ? skv_pages_of(s->len) * SKV_PAGE_TOKENS : units;
	unsigned long long best = 0;

	for_each_pair<THREADS>(&c->meta, s, h, !s->set, 0, n_had, end, [&](uint32_t u, struct meta_pair p) {
#pragma unroll
		for (int x = 0; x < 2; x++) {
			const bool retained = is_retained(p.pos[x]);
			if (u + x < units && retained != begins_page)
				best = max(best, begins_page ? u + x : latest_key(p.pos[x], u + x));
			p.pos[x] = retained ? p.pos[x] : SKV_SLOT_FREE;
			p.value[x] = retained ? p.value[x] : 0;
		}
		store_pair(meta_at(&c->meta, s, h, s->set, u), &p);
	});
#pragma unroll
	for (int lane = 1; lane < 32; lane *= 2)
		best = max(best, __shfl_xor_sync(~0u, best, lane));
	if (threadIdx.x % 32 == 0)
		atomicMax(found, best);
	__syncthreads();
}

/* Carries metadata over and finds the new token's slot. The grid is kv heads (x) by sequences (y). */
__global__ void __launch_bounds__(THREADS, 2) alloc_slots_kernel(const __grid_constant__ struct slot_params c)
{
	__shared__ unsigned long long found;
	const struct skv_kseq *s = &c.seq[blockIdx.y];
	const uint32_t h = blockIdx.x, offset = c.unit == 1 ? 0 : (s->len - 1) % SKV_PAGE_TOKENS;
	const bool begins_page = s->n_q && offset == 0;

	if (threadIdx.x == 0)
		found = 0;
	__syncthreads();
	carry_metadata(&c, s, h, begins_page, &found);
	if (s->slot_end > s->len)
		fill_free_entries(&c, s, h, begins_page, &found);
	__syncthreads();
	if (threadIdx.x == 0 && s->n_q) {
		const uint32_t u = (uint32_t)found;
		if (begins_page)
			*meta_at(&c.meta, s, h, s->set, u) = skv_slot_meta{(s->n_tokens - 1) / c.unit, 0};
		c.slot[(size_t)blockIdx.y * c.heads + h] = u * c.unit + offset;
	}
}

static struct slot_params slot_params_of(const struct skv_shape *sh, const struct skv_batch *b, uint32_t unit,
                                         uint32_t *slot, const struct skv_workspace *work)
{
	const struct workspace_layout l = workspace_layout_of(sh, b->n, b->max_len, 1);
	struct slot_params c = {};

	c.seq = b->seq;
	c.meta = meta_table_of(sh);
	c.unit = unit;
	c.slot = slot;
	c.target = (uint32_t *)((uint8_t *)work->mem + l.topk_scores);
	c.stride = l.tokens;
	c.heads = sh->n_kv_heads;
	c.layer = sh->layer;
	c.state = sh->state;
	c.row = sh->head_dim * (uint32_t)skv_dtype_bytes(sh->dtype);
	c.scale = (uint32_t)skv_dtype_scale_bytes(sh->dtype);
	return c;
}

void skv_cuda_alloc_slots(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_slot_mapping *slots,
                          const struct skv_workspace *work)
{
	const struct slot_params c = slot_params_of(sh, b, slots->granularity, slots->slot, work);

	if (b->n > 0)
		launch_grid(alloc_slots_kernel, dim3(c.heads, b->n), THREADS, 0, stream_of(work), c);
}

/* ---- move_partial_page ----------------------------------------------------------------------- */

/*
 * Copies the last page and the partial page of a kv head to the two entries after those of `len`, and marks the
 * originals as free; the next alloc_slots() moves them back in order. The grid is kv heads (x) by sequences (y).
 */
__global__ void __launch_bounds__(THREADS, 2)
move_partial_page_kernel(const __grid_constant__ struct slot_params c)
{
	__shared__ unsigned long long found;
	__shared__ uint32_t from[2], to[2];
	const struct skv_kseq *s = &c.seq[blockIdx.y];
	const uint32_t h = blockIdx.x, units = entries_of(c.unit, s->len);

	if (threadIdx.x == 0)
		found = 0;
	__syncthreads();
	carry_metadata(&c, s, h, false, &found);
	const uint32_t filling = (uint32_t)found;
	const bool last = filling + 1 >= units;
	if (threadIdx.x < 2) {
		const uint32_t u = threadIdx.x ? filling : units - 1, up = units + threadIdx.x;
		from[threadIdx.x] = u;
		to[threadIdx.x] = up;
		const struct skv_slot_meta none = {SKV_SLOT_FREE, 0}, was = *meta_at(&c.meta, s, h, !s->set, u);
		*meta_at(&c.meta, s, h, s->set, up) = last ? none : was;
		if (!last)
			*meta_at(&c.meta, s, h, s->set, u) = none;
	}
	__syncthreads();
	if (!last)
		copy_entries(&c, s, h, from, to, 2);
}

void skv_cuda_move_partial_page(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_workspace *work)
{
	const struct slot_params c = slot_params_of(sh, b, SKV_PAGE_TOKENS, NULL, work);

	if (b->n > 0)
		launch_grid(move_partial_page_kernel, dim3(c.heads, b->n), THREADS, 0, stream_of(work), c);
}

/* ---- slots in order -------------------------------------------------------------------------- */

/*
 * Makes all entries active, and makes metadata for a prompt's tokens, whose slots ascend. The grid is kv heads (x) by
 * sequences (y).
 */
__global__ void __launch_bounds__(THREADS, 2)
alloc_prompt_slots_kernel(const __grid_constant__ struct slot_params c)
{
	const struct skv_kseq *s = &c.seq[blockIdx.y];
	const uint32_t h = blockIdx.x, units = entries_of(c.unit, s->len);
	const uint32_t before = entries_of(c.unit, s->len - s->n_q);
	const uint32_t end = c.unit == 1 ? skv_pages_of(s->len) * SKV_PAGE_TOKENS : units;
	const uint32_t ahead = (s->n_tokens - s->len) / c.unit; /* an entry's position minus its index */

	for_each_pair<THREADS>(&c.meta, s, h, !s->set, 0, before, end, [=](uint32_t u, struct meta_pair p) {
#pragma unroll
		for (int x = 0; x < 2; x++) {
			p.value[x] = fabsf(p.value[x]); /* makes the entry active */
			if (u + x >= before) {
				p.pos[x] = u + x < units ? u + x + ahead : SKV_SLOT_FREE;
				p.value[x] = 0;
			}
		}
		store_pair(meta_at(&c.meta, s, h, s->set, u), &p);
	});
	if (threadIdx.x == 0)
		c.slot[(size_t)blockIdx.y * c.heads + h] = s->len - 1;
}

void skv_cuda_alloc_prompt_slots(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_slot_mapping *slots,
                                 const struct skv_workspace *work)
{
	const struct slot_params c = slot_params_of(sh, b, slots->granularity, slots->slot, work);

	if (b->n > 0)
		launch_grid(alloc_prompt_slots_kernel, dim3(c.heads, b->n), THREADS, 0, stream_of(work), c);
}

/*
 * Makes the metadata of a sequence that has none: entry u has position u, or is free if its page is not resident. The
 * grid is kv heads (x) by sequences (y).
 */
__global__ void __launch_bounds__(THREADS, 2)
init_slot_meta_kernel(const __grid_constant__ struct slot_params c)
{
	const struct skv_kseq *s = &c.seq[blockIdx.y];
	const skv_pte *table = s->table + (size_t)c.layer * s->layer_stride;
	const uint32_t slots = s->slot_end, units = entries_of(c.unit, slots);
	const uint32_t end = c.unit == 1 ? skv_pages_of(slots) * SKV_PAGE_TOKENS : units;

	for_each_pair<THREADS>(&c.meta, s, blockIdx.x, !s->set, 0, 0, end, [=](uint32_t u, struct meta_pair p) {
#pragma unroll
		for (int x = 0; x < 2; x++) {
			const uint32_t page = c.unit == 1 ? (u + x) / SKV_PAGE_TOKENS : u + x;
			if (u + x < units && skv_pte_resident(table[page]))
				p.pos[x] = u + x;
		}
		store_pair(meta_at(&c.meta, s, blockIdx.x, !s->set, u), &p);
	});
}

void skv_cuda_init_slot_meta(const struct skv_shape *sh, const struct skv_batch *b, const struct skv_slot_mapping *slots,
                             const struct skv_workspace *work)
{
	const struct slot_params c = slot_params_of(sh, b, slots->granularity, slots->slot, work);

	if (b->n > 0)
		launch_grid(init_slot_meta_kernel, dim3(c.heads, b->n), THREADS, 0, stream_of(work), c);
}
