/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/prefill/tiles.cuh - the rows of prompts that a launch computes, and the tokens that they attend to.
 *
 * A row is identified by its token's position. Dense rows are of several kinds, and the rows of each kind are numbered
 * separately: all rows of a call, rows of a prompt's tail, rows at the beginning of a segment (probes), representative
 * rows. Sparse rows lie in tiles at multiples of the tile size, wherever the call begins, and so do tiles of tokens: a
 * row's result depends on the row's position alone. A tile without any token that a row attends to does not change a
 * bit of the row's result.
 */
#ifndef SKV_CUDA_PREFILL_TILES_CUH
#define SKV_CUDA_PREFILL_TILES_CUH

#include "kernels/cuda/runtime/convert.cuh"
#include "kernels/cuda/runtime/cuda.h"
#include "kernels/cuda/runtime/softmax.cuh"

/* Kinds of dense rows. A launch may compute several kinds. */
enum { ROWS_ALL = 1, ROWS_TAIL = 2, ROWS_PROBES = 4, ROWS_REPRESENTATIVES = 8 };

/* Parameters of a launch. */
struct prefill_params {
	const struct skv_kseq *seq;
	uint8_t *pool;
	size_t page_bytes;
	const void *q;
	void *out;
	uint32_t q_stride, out_stride; /* elements from one row to the next, of q and of out */
	/*
	 * [seq][n_representatives][n_heads][dim]: the dense outputs of representative rows; if `delta` is set, they are
	 * later replaced by corrections.
	 */
	float *dense_outputs;
	uint32_t n_representatives;
	uint32_t n_heads, group, layer, io_dtype;
	uint32_t heads; /* q heads of a block: those of a GQA group, or 1 */
	uint32_t kinds; /* kinds of dense rows that the launch computes; 0: it computes sparse rows */
	struct score_scale scale;
	/* The plan by which sparse rows attend; its tile lists are copied to the following members. */
	struct skv_sparse sparse;
	struct skv_tile_lists lists, extra; /* rows = 0: no lists */
	struct skv_shape shape;
};

/* Returns the position of the call's first row. */
DEVICE uint32_t first_of(const struct skv_kseq *s)
{
	return s->len - s->n_q;
}

/*
 * Representative rows of a call are numbered by the rows that they represent: number k represents rows [i x, (i + 1) x)
 * for some i, with x = rows_per_representative(), and number 0 represents the call's first row. A representative row
 * may be before the call, or not exist.
 */
DEVICE uint32_t rows_per_representative(const struct skv_sparse *sp)
{
	return sp->segment ? min(sp->gamma, sp->segment) : sp->gamma;
}
DEVICE uint32_t representative_number(const struct skv_kseq *s, const struct skv_sparse *sp, uint32_t p)
{
	return p / rows_per_representative(sp) - first_of(s) / rows_per_representative(sp);
}
DEVICE uint32_t representative_row(const struct skv_kseq *s, const struct skv_sparse *sp, uint32_t k)
{
	const uint32_t rows = rows_per_representative(sp);
	return skv_correction_row(s, sp, (first_of(s) / rows + k + 1) * rows - 1);
}
DEVICE bool is_representative(const struct skv_kseq *s, const struct skv_sparse *sp, uint32_t p)
{
	return sp->gamma && representative_row(s, sp, representative_number(s, sp, p)) == p;
}

/* Returns the first row of the call's segment number k; the row may be before the call. */
DEVICE uint32_t segment_begin(const struct skv_kseq *s, const struct skv_sparse *sp, uint32_t k)
{
	const uint32_t at = (first_of(s) / sp->segment + k) * sp->segment;
	return max(at, s->prompt_start);
}

/*
 * Dense rows of a kind. row_count(): their number. row_position(): the position of the j-th row. rows_end(): the
 * position where they end. Positions never decrease; some positions are not rows of the call.
 */
DEVICE uint32_t row_count(const struct prefill_params *c, const struct skv_kseq *s, uint32_t kind)
{
	const uint32_t f = first_of(s), last = s->len - 1, x = c->sparse.segment;
	if (kind == ROWS_REPRESENTATIVES)
		return representative_number(s, &c->sparse, last) + 1;
	if (kind == ROWS_PROBES)
		return (last / x - f / x + 1) * SKV_MINFERENCE_ROWS;
	return kind == ROWS_TAIL ? s->len - min(s->len, max(f, s->dense_from)) : s->n_q;
}
DEVICE uint32_t row_position(const struct prefill_params *c, const struct skv_kseq *s, uint32_t kind, uint32_t j)
{
	const uint32_t f = first_of(s);
	if (kind == ROWS_REPRESENTATIVES)
		return representative_row(s, &c->sparse, j);
	if (kind == ROWS_PROBES) { /* a prompt's first segment may be shorter than its probes */
		const uint32_t x = c->sparse.segment, begin = segment_begin(s, &c->sparse, j / SKV_MINFERENCE_ROWS);
		return min(begin + j % SKV_MINFERENCE_ROWS, (begin / x + 1) * x);
	}
	return (kind == ROWS_TAIL ? max(f, s->dense_from) : f) + j;
}
DEVICE uint32_t rows_end(const struct skv_kseq *s, uint32_t kind)
{
	return kind == ROWS_ALL || kind == ROWS_TAIL ? s->len : min(s->len, s->dense_from);
}

/* Is the j-th row of a kind, at position p, part of the launch? */
DEVICE bool row_in_launch(const struct prefill_params *c, const struct skv_kseq *s, uint32_t kind, uint32_t j,
                          uint32_t p)
{
	const struct skv_sparse *sp = &c->sparse;
	if (j >= row_count(c, s, kind) || p < first_of(s) || p >= rows_end(s, kind))
		return false;
	/*
	 * A prompt's first segment may be shorter than its probes. Then its correction row lies in the next segment,
	 * and the place for the row's output belongs to another representative row there.
	 */
	if (kind == ROWS_REPRESENTATIVES)
		return representative_number(s, sp, p) == j;
	if (kind != ROWS_PROBES)
		return true;
	/*
	 * A probe that is also a representative row is written together with the rows that it represents, because its
	 * query is needed until then.
	 */
	return p / sp->segment == segment_begin(s, sp, j / SKV_MINFERENCE_ROWS) / sp->segment && !is_representative(s,
	                                                                                                      sp, p);
}

/* The list that kv head h and q head `head` read for tile `tile` of sequence i; the call's first tile is tile 0. */
struct tile_list {
	const uint32_t *ids;
	uint32_t count, shift; /* number of ids; log2 of the number of tokens of an id */
};
DEVICE struct tile_list list_of(const struct prefill_params *c, const struct skv_tile_lists *l, uint32_t i, uint32_t tile,
                                uint32_t h, uint32_t head)
{
	struct tile_list x = {};
	if (l->rows == 0)
		return x;
	const uint32_t row = l->rows != c->shape.n_kv_heads ? head : l->mapped ? l->map[h] : h;
	const size_t at = ((size_t)i * l->tiles + tile) * l->rows + row;
	x.ids = l->ids + at * l->stride;
	x.count = l->count[at];
	x.shift = 31 - __clz(l->unit);
	return x;
}

/*
 * The KV range of a block's rows, in tiles of `size` tokens: sinks, listed blocks (units), listed tokens (more), and
 * the window, which begins at `from`. If the sinks reach up to the window, all tokens from 0 on are one range.
 */
struct kv_range {
	struct tile_list units, more;
	uint32_t sinks, n_units, n_more, tiles; /* tiles up to the end of the sinks, of units, of more, and of all */
	uint32_t from;
};

/* Returns the KV range of dense rows, which attend to tokens before `end`. */
DEVICE struct kv_range dense_kv_range(uint32_t end, uint32_t size)
{
	struct kv_range r = {};
	r.tiles = (end + size - 1) / size;
	return r;
}

/* Returns the KV range of the sparse rows [row, row + rows) of a tile; `tile` is the tile's index in the call. */
DEVICE struct kv_range sparse_kv_range(const struct prefill_params *c, uint32_t i, uint32_t tile, uint32_t h,
                                       uint32_t head, uint32_t row, uint32_t rows, uint32_t size)
{
	const struct skv_sparse *sp = &c->sparse;
	const uint32_t sees = sp->by_tile ? row - row % sp->tile : row + 1, end = min(row + rows, c->seq[i].len);
	struct kv_range r = {};
	r.from = (sees > sp->window ? sees - sp->window : 0) / size * size;
	r.sinks = (sp->sinks + size - 1) / size;
	if (r.sinks * size > r.from)
		r.sinks = r.from = 0;
	r.units = list_of(c, &c->lists, i, tile, h, head);
	r.more = list_of(c, &c->extra, i, tile, h, head);
	r.n_units = r.sinks + ((r.units.count << r.units.shift) + size - 1) / size;
	r.n_more = r.n_units + (r.more.count + size - 1) / size;
	r.tiles = r.n_more + (end - r.from + size - 1) / size;
	return r;
}

/*
 * tile_listed(): does tile j consist of listed tokens, to which all rows attend? tile_first(): the first token of a
 * tile that is not listed.
 */
DEVICE bool tile_listed(const struct kv_range *r, uint32_t j)
{
	return j >= r->sinks && j < r->n_more;
}
DEVICE uint32_t tile_first(const struct kv_range *r, uint32_t j, uint32_t size)
{
	return j < r->sinks ? j * size : r->from + (j - r->n_more) * size;
}

/* Returns token x of tile j, or 0xffffffff if the tile has fewer tokens. */
DEVICE uint32_t tile_token(const struct kv_range *r, uint32_t j, uint32_t x, uint32_t size)
{
	if (!tile_listed(r, j))
		return tile_first(r, j, size) + x;
	const bool units = j < r->n_units;
	const struct tile_list *l = units ? &r->units : &r->more;
	const uint32_t at = (j - (units ? r->sinks : r->n_units)) * size + x, u = at >> l->shift;
	return u < l->count ? (l->ids[u] << l->shift) + (at & ((1u << l->shift) - 1)) : 0xffffffff;
}

/*
 * Returns the first position of sparse row p's window. Of the tokens before it, the row attends only to sinks and
 * listed ones.
 */
DEVICE uint32_t window_start(const struct prefill_params *c, uint32_t p)
{
	const uint32_t sees = c->sparse.by_tile ? p - p % c->sparse.tile : p + 1;
	return sees > c->sparse.window ? sees - c->sparse.window : 0;
}

/* A work item of a block: some rows, and the tiles of tokens that they attend to. */
struct work_item {
	const struct skv_kseq *s;
	uint32_t i, h, head; /* indices of the sequence, of the kv head, and of the first q head */
	uint32_t kind;       /* kind of dense rows */
	uint32_t first;      /* for dense rows: number of the first (row, head) pair of its kind; else the first row */
	struct kv_range kv_range;
};

/* A block's position in its work: the part of the work, and for sparse rows the row in this part. */
struct work_cursor {
	uint32_t part, parts; /* a block takes part `part` and, for dense rows, every parts-th one after it */
	uint32_t row;
	bool begun;
};

/* Number of sparse rows that a block processes together: a power of two, within one tile. */
DEVICE uint32_t rows_per_block(const struct prefill_params *c, uint32_t rows)
{
	const uint32_t n = 1u << (31 - __clz(rows / c->heads));
	return min(n, c->sparse.tile);
}

/*
 * Number of rows of a part. With `delta` these are all rows of one representative row, so that one block makes and uses
 * its correction.
 */
DEVICE uint32_t part_rows(const struct prefill_params *c, uint32_t together)
{
	return c->sparse.delta ? max(rows_per_representative(&c->sparse), together) : together;
}

/*
 * Returns the kind of dense rows of part number `part`; 0 if there is no such part. The longest rows of each kind come
 * first: *part becomes the part's number within the kind, counted from the kind's end.
 */
template <int ROWS> __device__ static uint32_t dense_kind(const struct prefill_params *c, const struct skv_kseq *s,
                                                          uint32_t *part)
{
	for (uint32_t kind = ROWS_ALL; kind <= ROWS_REPRESENTATIVES; kind *= 2) {
		if (!(c->kinds & kind))
			continue;
		const uint32_t blocks = (row_count(c, s, kind) * c->group + ROWS - 1) / ROWS;
		if (*part < blocks) {
			*part = blocks - 1 - *part;
			return kind;
		}
		*part -= blocks;
	}
	return 0;
}

/* Sets *x to the block's next dense rows; returns false if there are no more. */
template <int ROWS, int N> __device__ static bool next_dense(const struct prefill_params *c, struct work_cursor *w,
                                                             struct work_item *x)
{
	for (;;) {
		w->part = w->begun ? w->part + w->parts : w->part;
		w->begun = true;
		uint32_t part = w->part;
		x->kind = dense_kind<ROWS>(c, x->s, &part);
		if (!x->kind)
			return false;
		x->first = part * ROWS;
		const uint32_t last = min(x->first + ROWS, row_count(c, x->s,
		                                                     x->kind) * c->group) - 1, end = rows_end(x->s, x->kind);
		if (row_position(c, x->s, x->kind, x->first / c->group) >= end)
			continue;
		x->kv_range = dense_kv_range(min(row_position(c, x->s, x->kind, last / c->group), end - 1) + 1, N);
		return true;
	}
}

/*
 * Sets a block's first part. Blocks of one head are neighbours, so that blocks that run together read the same K and V.
 * But of the few dense rows among sparse ones the longest come first, for whichever head, so that all blocks end at
 * about the same time.
 */
DEVICE struct work_cursor begin_cursor(const struct prefill_params *c, struct work_item *x)
{
	const bool by_head = c->kinds == 0 || c->kinds & ROWS_ALL;
	const uint32_t heads = c->kinds ? c->group : c->heads;
	struct work_cursor w = {};
	x->i = blockIdx.z;
	x->s = &c->seq[x->i];
	x->head = (by_head ? blockIdx.y : blockIdx.x) * heads;
	x->h = x->head / c->group;
	w.part = by_head ? blockIdx.x : blockIdx.y;
	w.parts = by_head ? gridDim.x : gridDim.y;
	return w;
}

/* Sets *x to the next sparse rows of this block's part; returns false if there are no more. */
template <int ROWS, int N> __device__ static bool next_sparse(const struct prefill_params *c, struct work_cursor *w,
                                                              struct work_item *x)
{
	const uint32_t f = first_of(x->s), together = rows_per_block(c, ROWS), rows = part_rows(c, together);
	const uint32_t from = (f / rows + w->part) * rows, end = min(from + rows, min(x->s->len, x->s->dense_from));
	if (!w->begun) {
		const uint32_t at = max(from, f);
		w->row = at - at % together;
	} else {
		w->row += together;
	}
	w->begun = true;
	if (w->row >= end)
		return false;
	x->first = w->row;
	x->kv_range = sparse_kv_range(c, x->i, w->row / c->sparse.tile - f / c->sparse.tile, x->h, x->head, w->row,
	                              together, N);
	return true;
}

template <bool SPARSE, int ROWS, int N> __device__ static bool next_item(const struct prefill_params *c,
                                                                         struct work_cursor *w, struct work_item *x)
{
	if (SPARSE)
		return next_sparse<ROWS, N>(c, w, x);
	return next_dense<ROWS, N>(c, w, x);
}

/* Returns the index, among the rows of the pool, of a token's K row; 0xffffffff if the token is not resident. */
template <int D>
__device__ static uint32_t token_row(const struct prefill_params *c, const struct work_item *x, uint32_t page_rows,
                                     uint32_t token)
{
	const skv_pte *table = x->s->table + (size_t)c->layer * x->s->layer_stride;
	const skv_pte entry = token < x->s->len ? table[token / SKV_PAGE_TOKENS] : 0;
	if (!skv_pte_resident(entry))
		return 0xffffffff;
	return skv_pte_id(entry) * page_rows + x->h * SKV_PAGE_TOKENS + token % SKV_PAGE_TOKENS;
}

/* The located tokens of a tile: their rows, and masks of the resident ones. */
template <int N> struct located_tile {
	uint32_t row[N], resident[N / 32];
};

#endif
