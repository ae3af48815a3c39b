/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/decode.c - attention of one query row a sequence.
 *
 * A call is cut into items: (sequence, kv head, chunk), a chunk being CHUNK_PAGES pages or
 * CHUNK_TOKENS tokens of whatever the sequence attends to. Every item leaves a partial result for
 * its heads in the scratch; merging a head's partials in the order of its chunks gives the output.
 * The cut depends on nothing but the sequence's own selection, so the bits of the result do not
 * depend on the number of threads or on the company in the batch; and one long sequence keeps all
 * threads busy.
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

static uint32_t list_row(const struct decode *d, uint32_t i, uint32_t h)
{
	return i * d->list->rows + (d->list->rows > 1 ? h : 0);
}

/* Units (pages, or tokens for a token list) that kv head h of sequence i looks at. */
static uint32_t units_of(const struct decode *d, uint32_t i, uint32_t h)
{
	uint32_t head, pages = skv_pages_of(d->seq[i].len);
	switch (d->what) {
	case DECODE_WINDOW:
		return pages - window_gap(d, i, &head);
	case DECODE_PAGES:
	case DECODE_TOKENS:
		return d->list->count[list_row(d, i, h)];
	default:
		return pages;
	}
}

/* The tokens of page `page` that may be looked at, as row addresses; returns how many. */
static uint32_t gather_page(const struct decode *d, uint32_t i, uint32_t h, uint32_t page, const uint8_t **row)
{
	const struct skv_kseq *s = &d->seq[i];
	uint32_t first = page * SKV_PAGE_TOKENS, n = 0;
	if (first >= s->len || !skv_pte_resident(s->table[page]))
		return 0;
	const uint8_t *k = skv_page_k(d->sh, s->table[page], h);
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

static uint32_t gather(const struct decode *d, uint32_t i, uint32_t h, uint32_t chunk, const uint8_t **row)
{
	const struct skv_kseq *s = &d->seq[i];
	const uint32_t *ids = d->list ? d->list->ids + (size_t)list_row(d, i, h) * d->list->stride : NULL;
	uint32_t per_chunk = d->what == DECODE_TOKENS ? CHUNK_TOKENS : CHUNK_PAGES;
	uint32_t from = chunk * per_chunk, to = skv_min(from + per_chunk, units_of(d, i, h));
	uint32_t n = 0, head = 0, gap = 0;

	if (d->what == DECODE_TOKENS) {
		for (uint32_t u = from; u < to; u++) {
			uint32_t t = ids[u];
			if (t >= s->len || !skv_pte_resident(s->table[t / SKV_PAGE_TOKENS]))
				continue;
			row[n++] = skv_page_k(d->sh, s->table[t / SKV_PAGE_TOKENS], h) +
			           t % SKV_PAGE_TOKENS * d->row_bytes;
		}
		return n;
	}
	if (d->what == DECODE_WINDOW)
		gap = window_gap(d, i, &head);
	for (uint32_t u = from; u < to; u++) {
		uint32_t page = ids ? ids[u] : d->what == DECODE_WINDOW && u >= head ? u + gap : u;
		n += gather_page(d, i, h, page, row + n);
	}
	return n;
}

/* ---- partial results ------------------------------------------------------------------------- */

/* A head's partial in the scratch: acc[head_dim], then max and sum. */
static struct partial partial_of(const struct decode *d, uint32_t item, uint32_t g, float **ret_tail)
{
	float *p = d->part + ((size_t)item * d->group + g) * d->part_stride;
	*ret_tail = p + d->sh->head_dim;
	return (struct partial){.acc = p};
}

static void attend_item(void *ctx, uint32_t item, int thread)
{
	const struct decode *d = ctx;
	const struct skv_shape *sh = d->sh;
	uint32_t owner = skv_owner(d->first, d->n * sh->n_kv_heads, item);
	uint32_t i = owner / sh->n_kv_heads, h = owner % sh->n_kv_heads, chunk = item - d->first[owner];
	const uint8_t *row[CHUNK_TOKENS + ROW_PAD];
	struct partial part[SKV_MAX_HEADS];
	float *tail[SKV_MAX_HEADS], *raw = NULL;
	(void)thread;

	uint32_t n = gather(d, i, h, chunk, row);
	for (uint32_t t = 0; n && t < ROW_PAD; t++)
		row[n + t] = row[n - 1];
	for (uint32_t g = 0; g < d->group; g++)
		part[g] = partial_of(d, item, g, &tail[g]);
	if (d->raw)
		raw = d->raw + ((size_t)i * sh->n_heads + h * d->group) * d->raw_stride + chunk * CHUNK_TOKENS;

	const struct run r = {.row = row, .n = n, .v_offset = skv_v_offset(sh), .dim = sh->head_dim,
	                      .row_bytes = d->row_bytes, .ahead = d->ahead};
	const float *q = d->q + ((size_t)d->seq[i].row * sh->n_heads + h * d->group) * sh->head_dim;
	const float scale = sh->scale * LOG2E;
	if (sh->dtype == SKV_F32)
		attend_run(SKV_F32, &r, q, d->group, scale, part, raw, d->raw_stride);
	else if (sh->dtype == SKV_F16)
		attend_run(SKV_F16, &r, q, d->group, scale, part, raw, d->raw_stride);
	else
		attend_run(SKV_BF16, &r, q, d->group, scale, part, raw, d->raw_stride);

	for (uint32_t g = 0; g < d->group; g++) {
		tail[g][0] = part[g].max;
		tail[g][1] = part[g].sum;
	}
}

/* The output of one q head from the partials of items [item0, item1). Returns log2 of the softmax's denominator. */
static float merge_head(const struct decode *d, uint32_t item0, uint32_t item1, uint32_t g, float *out)
{
	const uint32_t dim = d->sh->head_dim;
	float *tail, max = -INFINITY, sum = 0;

	for (uint32_t it = item0; it < item1; it++) {
		partial_of(d, it, g, &tail);
		max = tail[0] > max ? tail[0] : max;
	}
	memset(out, 0, dim * sizeof *out);
	for (uint32_t it = item0; it < item1; it++) {
		struct partial p = partial_of(d, it, g, &tail);
		float fix = tail[0] == -INFINITY ? 1 : exp2_one(tail[0] - max);
		sum += tail[1] * fix;
		for (uint32_t x = 0; x < dim; x += VL)
			v_storef(out + x, v_fma(v_loadf(p.acc + x), v_set(fix), v_loadf(out + x)));
	}
	if (sum == 0)
		return -INFINITY;
	for (uint32_t x = 0; x < dim; x += VL)
		v_storef(out + x, v_loadf(out + x) / sum);
	return max + log2f(sum);
}

static void merge_item(void *ctx, uint32_t owner, int thread)
{
	const struct decode *d = ctx;
	const struct skv_shape *sh = d->sh;
	uint32_t i = owner / sh->n_kv_heads, h = owner % sh->n_kv_heads;
	(void)thread;
	for (uint32_t g = 0; g < d->group; g++) {
		uint32_t head = h * d->group + g;
		float *out = d->out + ((size_t)d->seq[i].row * sh->n_heads + head) * sh->head_dim;
		float lse = merge_head(d, d->first[owner], d->first[owner + 1], g, out);
		if (d->lse)
			d->lse[(size_t)i * sh->n_heads + head] = lse;
		if (d->ev && d->ev->lse)
			d->ev->lse[(size_t)i * sh->n_heads + head] = lse * LN2;
	}
}

/* ---- a call ---------------------------------------------------------------------------------- */

static uint32_t part_stride(const struct skv_shape *sh)
{
	return sh->head_dim + 16;
}

static void decode(struct decode *d, const struct skv_work *work)
{
	const struct skv_shape *sh = d->sh;
	const uint32_t owners = d->n * sh->n_kv_heads;
	const uint32_t per_chunk = d->what == DECODE_TOKENS ? CHUNK_TOKENS : CHUNK_PAGES;
	struct carve c = carve_begin(work);

	d->group = sh->n_heads / sh->n_kv_heads;
	d->row_bytes = (uint32_t)skv_row_bytes(sh);
	d->ahead = skv_min(ROW_PAD, skv_max(4, 8192 / d->row_bytes));
	d->part_stride = part_stride(sh);
	d->first = carve(&c, (owners + 1) * sizeof *d->first);
	d->first[0] = 0;
	for (uint32_t o = 0; o < owners; o++) {
		uint32_t units = units_of(d, o / sh->n_kv_heads, o % sh->n_kv_heads);
		d->first[o + 1] = d->first[o] + (units + per_chunk - 1) / per_chunk;
	}
	d->part = carve(&c, (size_t)d->first[owners] * d->group * d->part_stride * sizeof *d->part);
	if (d->ev && (d->ev->token || d->ev->page)) {
		uint32_t longest = 0;
		for (uint32_t i = 0; i < d->n; i++)
			longest = skv_max(longest, skv_pages_of(d->seq[i].len));
		d->raw_stride = (size_t)longest * SKV_PAGE_TOKENS;
		d->raw = carve(&c, (size_t)d->n * sh->n_heads * d->raw_stride * sizeof *d->raw);
		d->lse = carve(&c, (size_t)d->n * sh->n_heads * sizeof *d->lse);
	}
	skv_run(work->threads, d->first[owners], attend_item, d);
	/* Merging is worth a thread's while from some tens of partials on. */
	skv_run(d->first[owners] * d->group >= 64 ? work->threads : 1, owners, merge_item, d);
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
	size_t chunks = (skv_pages_of(max_len) + CHUNK_PAGES - 1) / CHUNK_PAGES;
	size_t scores = (size_t)sh->n_heads * skv_pages_of(max_len) * SKV_PAGE_TOKENS;
	size_t raw = scores * sizeof(float);
	raw = raw * n <= EVIDENCE_BYTES ? raw * n : raw <= EVIDENCE_BYTES ? EVIDENCE_BYTES : raw;
	return carve_size(((size_t)n * sh->n_kv_heads + 1) * sizeof(uint32_t)) +
	       carve_size(n * chunks * sh->n_heads * part_stride(sh) * sizeof(float)) + carve_size(raw) +
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
