/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/cuda/prefill/tiles.cuh - rows of prompts: which of them a launch is about, and which tokens these see.
 *
 * A row is its token's position. Rows that attend densely are counted: all of a call, those of a prompt's tail,
 * those that a segment begins with (probes), those that speak for others. Other rows lie in tiles at multiples of
 * their size, whatever the call begins with, and so do tiles of tokens: what a row gets depends on its position
 * alone. Tiles of which a row sees nothing do not change a bit of it.
 */
#ifndef SKV_CUDA_PROMPT_CUH
#define SKV_CUDA_PROMPT_CUH

#include "kernels/cuda/runtime/convert.cuh"
#include "kernels/cuda/runtime/cuda.h"

/* Kinds of dense rows; a launch may be about several. */
enum { ROWS_ALL = 1, ROWS_TAIL = 2, ROWS_PROBES = 4, ROWS_SPEAKERS = 8 };

/* What a launch is told. */
struct prompt_call {
	const struct skv_kseq *seq;
	uint8_t *pool;
	size_t page_bytes;
	const void *q;
	void *out;
	/*
	 * [seq][speakers][n_heads][dim]: of rows that speak for others the dense output; then, with delta, the
	 * difference
	 */
	float *spoken;
	uint32_t speakers;
	uint32_t n_heads, group, layer, io_dtype;
	uint32_t heads; /* q heads of a block: those of a group, or 1 */
	uint32_t kinds; /* of dense rows; 0: the others */
	float scale;    /* for powers of two */
	/* the plan of the rows; without its lists, which follow */
	struct skv_sparse sparse;
	struct skv_tiles units, more; /* rows = 0: none */
	struct skv_shape shape;
};

/* The first position of the call. */
DEVICE uint32_t first_of(const struct skv_kseq *s)
{
	return s->len - s->n_q;
}

/*
 * Speakers of a call are counted by the rows that they speak for: number k is that of rows [i x, (i + 1) x), of
 * which the first k = 0 have the call's first row. It may be before the call, or not there.
 */
DEVICE uint32_t spoken_rows(const struct skv_sparse *sp)
{
	return sp->segment ? min(sp->gamma, sp->segment) : sp->gamma;
}
DEVICE uint32_t speaker_number(const struct skv_kseq *s, const struct skv_sparse *sp, uint32_t p)
{
	return p / spoken_rows(sp) - first_of(s) / spoken_rows(sp);
}
DEVICE uint32_t speaker(const struct skv_kseq *s, const struct skv_sparse *sp, uint32_t k)
{
	const uint32_t rows = spoken_rows(sp);
	return skv_speaker(s, sp, (first_of(s) / rows + k + 1) * rows - 1);
}
DEVICE bool speaks(const struct skv_kseq *s, const struct skv_sparse *sp, uint32_t p)
{
	return sp->gamma && speaker(s, sp, speaker_number(s, sp, p)) == p;
}

/* The first row of segment number k of a call; it may be before the call. */
DEVICE uint32_t segment_begin(const struct skv_kseq *s, const struct skv_sparse *sp, uint32_t k)
{
	const uint32_t at = (first_of(s) / sp->segment + k) * sp->segment;
	return max(at, s->prompt);
}

/*
 * Dense rows of a kind: how many there are, the j-th one's position, and where they end. They ascend; some are no
 * rows of the call.
 */
DEVICE uint32_t row_count(const struct prompt_call *c, const struct skv_kseq *s, uint32_t kind)
{
	const uint32_t f = first_of(s), last = s->len - 1, x = c->sparse.segment;
	if (kind == ROWS_SPEAKERS)
		return speaker_number(s, &c->sparse, last) + 1;
	if (kind == ROWS_PROBES)
		return (last / x - f / x + 1) * SKV_MINFERENCE_ROWS;
	return kind == ROWS_TAIL ? s->len - min(s->len, max(f, s->dense)) : s->n_q;
}
DEVICE uint32_t row_position(const struct prompt_call *c, const struct skv_kseq *s, uint32_t kind, uint32_t j)
{
	const uint32_t f = first_of(s);
	if (kind == ROWS_SPEAKERS)
		return speaker(s, &c->sparse, j);
	if (kind == ROWS_PROBES)
		return segment_begin(s, &c->sparse, j / SKV_MINFERENCE_ROWS) + j % SKV_MINFERENCE_ROWS;
	return (kind == ROWS_TAIL ? max(f, s->dense) : f) + j;
}
DEVICE uint32_t rows_end(const struct skv_kseq *s, uint32_t kind)
{
	return kind == ROWS_ALL || kind == ROWS_TAIL ? s->len : min(s->len, s->dense);
}

/* Is the j-th one, at position p, a row of the launch? */
DEVICE bool row_there(const struct prompt_call *c, const struct skv_kseq *s, uint32_t kind, uint32_t j,
                      uint32_t p)
{
	const struct skv_sparse *sp = &c->sparse;
	if (j >= row_count(c, s, kind) || p < first_of(s) || p >= rows_end(s, kind))
		return false;
	if (kind != ROWS_PROBES)
		return true;
	/* a probe that speaks is written with those that it speaks for: until then its query is needed */
	return p / sp->segment == segment_begin(s, sp, j / SKV_MINFERENCE_ROWS) / sp->segment && !speaks(s, sp, p);
}

/* The list of tile `tile` of the sequence, of those of the call, for kv head h and q head `head`. */
struct tile_list {
	const uint32_t *ids;
	uint32_t count, shift; /* units; log2 of their tokens */
};
DEVICE struct tile_list list_of(const struct prompt_call *c, const struct skv_tiles *l, uint32_t i, uint32_t tile,
                                uint32_t h,
                                uint32_t head)
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
 * What a block goes through for its rows, in tiles of so many tokens: sinks, units, more, and tokens from `from`
 * on. Where sinks reach up to there, all of it is one range from 0 on.
 */
struct reach {
	struct tile_list units, more;
	uint32_t sinks, n_units, n_more, tiles; /* tiles up to here: of sinks, then of units, of more, of all */
	uint32_t from;
};

/* Of dense rows that end before `end`. */
DEVICE struct reach reach_dense(uint32_t end, uint32_t size)
{
	struct reach r = {};
	r.tiles = (end + size - 1) / size;
	return r;
}

/* Of the rows [row, row + rows) of a tile; `tile` is its number in the call. */
DEVICE struct reach reach_sparse(const struct prompt_call *c, uint32_t i, uint32_t tile, uint32_t h,
                                 uint32_t head, uint32_t row,
                                 uint32_t rows, uint32_t size)
{
	const struct skv_sparse *sp = &c->sparse;
	const uint32_t sees = sp->by_tile ? row - row % sp->tile : row + 1, end = min(row + rows, c->seq[i].len);
	struct reach r = {};
	r.from = (sees > sp->window ? sees - sp->window : 0) / size * size;
	r.sinks = (sp->sinks + size - 1) / size;
	if (r.sinks * size > r.from)
		r.sinks = r.from = 0;
	r.units = list_of(c, &c->units, i, tile, h, head);
	r.more = list_of(c, &c->more, i, tile, h, head);
	r.n_units = r.sinks + ((r.units.count << r.units.shift) + size - 1) / size;
	r.n_more = r.n_units + (r.more.count + size - 1) / size;
	r.tiles = r.n_more + (end - r.from + size - 1) / size;
	return r;
}

/* Is tile j one of listed tokens, which all rows see? If not, where does it begin? */
DEVICE bool tile_listed(const struct reach *r, uint32_t j)
{
	return j >= r->sinks && j < r->n_more;
}
DEVICE uint32_t tile_first(const struct reach *r, uint32_t j, uint32_t size)
{
	return j < r->sinks ? j * size : r->from + (j - r->n_more) * size;
}

/* Token x of tile j, or 0xffffffff. */
DEVICE uint32_t tile_token(const struct reach *r, uint32_t j, uint32_t x, uint32_t size)
{
	if (!tile_listed(r, j))
		return tile_first(r, j, size) + x;
	const bool units = j < r->n_units;
	const struct tile_list *l = units ? &r->units : &r->more;
	const uint32_t at = (j - (units ? r->sinks : r->n_units)) * size + x, u = at >> l->shift;
	return u < l->count ? (l->ids[u] << l->shift) + (at & ((1u << l->shift) - 1)) : 0xffffffff;
}

/*
 * From where on row p, not a dense one, sees all tokens up to itself; before, it sees sinks alone (and what is
 * listed).
 */
DEVICE uint32_t row_low(const struct prompt_call *c, uint32_t p)
{
	const uint32_t sees = c->sparse.by_tile ? p - p % c->sparse.tile : p + 1;
	return sees > c->sparse.window ? sees - c->sparse.window : 0;
}

/* What a block of threads works on, one after the other: some rows, and the tiles of tokens that these see. */
struct work_item {
	const struct skv_kseq *s;
	uint32_t i, h, head; /* sequence, kv head, first q head */
	uint32_t kind;       /* of dense rows */
	uint32_t first;      /* of dense rows: the first (row, head) pair of their kind; else the first row */
	struct reach reach;
};

/* Where a block is: its part, and within it the rows. */
struct walk {
	uint32_t part, parts; /* of dense rows: every parts-th from there on */
	uint32_t row;
	bool begun;
};

/* Rows that a block takes together where they are not dense: a power of two, and of one tile. */
DEVICE uint32_t rows_together(const struct prompt_call *c, uint32_t rows)
{
	const uint32_t n = 1u << (31 - __clz(rows / c->heads));
	return min(n, c->sparse.tile);
}

/* Rows of a part: where differences are handed on from row to row, all that one row speaks for. */
DEVICE uint32_t part_rows(const struct prompt_call *c, uint32_t together)
{
	return c->sparse.delta ? max(spoken_rows(&c->sparse), together) : together;
}

/*
 * Which kind's is part number `part` of dense rows? Of each the longest come first: it counts the part back from
 * its end.
 */
template <int ROWS> __device__ static uint32_t dense_kind(const struct prompt_call *c, const struct skv_kseq *s,
                                                          uint32_t *part)
{
	for (uint32_t kind = ROWS_ALL; kind <= ROWS_SPEAKERS; kind *= 2) {
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

/* The next rows, dense. */
template <int ROWS, int N> __device__ static bool next_dense(const struct prompt_call *c, struct walk *w,
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
		x->reach = reach_dense(min(row_position(c, x->s, x->kind, last / c->group), end - 1) + 1, N);
		return true;
	}
}

/*
 * The blocks of one head come one after the other, so that those that run together read the same. But of the few
 * rows that are dense among others the longest come first, of whatever head, so that all are done at about the same
 * time.
 */
DEVICE struct walk walk_begin(const struct prompt_call *c, struct work_item *x)
{
	const bool by_head = c->kinds == 0 || c->kinds & ROWS_ALL;
	const uint32_t heads = c->kinds ? c->group : c->heads;
	struct walk w = {};
	x->i = blockIdx.z;
	x->s = &c->seq[x->i];
	x->head = (by_head ? blockIdx.y : blockIdx.x) * heads;
	x->h = x->head / c->group;
	w.part = by_head ? blockIdx.x : blockIdx.y;
	w.parts = by_head ? gridDim.x : gridDim.y;
	return w;
}

/* The next rows of this block's part. */
template <int ROWS, int N> __device__ static bool next_sparse(const struct prompt_call *c, struct walk *w,
                                                              struct work_item *x)
{
	const uint32_t f = first_of(x->s), together = rows_together(c, ROWS), rows = part_rows(c, together);
	const uint32_t from = (f / rows + w->part) * rows, end = min(from + rows, min(x->s->len, x->s->dense));
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
	x->reach = reach_sparse(c, x->i, w->row / c->sparse.tile - f / c->sparse.tile, x->h, x->head, w->row,
	                        together, N);
	return true;
}

template <bool SPARSE, int ROWS, int N> __device__ static bool next_item(const struct prompt_call *c,
                                                                         struct walk *w, struct work_item *x)
{
	if (SPARSE)
		return next_sparse<ROWS, N>(c, w, x);
	return next_dense<ROWS, N>(c, w, x);
}

/* K's row of a token, counted in rows of the pool; 0xffffffff if it is not there. */
template <int D>
__device__ static uint32_t token_row(const struct prompt_call *c, const struct work_item *x, uint32_t page_rows,
                                     uint32_t token)
{
	const skv_pte *table = x->s->table + (size_t)c->layer * x->s->layer_stride;
	const skv_pte entry = token < x->s->len ? table[token / SKV_PAGE_TOKENS] : 0;
	if (!skv_pte_resident(entry))
		return 0xffffffff;
	return skv_pte_id(entry) * page_rows + x->h * SKV_PAGE_TOKENS + token % SKV_PAGE_TOKENS;
}

/* A tile's tokens, as the producer found them. */
template <int N> struct found {
	uint32_t row[N], there[N / 32], whole;
};

/* A barrier of some warps. */
DEVICE void warps_sync(uint32_t id, uint32_t threads)
{
	asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

#endif
