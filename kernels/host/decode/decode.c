/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/decode/decode.c - attention of one query row a sequence.
 *
 * A call is cut into chunks: up to CHUNK tokens of what a sequence (or one kv head or q head of it, where
 * these have lists of their own) attends to. Every chunk leaves a partial result for its heads in the
 * scratch; merging a head's partials in the order of its chunks gives the output. The cut depends on
 * the sequence's own selection and nothing else, so the bits of the result do not depend on the number
 * of threads or on the company in the batch. A thread takes several chunks in a row where there are
 * many, so that prefetching need not start anew with each; one long sequence still keeps all threads busy.
 *
 * The ways to decode differ only in gather(), which lists the tokens of a chunk.
 *
 * Where a dense layer keeps older tokens in few bits, a tile of these is widened to fp32 when its turn comes. As blocks are
 * whole tiles and come first, a tile is all in few bits or all rows.
 */
#include "kernels/host/runtime/host.h"
#include "kernels/host/decode/decode.h"
#include "kernels/host/compress/quant.h"
#include "kernels/host/decode/tile.h"
#include <math.h>

#define LOG2E 1.44269504088896340736f
#define LN2 0.693147180559945309417f

/* ---- which tokens ---------------------------------------------------------------------------- */

/* Pages of a window: those with sinks, then those from the window's start on that are not among them. */
static uint32_t window_gap(const struct decode *d, uint32_t i, uint32_t *ret_head)
{
	uint32_t head = skv_pages_of(skv_min(d->window->sinks, d->seq[i].len));
	*ret_head = head;
	return skv_max(head, d->start[i] / SKV_PAGE_TOKENS) - head;
}

/* An owner's list, in the order in which they lie. */
static size_t list_of(const struct decode *d, uint32_t owner)
{
	return owner - owner % d->splits + skv_list_row(d->list, owner % d->splits);
}

/* Units (pages, or tokens for a token list) that an owner looks at. */
static uint32_t units_of(const struct decode *d, uint32_t owner)
{
	uint32_t i = owner / d->splits, head, pages = skv_pages_of(d->seq[i].len);
	switch (d->what) {
	case DECODE_WINDOW:
		return pages - window_gap(d, i, &head);
	case DECODE_PAGES:
	case DECODE_TOKENS:
		return d->list->count[list_of(d, owner)];
	default:
		return pages;
	}
}

/* Tokens of a page, the last one listed or not. Where one of a list is being filled, that is the last one. */
static uint32_t tokens_of(const struct decode *d, const struct skv_kseq *s, uint32_t page, bool last)
{
	if (d->list && d->list->filling)
		return last ? (s->len - 1) % SKV_PAGE_TOKENS + 1 : SKV_PAGE_TOKENS;
	return skv_min(SKV_PAGE_TOKENS, s->len - page * SKV_PAGE_TOKENS);
}

/* Tokens of a sequence that are in few bits. */
static uint32_t low_tokens(const struct decode *d, const struct skv_kseq *s)
{
	return d->sh->code && d->sh->code->kind == SKV_COMPRESS_QUANT ? s->coded : 0;
}

/* The tokens of page `page` that may be looked at, as K row addresses of kv head 0, NULL in few bits; returns how many. */
static uint32_t gather_page(const struct decode *d, uint32_t i, const skv_pte *table, uint32_t page, bool last,
                            const uint8_t **row)
{
	const struct skv_kseq *s = &d->seq[i];
	uint32_t first = page * SKV_PAGE_TOKENS, n = 0;
	if (first < low_tokens(d, s)) {
		for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t++)
			row[t] = NULL;
		return SKV_PAGE_TOKENS;
	}
	if (first >= s->len || !skv_pte_resident(table[page]))
		return 0;
	const uint8_t *k = skv_page_k(d->sh, table[page], 0);
	uint32_t end = tokens_of(d, s, page, last);
	if (d->what != DECODE_WINDOW) {
		UNROLL
		for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t++)
			row[t] = k + t * d->row_bytes;
		return end;
	}
	for (uint32_t t = 0; t < end; t++) {
		row[n] = k + t * d->row_bytes;
		n += first + t < d->window->sinks || first + t >= d->start[i];
	}
	return n;
}

/* What gather() is about to read of an owner's list and table: it was last touched a whole step ago. */
static void prefetch_lists(const struct decode *d, uint32_t owner, uint32_t chunk, uint32_t chunks)
{
	const skv_pte *table = skv_layer_table(d->sh, &d->seq[owner / d->splits]);
	uint32_t from, to, end, units = units_of(d, owner);
	decode_chunk(d, owner, chunk, units, &from, &end);
	decode_chunk(d, owner, chunk + chunks - 1, units, &end, &to);
	if (d->list) {
		const uint32_t *ids = d->list->ids + list_of(d, owner) * d->list->stride;
		for (uint32_t u = from; u < to; u += 16)
			prefetch_line((const uint8_t *)(ids + u));
		if (d->what == DECODE_TOKENS) {
			from = ids[from] / SKV_PAGE_TOKENS;
			to = ids[to - 1] / SKV_PAGE_TOKENS + 1;
		} else {
			from = ids[from];
			to = ids[to - 1] + 1;
		}
	}
	for (uint32_t page = from; page < to; page += 16)
		prefetch_line((const uint8_t *)(table + page));
}

/* The same for a chunk; row has space for CHUNK. */
static uint32_t gather(const struct decode *d, uint32_t owner, uint32_t chunk, const uint8_t **row)
{
	const uint32_t i = owner / d->splits;
	const struct skv_kseq *s = &d->seq[i];
	const skv_pte *table = skv_layer_table(d->sh, s);
	const uint32_t *ids = d->list ? d->list->ids + list_of(d, owner) * d->list->stride : NULL;
	const uint32_t units = units_of(d, owner);
	uint32_t from, to, n = 0, head = 0, gap = 0;

	decode_chunk(d, owner, chunk, units, &from, &to);
	if (d->what == DECODE_TOKENS) {
		for (uint32_t u = from; u < to; u++) {
			uint32_t t = ids[u];
			if (t >= s->len || !skv_pte_resident(table[t / SKV_PAGE_TOKENS]))
				continue;
			row[n++] = skv_page_k(d->sh, table[t / SKV_PAGE_TOKENS], 0) +
			           t % SKV_PAGE_TOKENS * d->row_bytes;
		}
		return n;
	}
	if (d->what == DECODE_WINDOW)
		gap = window_gap(d, i, &head);
	for (uint32_t u = from; u < to; u++) {
		uint32_t page = ids ? ids[u] : d->what == DECODE_WINDOW && u >= head ? u + gap : u;
		n += gather_page(d, i, table, page, u + 1 == units, row + n);
	}
	return n;
}

/* ---- partial results ------------------------------------------------------------------------- */

/* What a chunk leaves behind for each of its q heads (numbered from its first kv head on). */
struct partial {
	float *acc; /* [heads][head_dim]: Σ 2^(score - max) v */
	float *max; /* [heads]: of the scores, in log2; -INFINITY when there was no token */
	float *sum; /* [heads]: Σ 2^(score - max) */
};

static size_t part_floats(const struct skv_shape *sh, uint32_t heads)
{
	return ((size_t)heads * (sh->head_dim + 2) + 15) & ~(size_t)15;
}

static struct partial partial_of(const struct decode *d, uint32_t item)
{
	const uint32_t heads = d->span * d->group;
	float *p = d->part + item * part_floats(d->sh, heads), *tail = p + (size_t)heads * d->sh->head_dim;
	return (struct partial){.acc = p, .max = tail, .sum = tail + heads};
}

/* ---- a run of chunks ------------------------------------------------------------------------- */

#define ROWS UINT32_MAX

/* The tokens of a run: each chunk's begin at a multiple of the tile, the gaps repeat a valid row. */
struct rows {
	const uint8_t *row[CHUNK_RUN * CHUNK];
	uint32_t low[CHUNK_RUN * CHUNK / SKV_PAGE_TOKENS]; /* of each tile: its first token if it is in few bits, or ROWS */
	uint32_t n[CHUNK_RUN]; /* tokens of a chunk */
	uint32_t end;          /* entries in row */
};

/* A place in the order in which strips are read: of each tile all kv heads' K, then all their V. */
struct place {
	uint32_t t, h;
	bool v;
};

static void place_next(const struct decode *d, const struct rows *r, struct place *p)
{
	if (++p->h < d->span)
		return;
	p->h = 0;
	p->v = !p->v && !d->keys;
	if (!p->v && p->t + d->tile < r->end)
		p->t += d->tile;
}

/* What a thread needs for a run. */
struct walk {
	const struct decode *d;
	const struct rows *r;
	struct place ahead; /* what to prefetch next */
	size_t k_at;        /* of the owner's first kv head */
	size_t head_bytes, v_offset;
	float scale;
	const float *q; /* of the owner's first q head */
	struct softmax state[SKV_MAX_HEADS]; /* [kv head][tuple] */
	float weight[SKV_MAX_HEADS * TILE_MAX] __attribute__((aligned(64)));
	const struct skv_kseq *s;
	struct low low; /* if tiles are in few bits */
	const uint8_t *wide_row[TILE_MAX];
	float wide[TILE_MAX * SKV_MAX_HEAD_DIM]; /* one such strip */
};

static size_t strip_at(const struct walk *w, uint32_t h, bool v)
{
	return w->k_at + h * w->head_bytes + (v ? w->v_offset : 0);
}

/* A strip in few bits as rows of fp32. */
static void widen(struct walk *w, uint32_t token, uint32_t n, uint32_t h, bool v)
{
	const uint8_t *record = low_record(&w->low, w->s, token, h);

	if (v)
		low_values(&w->low, record, token % SKV_LOW_BLOCK, n, w->wide);
	else
		low_keys(&w->low, record, token % SKV_LOW_BLOCK, n, w->wide);
	for (uint32_t t = 0; t < TILE_MAX; t++)
		w->wide_row[t] = (const uint8_t *)(w->wide + t * w->d->sh->head_dim);
}

static void prefetch(const uint8_t *from, uint32_t bytes)
{
	for (uint32_t b = 0; b < bytes; b += 64)
		prefetch_line(from + b);
}

/* All of the strip at a place. */
static void prefetch_strip(const struct walk *w, const struct place *p)
{
	const struct decode *d = w->d;
	const uint32_t token = w->r->low[p->t / d->tile];

	if (token == ROWS) {
		for (uint32_t t = 0; t < d->tile; t++)
			prefetch(w->r->row[p->t + t] + strip_at(w, p->h, p->v), d->row_bytes);
		return;
	}
	const uint8_t *record = low_record(&w->low, w->s, token, p->h);
	if (p->v)
		prefetch(record + w->low.at.v_shared, w->low.at.bytes - w->low.at.v_shared);
	else
		prefetch(record, w->low.at.v_shared);
}

/*
 * One strip of n tokens for all q heads of its group. raw, if not NULL, gets the scores, those of the
 * owner's head x at x * raw_stride.
 */
static void walk_strip(struct walk *w, uint32_t t, uint32_t n, uint32_t h, bool v, struct partial p,
                       float *raw)
{
	const struct decode *d = w->d;
	const uint32_t dim = d->sh->head_dim;
	const uint32_t token = w->r->low[t / d->tile], dtype = token == ROWS ? d->sh->dtype : SKV_F32;
	struct strip s = {.row = w->r->row + t, .at = strip_at(w, h, v), .n = n, .dim = dim};
	s.ahead = token == ROWS && w->r->low[w->ahead.t / d->tile] == ROWS;
	s.ahead_row = w->r->row + w->ahead.t;
	s.ahead_at = strip_at(w, w->ahead.h, w->ahead.v);
	if (!s.ahead)
		prefetch_strip(w, &w->ahead);
	if (token != ROWS) {
		widen(w, token, n, h, v);
		s.row = w->wide_row;
		s.at = 0;
	}
	place_next(d, w->r, &w->ahead);
	for (uint32_t i = 0; i < d->tuples; i++) {
		const uint32_t gt = d->tuple[i].n, head = h * d->group + d->tuple[i].first;
		struct softmax *state = &w->state[h * d->tuples + i];
		float *weight = w->weight + head * TILE_MAX;
		if (v)
			strip_functions[dtype][gt / 2].sum(&s, weight, state,
			                                          p.acc + (size_t)head * dim);
		else
			strip_functions[dtype][gt / 2].weigh(&s, w->q + (size_t)head * dim, w->scale,
			                                            state, weight,
			                                            raw ? raw + head * d->raw_stride : NULL,
			                                            d->raw_stride);
		s.ahead = false;
	}
}

/* Tokens [t0, t0 + n) of the rows. */
static void walk_chunk(struct walk *w, uint32_t t0, uint32_t n, struct partial p, float *raw)
{
	const struct decode *d = w->d;
	const uint32_t heads = d->span * d->group;

	if (!d->keys)
		memset(p.acc, 0, (size_t)heads * d->sh->head_dim * sizeof *p.acc);
	for (uint32_t i = 0; i < d->span * d->tuples; i++)
		w->state[i] = (struct softmax){.max = v_set(-INFINITY)};
	for (uint32_t t = 0; t < n; t += d->tile) {
		for (uint32_t h = 0; h < d->span; h++)
			walk_strip(w, t0 + t, skv_min(d->tile, n - t), h, false, p, raw ? raw + t : NULL);
		for (uint32_t h = 0; h < d->span && !d->keys; h++)
			walk_strip(w, t0 + t, skv_min(d->tile, n - t), h, true, p, NULL);
	}
	for (uint32_t x = 0; x < heads; x++) {
		uint32_t h = x / d->group, i = d->tuples;
		while (d->tuple[--i].first > x % d->group)
			;
		uint32_t lane = (x % d->group - d->tuple[i].first) * (VL / d->tuple[i].n);
		p.max[x] = w->state[h * d->tuples + i].max[lane];
		p.sum[x] = w->state[h * d->tuples + i].sum[lane];
	}
}

/* Where the scores of a dense chunk go, those of q head 0: as far along as its first page. */
static float *raw_of(const struct decode *d, uint32_t owner, uint32_t chunk)
{
	uint32_t from, to;
	if (!d->raw)
		return NULL;
	decode_chunk(d, owner, chunk, units_of(d, owner), &from, &to);
	return d->raw + (size_t)owner * d->sh->n_heads * d->raw_stride + (size_t)from * SKV_PAGE_TOKENS;
}

/* Which of a chunk's tiles, from entry `begin` of the rows on, are in few bits. */
static void mark_low(const struct decode *d, uint32_t owner, uint32_t chunk, struct rows *r, uint32_t begin)
{
	const uint32_t low = low_tokens(d, &d->seq[owner / d->splits]);
	uint32_t from = 0, to;

	if (low)
		decode_chunk(d, owner, chunk, units_of(d, owner), &from, &to);
	from *= SKV_PAGE_TOKENS;
	for (uint32_t t = begin; t < r->end; t += d->tile)
		r->low[t / d->tile] = from + t - begin < low ? from + t - begin : ROWS;
}

static void walk_run(void *ctx, uint32_t run, int thread)
{
	const struct decode *d = ctx;
	const struct skv_shape *sh = d->sh;
	const uint32_t owner = skv_owner(d->first_run, d->n * d->splits, run), i = owner / d->splits;
	const uint32_t head0 = owner % d->splits * d->span * d->group, h0 = head0 / (sh->n_heads / sh->n_kv_heads);
	const uint32_t chunk = (run - d->first_run[owner]) * d->run;
	const uint32_t chunks = skv_min(d->run, d->first[owner + 1] - d->first[owner] - chunk);
	uint32_t tokens = 0;
	struct rows r;
	struct walk w;
	(void)thread;

	prefetch_lists(d, owner, chunk, chunks);
	r.end = 0;
	for (uint32_t c = 0; c < chunks; c++) {
		const uint32_t begin = r.end;
		r.n[c] = gather(d, owner, chunk + c, r.row + r.end);
		tokens += r.n[c];
		for (r.end += r.n[c]; r.end % d->tile; r.end++)
			r.row[r.end] = r.row[r.end - 1];
		mark_low(d, owner, chunk + c, &r, begin);
	}
	if (d->seq[i].attended && !d->keys) /* other threads have runs of the same sequence */
		__atomic_fetch_add(d->seq[i].attended, (uint64_t)tokens * d->span * d->group, __ATOMIC_RELAXED);
	w.d = d;
	w.r = &r;
	w.s = &d->seq[i];
	if (low_tokens(d, w.s))
		w.low = low_of(sh);
	w.ahead = (struct place){0};
	w.head_bytes = SKV_PAGE_TOKENS * (size_t)d->row_bytes;
	w.v_offset = skv_v_offset(sh);
	w.k_at = h0 * w.head_bytes;
	w.scale = sh->scale * LOG2E;
	w.q = d->q + ((size_t)d->seq[i].row * sh->n_heads + head0) * sh->head_dim;
	for (uint32_t s = 0; r.end && s < d->ahead; s++, place_next(d, &r, &w.ahead))
		prefetch_strip(&w, &w.ahead);
	for (uint32_t c = 0, t = 0; c < chunks; c++) {
		walk_chunk(&w, t, r.n[c], partial_of(d, d->first[owner] + chunk + c),
		           raw_of(d, owner, chunk + c));
		t += (r.n[c] + d->tile - 1) / d->tile * d->tile;
	}
}

/* ---- merging --------------------------------------------------------------------------------- */

/*
 * The output of a q head, number `local` of its owner, if out is not NULL. Returns log2 of the softmax's
 * denominator.
 */
static float merge_head(const struct decode *d, uint32_t owner, uint32_t local, float *out)
{
	const uint32_t dim = d->sh->head_dim, item0 = d->first[owner], item1 = d->first[owner + 1];
	float max = -INFINITY, sum = 0;

	for (uint32_t it = item0; it < item1; it++)
		max = fmaxf(max, partial_of(d, it).max[local]);
	if (out)
		memset(out, 0, dim * sizeof *out);
	for (uint32_t it = item0; it < item1; it++) {
		struct partial p = partial_of(d, it);
		/* No token, or NaNs alone: nothing to bring to another maximum. */
		float fix = p.max[local] == -INFINITY ? 1 : v_exp2(v_set(p.max[local] - max))[0];
		sum += p.sum[local] * fix;
		for (uint32_t x = 0; out && x < dim; x += VL)
			v_storef(out + x, v_fma(v_loadf(p.acc + (size_t)local * dim + x), v_set(fix),
			                        v_loadf(out + x)));
	}
	if (sum == 0)
		return -INFINITY;
	for (uint32_t x = 0; out && x < dim; x += VL)
		v_storef(out + x, v_loadf(out + x) / sum);
	return max + log2f(sum);
}

/* The q heads that an owner has of one kv head. */
static void merge_item(void *ctx, uint32_t item, int thread)
{
	const struct decode *d = ctx;
	const struct skv_shape *sh = d->sh;
	const uint32_t i = item / (d->splits * d->span), h = item % (d->splits * d->span);
	const uint32_t owner = i * d->splits + h / d->span;
	(void)thread;
	for (uint32_t g = 0; g < d->group; g++) {
		uint32_t head = h * d->group + g;
		size_t at = ((size_t)d->seq[i].row * sh->n_heads + head) * sh->head_dim;
		float lse = merge_head(d, owner, h % d->span * d->group + g, d->keys ? NULL : d->out + at);
		if (d->lse)
			d->lse[(size_t)i * sh->n_heads + head] = lse;
		if (d->ev && d->ev->lse)
			d->ev->lse[(size_t)i * sh->n_heads + head] = lse * LN2;
	}
}

/* ---- a call ---------------------------------------------------------------------------------- */

/* A group's q heads in fours, and what is left as a pair and a single one. */
static void cut_group(struct decode *d)
{
	d->tuples = 0;
	for (uint32_t g = 0, n; g < d->group; g += n) {
		n = d->group - g >= 4 ? 4 : d->group - g >= 2 ? 2 : 1;
		d->tuple[d->tuples].first = (uint8_t)g;
		d->tuple[d->tuples++].n = (uint8_t)n;
	}
}

static void cut(struct decode *d, struct carve *c, int threads)
{
	const struct skv_shape *sh = d->sh;
	const uint32_t chunk = d->what == DECODE_TOKENS ? CHUNK : CHUNK / SKV_PAGE_TOKENS;

	d->splits = d->list ? d->list->rows : 1;
	d->span = d->splits > 1 ? 1 : sh->n_kv_heads;
	d->group = sh->n_heads / d->splits / d->span;
	cut_group(d);
	d->row_bytes = (uint32_t)skv_row_bytes(sh);
	d->tile = tile_tokens(sh->dtype);
	d->ahead = skv_max(1, ahead_bytes(sh->dtype, d->what == DECODE_TOKENS) / (d->tile * d->row_bytes));

	if (d->window) {
		d->start = carve(c, d->n * sizeof *d->start);
		for (uint32_t i = 0; i < d->n; i++)
			d->start[i] = skv_window_start(d->window, d->seq[i].len);
	}
	const uint32_t owners = d->n * d->splits;
	d->first = carve(c, (owners + 1) * sizeof *d->first);
	d->first[0] = 0;
	for (uint32_t o = 0; o < owners; o++)
		d->first[o + 1] = d->first[o] + (units_of(d, o) + chunk - 1) / chunk;
	d->run = CHUNK_RUN;
	if (threads > 1)
		d->run = skv_min(d->run, skv_max(1, d->first[owners] / (2 * (uint32_t)threads)));
	d->first_run = carve(c, (owners + 1) * sizeof *d->first_run);
	d->first_run[0] = 0;
	for (uint32_t o = 0; o < owners; o++)
		d->first_run[o + 1] = d->first_run[o] + (d->first[o + 1] - d->first[o] + d->run - 1) / d->run;
}

static void decode(struct decode *d, const struct skv_work *work)
{
	const struct skv_shape *sh = d->sh;
	struct carve c = carve_begin(work);

	cut(d, &c, work->threads);
	const uint32_t owners = d->n * d->splits, heads = d->span * d->group, chunks = d->first[owners];
	d->part = carve(&c, chunks * part_floats(sh, heads) * sizeof *d->part);
	if (d->ev && (d->ev->token || d->ev->page)) {
		d->raw_stride = (size_t)skv_pages_of(d->max_len) * SKV_PAGE_TOKENS;
		d->raw = carve(&c, (size_t)d->n * sh->n_heads * d->raw_stride * sizeof *d->raw);
		d->lse = carve(&c, (size_t)d->n * sh->n_heads * sizeof *d->lse);
	}
	skv_run(work->threads, d->first_run[owners], walk_run, d);
	/* Merging is worth a thread's while from some tens of partials on. */
	skv_run(chunks * heads >= 64 ? work->threads : 1, d->n * d->splits * d->span, merge_item, d);
	if (d->raw)
		ISA(evidence)(d, work->threads);
}

/* Sequences whose scores are held at a time when evidence is wanted: a bound on the scratch. */
static uint32_t evidence_batch(const struct skv_shape *sh, uint32_t n, uint32_t max_len)
{
	size_t one = (size_t)sh->n_heads * skv_pages_of(max_len) * SKV_PAGE_TOKENS * sizeof(float);
	return one * n <= EVIDENCE_BYTES ? n : one <= EVIDENCE_BYTES ? (uint32_t)(EVIDENCE_BYTES / one) : 1;
}

size_t ISA(decode_bytes)(const struct skv_shape *sh, uint32_t n, uint32_t max_len)
{
	size_t tokens = (size_t)skv_pages_of(max_len) * SKV_PAGE_TOKENS;
	size_t chunks = (tokens + CHUNK - 1) / CHUNK;
	size_t owners = (size_t)n * sh->n_heads;
	/* The most owners that there can be: one a q head. Partials of more heads together take no more. */
	size_t part = part_floats(sh, 1) * sizeof(float);
	size_t raw = sh->n_heads * tokens * sizeof(float);
	raw = raw * n <= EVIDENCE_BYTES ? raw * n : raw <= EVIDENCE_BYTES ? EVIDENCE_BYTES : raw;
	return carve_size(n * sizeof(uint32_t)) + 2 * carve_size((owners + 1) * sizeof(uint32_t)) +
	       carve_size(owners * chunks * part) + carve_size(raw) +
	       carve_size((size_t)n * sh->n_heads * sizeof(float));
}

/* out is NULL: the evidence alone. */
static void dense(const struct skv_shape *sh, const struct skv_batch *batch, const void *q, void *out,
                  const struct skv_evidence *ev, const struct skv_work *work)
{
	uint32_t step = batch->n;
	if (ev && (ev->token || ev->page))
		step = evidence_batch(sh, batch->n, batch->max_len);
	for (uint32_t i = 0; i < batch->n; i += step) {
		struct decode d = {.sh = sh, .seq = batch->seq + i, .n = skv_min(step, batch->n - i),
		                   .max_len = batch->max_len, .q = q, .out = out, .keys = !out};
		struct skv_evidence part;
		if (ev) {
			part = *ev;
			part.token = ev->token ? ev->token + (size_t)i * ev->rows * ev->token_stride : NULL;
			part.page = ev->page ? ev->page + (size_t)i * ev->rows * ev->page_stride : NULL;
			part.lse = ev->lse ? ev->lse + (size_t)i * sh->n_heads : NULL;
			d.ev = &part;
		}
		decode(&d, work);
	}
}

void ISA(decode_dense)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q, void *out,
                       const struct skv_evidence *ev, const struct skv_work *work)
{
	dense(sh, batch, q, out, ev, work);
}

void ISA(decode_window)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q, void *out,
                        const struct skv_window *window, const struct skv_work *work)
{
	decode(&(struct decode){.sh = sh, .seq = batch->seq, .n = batch->n, .max_len = batch->max_len, .q = q,
	                        .out = out, .what = DECODE_WINDOW, .window = window},
	       work);
}

void ISA(decode_pages)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q, void *out,
                       const struct skv_list *list, const struct skv_work *work)
{
	decode(&(struct decode){.sh = sh, .seq = batch->seq, .n = batch->n, .max_len = batch->max_len, .q = q,
	                        .out = out, .what = DECODE_PAGES, .list = list},
	       work);
}

void ISA(decode_tokens)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q, void *out,
                        const struct skv_list *list, const struct skv_work *work)
{
	decode(&(struct decode){.sh = sh, .seq = batch->seq, .n = batch->n, .max_len = batch->max_len, .q = q,
	                        .out = out, .what = DECODE_TOKENS, .list = list},
	       work);
}

/* Reads K of the tokens chosen a second time. */
void ISA(decode_chosen)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q, void *out,
                        const struct skv_evidence *ev, const struct skv_select *sel, struct skv_list *list,
                        const struct skv_work *work)
{
	struct skv_evidence tokens = *ev;
	tokens.page = NULL;
	dense(sh, batch, q, NULL, &tokens, work);
	ISA(select)(sh, batch, &tokens, true, sel, list, work);
	ISA(decode_tokens)(sh, batch, q, out, list, work);
}
