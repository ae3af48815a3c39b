/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/prefill/sparse.c - sparse prefill: causal attention of a prompt's rows to a part of the tokens before
 * them, with corrections (Delta Attention).
 *
 * A work item of sparse rows is (sequence, some rows of a tile, kv head), with a q head in place of the kv head if each
 * q head has lists of its own. Sparse rows attend first to sinks and window, in the same blocks of BLOCK tokens as
 * dense rows, then to the tokens of the tile's lists, gathered into blocks of BLOCK in the order of the lists. So the
 * bits of a row's output depend only on the row's position and the lists.
 *
 * Correction rows are dense rows whose difference, dense - sparse, later rows add to their outputs. There are three
 * passes. In the first pass, correction rows attend as if they were sparse, and their outputs are saved. In the second
 * pass, dense rows attend and write their outputs; the saved output of a correction row becomes the difference. In the
 * third pass, all other rows attend, and add the difference of their correction row to the output. A row's output is
 * written only in the last pass that reads the row's q, so out may be the same buffer as q.
 */
#include "kernels/host/prefill/attend.h"
#include "kernels/host/prefill/prefill.h"
#include "kernels/host/prefill/tiles.h"

struct sparse_params {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_sparse *sp;
	const float *q;
	float *out;
	uint32_t heads;     /* number of q heads of a work item of sparse rows */
	uint32_t rows;      /* number of query rows of a work item in the current pass */
	uint32_t parts;     /* number of work items of a tile, for one list */
	/* [seq + 1]: number of the pass's work items before those of sequence i, for one list or kv head */
	uint32_t *first;
	bool correction;    /* is the current pass that of correction rows? */
	uint32_t *dense;    /* [row of the batch]: positions of dense rows; those of sequence i begin at row_of[i] */
	uint32_t *n_dense;  /* [seq]: number of dense rows */
	uint32_t *row_of;   /* [seq]: number of rows of the batch before those of the sequence */
	uint32_t span;      /* an aligned range of this many tokens has at most one correction row */
	uint32_t correction_stride;
	/* [seq][correction_stride][n_heads][head_dim]: differences, dense - sparse, of correction rows */
	float *difference;
	struct per_thread space;
};

/* ---- correction rows --------------------------------------------------------------------------- */

/* Is p a correction row: does the sparse row after it add its difference? */
static bool corrects(const struct sparse_params *c, const struct skv_kseq *s, uint32_t p)
{
	return c->sp->delta && p + 1 < s->dense_from && skv_correction_row(s, c->sp, p + 1) == p;
}

/* Returns the difference of correction row p, a row of this call, from q head `head` on. */
static float *difference_of(const struct sparse_params *c, uint32_t i, uint32_t p, uint32_t head)
{
	const uint32_t number = p / c->span - call_start(&c->batch->seq[i]) / c->span;

	return c->difference + (((size_t)i * c->correction_stride + number) * c->sh->n_heads + head) * c->sh->head_dim;
}

/* Returns the difference that row p adds, of a correction row of this call or of an earlier call. */
static const float *difference_for(const struct sparse_params *c, uint32_t i, uint32_t p, uint32_t head)
{
	const struct skv_kseq *s = &c->batch->seq[i];
	const uint32_t at = skv_correction_row(s, c->sp, p);

	if (at >= call_start(s))
		return difference_of(c, i, at, head);
	return skv_saved_at(c->sh, s, c->sp, s->set ^ 1, head * c->sh->head_dim * sizeof(float));
}

/* ---- listed tokens --------------------------------------------------------------------------- */

/* An iterator over the tokens of a tile's list. */
struct reader {
	uint32_t unit, n;
	const uint32_t *ids; /* [n]: ids of the list's blocks */
	uint32_t at, in;     /* position of the next token: token number `in` of block ids[at] */
};

static struct reader read_list(const struct skv_tile_lists *t, uint32_t i, uint32_t j, const struct rows *r)
{
	const uint32_t row = t->rows != r->sh->n_kv_heads ? r->head : t->mapped ? t->map[r->h] : r->h;
	const size_t list = list_of(t, i, j, row);

	return (struct reader){.unit = t->unit, .n = t->count[list], .ids = t->ids + list * t->stride};
}

/*
 * Appends the addresses of the K rows of the list's next resident tokens to the `have` addresses in k, up to BLOCK in
 * all. Returns the new number.
 */
static uint32_t read_rows(struct reader *l, const struct rows *r, const uint8_t *k[BLOCK], uint32_t have)
{
	const skv_pte *table = skv_layer_table(r->sh, r->s);

	while (have < BLOCK && l->at < l->n) {
		const uint32_t token = l->ids[l->at] * l->unit + l->in;
		const skv_pte e = table[token / SKV_PAGE_TOKENS];
		if (skv_pte_resident(e))
			k[have++] = skv_key_row(r->sh, e, r->h, token);
		l->in = l->in + 1 == l->unit ? 0 : l->in + 1;
		l->at += l->in == 0;
	}
	return have;
}

/* Converts BLOCK rows to fp32: K into k[dim][BLOCK], transposed, and V into v[BLOCK][dim]. */
INLINE void widen_rows(uint32_t dtype, const struct skv_shape *sh, const uint8_t *const from[BLOCK], float *k, float *v)
{
	const uint32_t dim = sh->head_dim, size = (uint32_t)skv_dtype_bytes(dtype);
	float k_unit[BLOCK], v_unit[BLOCK];

	for (uint32_t t = 0; dtype == SKV_FP8 && t < BLOCK; t++) {
		k_unit[t] = skv_row_unit(sh, from[t]);
		v_unit[t] = skv_row_unit(sh, from[t] + skv_v_offset(sh));
	}
	for (uint32_t t = 0; t < BLOCK; t += VL)
		for (uint32_t d = 0; d < dim; d += VL) {
			vf x[VL];
			UNROLL
			for (int i = 0; i < VL; i++) {
				vf y = v_load(dtype, from[t + i] + skv_v_offset(sh) + d * size);
				x[i] = v_load(dtype, from[t + i] + d * size);
				if (dtype == SKV_FP8) {
					x[i] *= k_unit[t + i];
					y *= v_unit[t + i];
				}
				v_storef(v + (t + i) * dim + d, y);
			}
			v_transpose(x);
			UNROLL
			for (int i = 0; i < VL; i++)
				v_storef(k + (d + i) * BLOCK + t, x[i]);
		}
}

static void attend_listed(const struct rows *r, const struct buffers *b, struct reader *lists, struct reader *extra)
{
	const uint32_t m = r->n * r->heads;
	const uint8_t *k[BLOCK];

	for (;;) {
		const uint32_t n = read_rows(extra, r, k, read_rows(lists, r, k, 0));
		struct span see[VL];
		if (n == 0)
			return;
		for (uint32_t t = n; t < BLOCK; t++)
			k[t] = k[0]; /* fills the block with a valid row, whose scores are masked */
		for (uint32_t i = 0; i < STRIP; i++)
			see[i] = (struct span){.end = n};
		BY_DTYPE(r->sh->dtype, widen_rows, r->sh, k, b->k, b->v);
		for (uint32_t m0 = 0; m0 < m; m0 += STRIP)
			attend_strip(r->sh, b, m0, skv_min(STRIP, m - m0), see, (1u << BLOCK_PAGES) - 1);
	}
}

/* ---- items ----------------------------------------------------------------------------------- */

static struct buffers buffers_of(const struct sparse_params *c, int thread)
{
	struct carve at = thread_begin(&c->space, thread);
	struct buffers b;

	buffers_carve(&at, c->sh->head_dim, &b);
	return b;
}

/* Picks the rows that attend in the current pass among rows [p, end) of the tile that begins at x. */
static void pick_rows(const struct sparse_params *c, struct rows *r, uint32_t x, uint32_t p, uint32_t end)
{
	const struct skv_sparse *sp = c->sp;

	for (; p < end; p++) {
		const uint32_t back = sp->by_tile ? x : p + 1;
		if (c->correction ? !corrects(c, r->s, p) : skv_row_dense(r->s, sp, p))
			continue;
		r->pos[r->n] = p;
		r->from[r->n++] = back > sp->window ? back - sp->window : 0;
	}
}

/* The rows attend to the blocks of the sinks and of the window, then to the tokens of the lists. */
static void attend_sparse(const struct sparse_params *c, const struct rows *r, const struct buffers *b, uint32_t i,
                          uint32_t j)
{
	const struct skv_sparse *sp = c->sp;
	const uint32_t end = r->pos[r->n - 1] + 1, sinks = (skv_min(sp->sinks, end) + BLOCK - 1) / BLOCK * BLOCK;
	struct reader lists = {0}, extra = {0};

	attend_blocks(r, b, 0, skv_min(sinks, end));
	attend_blocks(r, b, skv_max(sinks, r->from[0] / BLOCK * BLOCK), end);
	if (sp->lists)
		lists = read_list(sp->lists, i, j, r);
	if (sp->extra)
		extra = read_list(sp->extra, i, j, r);
	attend_listed(r, b, &lists, &extra);
}

static void sparse_item(void *ctx, uint32_t item, int thread)
{
	const struct sparse_params *c = ctx;
	const uint32_t dim = c->sh->head_dim, lists = c->sh->n_heads / c->heads, tile = c->sp->tile;
	const uint32_t i = skv_range_of(c->first, c->batch->n, item / lists), part = item / lists - c->first[i];
	const struct skv_kseq *s = &c->batch->seq[i];
	const uint32_t j = part / c->parts, x = (call_start(s) / tile + j) * tile, p = x + part % c->parts * c->rows;
	struct rows r = {.sh = c->sh, .s = s, .head = item % lists * c->heads, .heads = c->heads,
	                 .sinks = c->sp->sinks};
	const struct buffers b = buffers_of(c, thread);

	r.h = r.head / (c->sh->n_heads / c->sh->n_kv_heads);
	pick_rows(c, &r, x, skv_max(p, call_start(s)), skv_min(skv_min(p + c->rows, x + tile), s->len));
	if (r.n == 0)
		return;
	rows_begin(&r, &b, c->q);
	attend_sparse(c, &r, &b, i, j);
	rows_end(&r, &b, c->correction ? NULL : c->sh->lse);
	for (uint32_t m = 0; m < r.n * r.heads; m++) {
		const uint32_t at = r.pos[m / r.heads], head = r.head + m % r.heads;
		float *to = c->correction ? difference_of(c, i, at, head) : c->out + row_at(&r, m / r.heads) + m % r.heads * dim;
		const float *add = c->sp->delta && !c->correction ? difference_for(c, i, at, head) : NULL;
		for (uint32_t d = 0; d < dim; d += VL)
			v_storef(to + d, attended(&b, m, dim, d) + (add ? v_loadf(add + d) : (vf){0}));
	}
}

static void dense_item(void *ctx, uint32_t item, int thread)
{
	const struct sparse_params *c = ctx;
	const uint32_t dim = c->sh->head_dim, block = item / c->sh->n_kv_heads, i = skv_range_of(c->first,
			c->batch->n, block);
	const struct skv_kseq *s = &c->batch->seq[i];
	/* the last rows of a sequence cost most, so they are processed first */
	const uint32_t row0 = (c->first[i + 1] - 1 - block) * c->rows;
	struct rows r = {.sh = c->sh, .s = s, .h = item % c->sh->n_kv_heads, .heads = c->sh->n_heads / c->sh->n_kv_heads,
	                 .n = skv_min(c->rows, c->n_dense[i] - row0)};
	const struct buffers b = buffers_of(c, thread);

	r.head = r.h * r.heads;
	memcpy(r.pos, c->dense + c->row_of[i] + row0, r.n * sizeof *r.pos);
	rows_begin(&r, &b, c->q);
	attend_blocks(&r, &b, 0, r.pos[r.n - 1] + 1);
	rows_end(&r, &b, c->sh->lse);
	for (uint32_t m = 0; m < r.n * r.heads; m++) {
		const uint32_t at = r.pos[m / r.heads];
		float *to = c->out + row_at(&r, m / r.heads) + m % r.heads * dim;
		float *sparse = corrects(c, s, at) ? difference_of(c, i, at, r.head + m % r.heads) : NULL;
		for (uint32_t d = 0; d < dim; d += VL) {
			const vf x = attended(&b, m, dim, d);
			v_storef(to + d, x);
			if (sparse)
				v_storef(sparse + d, x - v_loadf(sparse + d));
		}
	}
}

/* ---- a call ---------------------------------------------------------------------------------- */

/* Saves the difference that the prompt's next row adds, for the next call, if its correction row was computed. */
static void save_difference(const struct sparse_params *c, uint32_t i)
{
	const struct skv_kseq *s = &c->batch->seq[i];
	const uint32_t dim = c->sh->head_dim;

	if (!s->prompt_continues || !c->sp->delta || s->len >= s->dense_from ||
	    skv_correction_row(s, c->sp, s->len) >= s->len)
		return;
	for (uint32_t head = 0; head < c->sh->n_heads; head++)
		memcpy(skv_saved_at(c->sh, s, c->sp, s->set, head * dim * sizeof(float)), difference_for(c, i, s->len, head),
		       dim * sizeof(float));
}

static void run_sparse(struct sparse_params *c, int threads, bool correction)
{
	const uint32_t lists = c->sh->n_heads / c->heads;

	c->correction = correction;
	c->rows = skv_min(skv_max(1, M_MAX / c->heads), c->sp->tile);
	c->parts = (c->sp->tile + c->rows - 1) / c->rows;
	c->first[0] = 0;
	for (uint32_t i = 0; i < c->batch->n; i++)
		c->first[i + 1] = c->first[i] + tiles_of(&c->batch->seq[i], c->sp->tile) * c->parts;
	skv_run(threads, c->first[c->batch->n] * lists, sparse_item, c);
}

static void run_dense(struct sparse_params *c, int threads)
{
	uint32_t rows = 0;

	for (uint32_t i = 0; i < c->batch->n; i++) {
		const struct skv_kseq *s = &c->batch->seq[i];
		c->row_of[i] = rows;
		c->n_dense[i] = 0;
		for (uint32_t p = call_start(s); p < s->len; p++)
			if (skv_row_dense(s, c->sp, p))
				c->dense[rows + c->n_dense[i]++] = p;
		rows += s->n_q;
	}
	c->rows = divide_rows(c->sh, c->n_dense, c->batch->n, threads, c->first);
	skv_run(threads, c->first[c->batch->n] * c->sh->n_kv_heads, dense_item, c);
}

/* Adds the bytes of a piece of workspace to *total and, unless `at` is NULL, takes the piece from the workspace. */
static void *piece(struct carve *at, size_t *total, size_t bytes)
{
	*total += carve_size(bytes);
	return at ? carve(at, bytes) : NULL;
}

/*
 * Takes all buffers of a call from the workspace, unless `at` is NULL; returns their bytes. Does not read the sequences
 * of `bounds`.
 */
static size_t call_carve(struct carve *at, struct sparse_params *c, const struct skv_batch *bounds, int threads)
{
	const struct skv_sparse *sp = c->sp;
	const uint32_t n = bounds->n;
	const size_t width = (size_t)c->sh->n_heads * c->sh->head_dim;
	struct buffers b;
	size_t total = 0;

	c->span = sp->segment && sp->segment < sp->gamma ? sp->segment : sp->gamma;
	c->correction_stride = sp->delta ? skv_max_tiles(bounds->max_q, c->span) : 0;
	c->space.stride = buffers_carve(NULL, c->sh->head_dim, &b);
	c->first = piece(at, &total, (n + 1) * sizeof *c->first);
	c->n_dense = piece(at, &total, n * sizeof *c->n_dense);
	c->row_of = piece(at, &total, n * sizeof *c->row_of);
	c->dense = piece(at, &total, (size_t)n * bounds->max_q * sizeof *c->dense);
	c->difference = piece(at, &total, n * c->correction_stride * width * sizeof *c->difference);
	c->space.mem = piece(at, &total, (size_t)threads * c->space.stride);
	return total;
}

size_t ISA(prefill_sparse_bytes)(const struct skv_shape *sh, const struct skv_batch *bounds, const struct skv_sparse *sp,
                         int threads)
{
	struct sparse_params c = {.sh = sh, .sp = sp};
	const size_t bytes[] = {
		call_carve(NULL, &c, bounds, threads), /* save_queries() takes no workspace */
		sp->by_tile ? ISA(kascade_bytes)(sh, bounds, threads) : 0,
		sp->by_tile ? ISA(hip_bytes)(bounds, threads) : 0,
		sp->segment ? ISA(minference_bytes)(sh, bounds, threads) : 0,
	};
	size_t most = 0;

	for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++)
		most = bytes[i] > most ? bytes[i] : most;
	return most;
}

void ISA(prefill_sparse)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q, void *out,
                         const struct skv_sparse *sp, const struct skv_workspace *work)
{
	const uint32_t group = sh->n_heads / sh->n_kv_heads;
	const struct skv_tile_lists *lists = sp->lists ? sp->lists : sp->extra;
	const bool apart = lists && lists->rows != sh->n_kv_heads; /* does each q head have lists of its own? */
	struct sparse_params c = {.sh = sh, .batch = batch, .sp = sp, .q = q, .out = out, .heads = apart ? 1 : group};
	struct carve at = carve_begin(work);

	call_carve(&at, &c, batch, work->threads);
	if (sp->delta)
		run_sparse(&c, work->threads, true);
	run_dense(&c, work->threads);
	run_sparse(&c, work->threads, false);
	for (uint32_t i = 0; i < batch->n; i++)
		save_difference(&c, i);
}
