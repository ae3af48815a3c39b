/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/decode.c - attention of one query row a sequence.
 *
 * A call is cut into chunks: some hundred tokens of whatever a sequence (or one kv head of it, where
 * kv heads have lists of their own) attends to. Every chunk leaves a partial result for its heads in
 * the scratch; merging a head's partials in the order of its chunks gives the output. The cut depends
 * on the shape and on the sequence's own selection, so the bits of the result do not depend on the
 * number of threads or on the company in the batch; and one long sequence keeps all threads busy.
 *
 * The ways to decode differ only in gather(), which lists the tokens of a chunk.
 */
#include "kernels/host/host.h"
#include "kernels/host/decode.h"
#include "kernels/host/tile.h"
#include <math.h>

#define LOG2E 1.44269504088896340736f
#define LN2 0.693147180559945309417f

/* ---- which tokens ---------------------------------------------------------------------------- */

/* Pages of a window: those with sinks, then those from the window's start on that are not among them. */
static uint32_t window_gap(const struct decode *d, uint32_t i, uint32_t *ret_head)
{
	uint32_t head = skv_min(skv_pages_of(skv_min(d->sinks[i], d->seq[i].len)), skv_pages_of(d->seq[i].len));
	*ret_head = head;
	return skv_max(head, skv_min(d->start[i], d->seq[i].len) / SKV_PAGE_TOKENS) - head;
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
		return d->list->count[owner];
	default:
		return pages;
	}
}

/* The tokens of page `page` that may be looked at, as K row addresses of kv head 0; returns how many. */
static uint32_t gather_page(const struct decode *d, uint32_t i, uint32_t page, const uint8_t **row)
{
	const struct skv_kseq *s = &d->seq[i];
	uint32_t first = page * SKV_PAGE_TOKENS, n = 0;
	if (first >= s->len || !skv_pte_resident(s->table[page]))
		return 0;
	const uint8_t *k = skv_page_k(d->sh, s->table[page], 0);
	uint32_t end = skv_min(SKV_PAGE_TOKENS, s->len - first);
	if (d->what != DECODE_WINDOW) {
		UNROLL
		for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t++)
			row[t] = k + t * d->row_bytes;
		return end;
	}
	for (uint32_t t = 0; t < end; t++) {
		row[n] = k + t * d->row_bytes;
		n += first + t < d->sinks[i] || first + t >= d->start[i];
	}
	return n;
}

/* The same for the units of a chunk; row has space for CHUNK_MAX. */
static uint32_t gather(const struct decode *d, uint32_t owner, uint32_t chunk, const uint8_t **row)
{
	const uint32_t i = owner / d->splits;
	const struct skv_kseq *s = &d->seq[i];
	const uint32_t *ids = d->list ? d->list->ids + (size_t)owner * d->list->stride : NULL;
	uint32_t from, to, n = 0, head = 0, gap = 0;

	decode_chunk(d, owner, chunk, units_of(d, owner), &from, &to);
	if (d->what == DECODE_TOKENS) {
		for (uint32_t u = from; u < to; u++) {
			uint32_t t = ids[u];
			if (t >= s->len || !skv_pte_resident(s->table[t / SKV_PAGE_TOKENS]))
				continue;
			row[n++] = skv_page_k(d->sh, s->table[t / SKV_PAGE_TOKENS], 0) +
			           t % SKV_PAGE_TOKENS * d->row_bytes;
		}
		return n;
	}
	if (d->what == DECODE_WINDOW)
		gap = window_gap(d, i, &head);
	for (uint32_t u = from; u < to; u++) {
		uint32_t page = ids ? ids[u] : d->what == DECODE_WINDOW && u >= head ? u + gap : u;
		n += gather_page(d, i, page, row + n);
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

/* Where the scores of a dense chunk go, for q head 0: as far along as its first page. */
static float *raw_of(const struct decode *d, uint32_t owner, uint32_t chunk)
{
	uint32_t from, to;
	decode_chunk(d, owner, chunk, units_of(d, owner), &from, &to);
	return d->raw + (size_t)owner * d->sh->n_heads * d->raw_stride + (size_t)from * SKV_PAGE_TOKENS;
}

/* One tile of kv head h (the chunk's first is h0) for all q heads of its group. */
static void attend_group(const struct decode *d, struct tile *t, uint32_t h, uint32_t i, uint32_t h0, struct partial p,
                         float *raw)
{
	const uint32_t dim = d->sh->head_dim, local = (h - h0) * d->group;
	for (uint32_t g = 0, gt; g < d->group; g += gt) {
		uint32_t left = d->group - g, head = h * d->group + g;
		gt = left >= 4 ? 4 : left >= 2 ? 2 : 1;
		t->q = d->q + ((size_t)d->seq[i].row * d->sh->n_heads + head) * dim;
		t->acc = p.acc + (size_t)(local + g) * dim;
		t->max = p.max + local + g;
		t->sum = p.sum + local + g;
		t->raw = raw ? raw + head * d->raw_stride : NULL;
		tile_functions[d->sh->dtype][gt / 2](t);
	}
}

static void attend_item(void *ctx, uint32_t item, int thread)
{
	const struct decode *d = ctx;
	const struct skv_shape *sh = d->sh;
	const uint32_t owner = skv_owner(d->first, d->n * d->splits, item), chunk = item - d->first[owner];
	const uint32_t i = owner / d->splits, h0 = owner % d->splits * d->span, heads = d->span * d->group;
	const uint8_t *row[CHUNK_MAX + 2 * TILE_MAX];
	const size_t head_bytes = SKV_PAGE_TOKENS * (size_t)d->row_bytes, v_offset = skv_v_offset(sh);
	struct partial p = partial_of(d, item);
	(void)thread;

	memset(p.acc, 0, (size_t)heads * sh->head_dim * sizeof *p.acc);
	memset(p.sum, 0, heads * sizeof *p.sum);
	for (uint32_t x = 0; x < heads; x++)
		p.max[x] = -INFINITY;
	uint32_t n = gather(d, owner, chunk, row);
	for (uint32_t t = 0; n && t < 2 * TILE_MAX; t++)
		row[n + t] = row[n - 1];

	struct tile t = {.dim = sh->head_dim, .row_bytes = d->row_bytes, .scale = sh->scale * LOG2E,
	                 .acc_stride = sh->head_dim, .raw_stride = d->raw_stride};
	for (uint32_t t0 = 0; t0 < n; t0 += d->tile)
		for (uint32_t h = h0; h < h0 + d->span; h++) {
			bool last = h + 1 == h0 + d->span;
			t.row = row + t0;
			t.n = skv_min(d->tile, n - t0);
			t.k_at = h * head_bytes;
			t.v_at = t.k_at + v_offset;
			t.next_row = last ? t.row + d->tile : t.row;
			t.next_at = (last ? h0 : h + 1) * head_bytes;
			attend_group(d, &t, h, i, h0, p, d->raw ? raw_of(d, owner, chunk) + t0 : NULL);
		}
}

/* The output of a q head, number `local` of its owner. Returns log2 of the softmax's denominator. */
static float merge_head(const struct decode *d, uint32_t owner, uint32_t local, float *out)
{
	const uint32_t dim = d->sh->head_dim, item0 = d->first[owner], item1 = d->first[owner + 1];
	float max = -INFINITY, sum = 0;

	for (uint32_t it = item0; it < item1; it++)
		max = fmaxf(max, partial_of(d, it).max[local]);
	memset(out, 0, dim * sizeof *out);
	for (uint32_t it = item0; it < item1; it++) {
		struct partial p = partial_of(d, it);
		/* No token, or NaNs alone: nothing to bring to another maximum. */
		float fix = p.max[local] == -INFINITY ? 1 : v_exp2(v_set(p.max[local] - max))[0];
		sum += p.sum[local] * fix;
		for (uint32_t x = 0; x < dim; x += VL)
			v_storef(out + x, v_fma(v_loadf(p.acc + (size_t)local * dim + x), v_set(fix), v_loadf(out + x)));
	}
	if (sum == 0)
		return -INFINITY;
	for (uint32_t x = 0; x < dim; x += VL)
		v_storef(out + x, v_loadf(out + x) / sum);
	return max + log2f(sum);
}

static void merge_item(void *ctx, uint32_t item, int thread)
{
	const struct decode *d = ctx;
	const struct skv_shape *sh = d->sh;
	const uint32_t i = item / sh->n_kv_heads, h = item % sh->n_kv_heads, owner = i * d->splits + h / d->span;
	(void)thread;
	for (uint32_t g = 0; g < d->group; g++) {
		uint32_t head = h * d->group + g;
		float *out = d->out + ((size_t)d->seq[i].row * sh->n_heads + head) * sh->head_dim;
		float lse = merge_head(d, owner, h % d->span * d->group + g, out);
		if (d->lse)
			d->lse[(size_t)i * sh->n_heads + head] = lse;
		if (d->ev && d->ev->lse)
			d->ev->lse[(size_t)i * sh->n_heads + head] = lse * LN2;
	}
}

/* ---- a call ---------------------------------------------------------------------------------- */

/* Tokens of a chunk, a multiple of 64: a chunk reads about CHUNK_BYTES. */
static uint32_t chunk_tokens(const struct skv_shape *sh, uint32_t span)
{
	size_t tokens = CHUNK_BYTES / (2 * span * skv_row_bytes(sh)) & ~(size_t)63;
	return tokens < CHUNK_MIN ? CHUNK_MIN : tokens > CHUNK_MAX ? CHUNK_MAX : (uint32_t)tokens;
}

static void cut(struct decode *d, struct carve *c)
{
	const struct skv_shape *sh = d->sh;
	d->splits = d->list && d->list->rows > 1 ? sh->n_kv_heads : 1;
	d->span = sh->n_kv_heads / d->splits;
	d->group = sh->n_heads / sh->n_kv_heads;
	d->row_bytes = (uint32_t)skv_row_bytes(sh);
	d->tile = skv_min(TILE_MAX, skv_max(32, TILE_BYTES / d->row_bytes & ~15u));
	d->chunk = chunk_tokens(sh, d->span) / (d->what == DECODE_TOKENS ? 1 : SKV_PAGE_TOKENS);
	d->first = carve(c, (d->n * d->splits + 1) * sizeof *d->first);
	d->first[0] = 0;
	for (uint32_t o = 0; o < d->n * d->splits; o++)
		d->first[o + 1] = d->first[o] + (units_of(d, o) + d->chunk - 1) / d->chunk;
}

static void decode(struct decode *d, const struct skv_work *work)
{
	const struct skv_shape *sh = d->sh;
	struct carve c = carve_begin(work);

	cut(d, &c);
	const uint32_t items = d->first[d->n * d->splits];
	d->part = carve(&c, items * part_floats(sh, d->span * d->group) * sizeof *d->part);
	if (d->ev && (d->ev->token || d->ev->page)) {
		uint32_t longest = 0;
		for (uint32_t i = 0; i < d->n; i++)
			longest = skv_max(longest, skv_pages_of(d->seq[i].len));
		d->raw_stride = (size_t)longest * SKV_PAGE_TOKENS;
		d->raw = carve(&c, (size_t)d->n * sh->n_heads * d->raw_stride * sizeof *d->raw);
		d->lse = carve(&c, (size_t)d->n * sh->n_heads * sizeof *d->lse);
	}
	skv_run(work->threads, items, attend_item, d);
	/* Merging is worth a thread's while from some tens of partials on. */
	skv_run(items * d->span * d->group >= 64 ? work->threads : 1, d->n * sh->n_kv_heads, merge_item, d);
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
	const uint32_t tokens = skv_pages_of(max_len) * SKV_PAGE_TOKENS, chunk = chunk_tokens(sh, sh->n_kv_heads);
	size_t chunks = (tokens + chunk - 1) / chunk, owners = (size_t)n * sh->n_kv_heads;
	/* With lists a kv head a chunk is no shorter, and it has the partials of one kv head. */
	size_t part = part_floats(sh, sh->n_heads / sh->n_kv_heads) * sh->n_kv_heads * sizeof(float);
	size_t raw = (size_t)sh->n_heads * tokens * sizeof(float);
	raw = raw * n <= EVIDENCE_BYTES ? raw * n : raw <= EVIDENCE_BYTES ? EVIDENCE_BYTES : raw;
	return carve_size((owners + 1) * sizeof(uint32_t)) + carve_size(n * chunks * part) + carve_size(raw) +
	       carve_size((size_t)n * sh->n_heads * sizeof(float));
}

void ISA(decode_dense)(const struct skv_shape *sh, const struct skv_kseq *seq, uint32_t n, const float *q, float *out,
                       const struct skv_evidence *ev, const struct skv_work *work)
{
	uint32_t batch = n;
	if (ev && (ev->token || ev->page)) {
		uint32_t longest = 0;
		for (uint32_t i = 0; i < n; i++)
			longest = skv_max(longest, seq[i].len);
		batch = evidence_batch(sh, n, longest);
	}
	for (uint32_t i = 0; i < n; i += batch) {
		struct decode d = {.sh = sh, .seq = seq + i, .n = skv_min(batch, n - i), .q = q, .out = out};
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

void ISA(decode_window)(const struct skv_shape *sh, const struct skv_kseq *seq, uint32_t n, const float *q, float *out,
                        const uint32_t *sinks, const uint32_t *start, const struct skv_work *work)
{
	decode(&(struct decode){.sh = sh, .seq = seq, .n = n, .q = q, .out = out, .what = DECODE_WINDOW, .sinks = sinks,
	                        .start = start},
	       work);
}

void ISA(decode_pages)(const struct skv_shape *sh, const struct skv_kseq *seq, uint32_t n, const float *q, float *out,
                       const struct skv_list *list, const struct skv_work *work)
{
	decode(&(struct decode){.sh = sh, .seq = seq, .n = n, .q = q, .out = out, .what = DECODE_PAGES, .list = list},
	       work);
}

void ISA(decode_tokens)(const struct skv_shape *sh, const struct skv_kseq *seq, uint32_t n, const float *q, float *out,
                        const struct skv_list *list, const struct skv_work *work)
{
	decode(&(struct decode){.sh = sh, .seq = seq, .n = n, .q = q, .out = out, .what = DECODE_TOKENS, .list = list},
	       work);
}
