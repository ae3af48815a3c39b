/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/decode/decode.c - decode attention: one query row for each sequence, with the keys split into chunks
 * (split-KV).
 *
 * A request is a sequence, or one kv head or q head of a sequence if heads have lists of their own. The tokens that a
 * request attends to are split into chunks of up to CHUNK tokens. Each chunk's partial result for the request's heads
 * is stored in the workspace; merge.c merges a head's partial results in the order of chunks. The split depends only on
 * the request's own selection, so the bits of the result do not depend on the number of threads or on other sequences
 * in the batch. If there are many chunks, a thread takes several consecutive ones (a run), so that prefetching does not
 * restart with each chunk. Runs are short enough that one long sequence keeps all threads busy.
 *
 * The kinds of decode attention differ only in gather(), which lists the tokens of a chunk.
 *
 * If the older tokens of a dense layer are quantized, a tile of quantized tokens is dequantized to fp32 when the tile
 * is processed. Blocks of quantized tokens are whole tiles and come first in the sequence, so the tokens of a tile are
 * either all quantized or all rows.
 */
#include "kernels/host/compress/quant.h"
#include "kernels/host/decode/decode.h"
#include "kernels/host/decode/gather.h"
#include "kernels/host/decode/params.h"
#include "kernels/host/decode/tile.h"
#include "kernels/host/select/select.h"
#include <math.h>

/* ---- a run of chunks ------------------------------------------------------------------------- */

#define ROWS UINT32_MAX

/*
 * The tokens of a run of chunks. The tokens of each chunk begin at a multiple of the tile size; the entries between
 * chunks repeat a valid row.
 */
struct rows {
	const uint8_t *row[CHUNK_RUN * CHUNK];
	const uint8_t *scale[CHUNK_RUN * CHUNK]; /* with fp8: addresses of the rows' scales */
	/* for each tile: its first token if the tile is quantized, else ROWS */
	uint32_t quantized[CHUNK_RUN * CHUNK / SKV_PAGE_TOKENS];
	uint32_t n[CHUNK_RUN]; /* number of tokens of each chunk */
	uint32_t end;          /* number of entries in row[] */
};

/*
 * A position in the order in which strips are read: of each tile first the K strips of all kv heads, then the V strips
 * of all kv heads.
 */
struct strip_pos {
	uint32_t t, h;
	bool v;
};

static void next_strip(const struct decode_params *d, const struct rows *r, struct strip_pos *p)
{
	if (++p->h < d->span)
		return;
	p->h = 0;
	p->v = !p->v && !d->keys;
	if (!p->v && p->t + d->tile < r->end)
		p->t += d->tile;
}

/* The state of a thread during a run of chunks. */
struct walk {
	const struct decode_params *d;
	const struct rows *r;
	struct strip_pos ahead; /* position of the next strip to prefetch */
	size_t k_at;        /* offset of the request's first kv head in a page */
	size_t head_bytes, v_offset;
	float scale, cap;
	const float *q; /* query of the request's first q head */
	struct softmax state[SKV_MAX_HEADS]; /* [kv head][set of q heads] */
	float weight[SKV_MAX_HEADS * TILE_MAX] __attribute__((aligned(64)));
	const struct skv_kseq *s;
	struct quant quant; /* set if the sequence has quantized tiles */
	float unit[TILE_MAX]; /* with fp8: factors of a strip's rows */
	const uint8_t *wide_row[TILE_MAX];
	float wide[TILE_MAX * SKV_MAX_HEAD_DIM]; /* rows of a dequantized strip */
};

static size_t strip_at(const struct walk *w, uint32_t h, bool v)
{
	return w->k_at + h * w->head_bytes + (v ? w->v_offset : 0);
}

/* Dequantizes the strip of n tokens from `token` on, of kv head h's K or V, to fp32 rows in w->wide. */
static void dequantize(struct walk *w, uint32_t token, uint32_t n, uint32_t h, bool v)
{
	const uint8_t *record = quant_record(&w->quant, w->s, token, h);

	if (v)
		dequantize_values(&w->quant, record, token % SKV_QUANT_BLOCK, n, w->wide);
	else
		dequantize_keys(&w->quant, record, token % SKV_QUANT_BLOCK, n, w->wide);
	for (uint32_t t = 0; t < TILE_MAX; t++)
		w->wide_row[t] = (const uint8_t *)(w->wide + t * w->d->sh->head_dim);
}

/* Returns the offset of the fp8 scales of a strip from those of kv head 0's K rows. */
static size_t scale_at(const struct walk *w, uint32_t h, bool v)
{
	return strip_at(w, h, v) / w->d->sh->head_dim;
}

/* Stores the factors of the rows of the fp8 strip that begins at entry t to w->unit; see skv_row_unit(). */
static void units_of_strip(struct walk *w, uint32_t t, uint32_t h, bool v)
{
	const size_t at = scale_at(w, h, v);
	vi bits[TILE_MAX / VL];

	for (uint32_t i = 0; i < w->d->tile; i++)
		bits[i / VL][i % VL] = w->r->scale[t + i][at] << 23;
	for (uint32_t i = 0; i < w->d->tile; i += VL)
		v_storef(w->unit + i, (vf)bits[i / VL]);
}

static void prefetch(const uint8_t *from, uint32_t bytes)
{
	for (uint32_t b = 0; b < bytes; b += 64)
		prefetch_line(from + b);
}

/* Prefetches the fp8 scales of the strip at a position. The scales of a page's 16 tokens are in one cache line. */
static void prefetch_scales(const struct walk *w, const struct strip_pos *p)
{
	const struct decode_params *d = w->d;
	const uint32_t step = d->source == KV_TOKENS ? 1 : SKV_PAGE_TOKENS;

	for (uint32_t t = 0; d->scales_at && t < d->tile; t += step)
		prefetch_line(w->r->scale[p->t + t] + scale_at(w, p->h, p->v));
}

/* Prefetches all rows, or the quantized record, of the strip at a position. */
static void prefetch_strip(const struct walk *w, const struct strip_pos *p)
{
	const struct decode_params *d = w->d;
	const uint32_t token = w->r->quantized[p->t / d->tile];

	if (token == ROWS) {
		for (uint32_t t = 0; t < d->tile; t++)
			prefetch(w->r->row[p->t + t] + strip_at(w, p->h, p->v), d->row_bytes);
		prefetch_scales(w, p);
		return;
	}
	const uint8_t *record = quant_record(&w->quant, w->s, token, p->h);
	if (p->v)
		prefetch(record + w->quant.at.v_scales, w->quant.at.bytes - w->quant.at.v_scales);
	else
		prefetch(record, w->quant.at.v_scales);
}

/*
 * Processes one strip of n tokens for all q heads of its group. `raw`, if not NULL, gets the scores: those of the
 * request's head x at raw + x * raw_stride.
 */
static void walk_strip(struct walk *w, uint32_t t, uint32_t n, uint32_t h, bool v, struct partial p,
                       float *raw)
{
	const struct decode_params *d = w->d;
	const uint32_t dim = d->sh->head_dim;
	const uint32_t token = w->r->quantized[t / d->tile], dtype = token == ROWS ? d->sh->dtype : SKV_F32;
	struct strip s = {.row = w->r->row + t, .at = strip_at(w, h, v), .n = n, .dim = dim, .cap = w->cap};
	s.ahead = token == ROWS && w->r->quantized[w->ahead.t / d->tile] == ROWS;
	s.ahead_row = w->r->row + w->ahead.t;
	s.ahead_at = strip_at(w, w->ahead.h, w->ahead.v);
	if (!s.ahead)
		prefetch_strip(w, &w->ahead);
	else
		prefetch_scales(w, &w->ahead);
	if (d->scales_at) {
		units_of_strip(w, t, h, v);
		s.unit = w->unit;
	}
	if (token != ROWS) {
		dequantize(w, token, n, h, v);
		s.row = w->wide_row;
		s.at = 0;
	}
	next_strip(d, w->r, &w->ahead);
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

/* Processes a chunk, which is entries [t0, t0 + n) of the run's tokens. */
static void walk_chunk(struct walk *w, uint32_t t0, uint32_t n, struct partial p, float *raw)
{
	const struct decode_params *d = w->d;
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

/* Returns where q head 0's raw scores of a chunk of dense attention begin: at the place of the chunk's first page. */
static float *raw_of(const struct decode_params *d, uint32_t request, uint32_t chunk)
{
	uint32_t from, to;
	if (!d->raw)
		return NULL;
	decode_chunk(d, request, chunk, units_of(d, request), &from, &to);
	return d->raw + (size_t)request * d->sh->n_heads * d->raw_stride + (size_t)from * SKV_PAGE_TOKENS;
}

/* Marks which tiles of a chunk are quantized. The rows of the chunk begin at entry `begin`. */
static void mark_quantized(const struct decode_params *d, uint32_t request, uint32_t chunk, struct rows *r,
                           uint32_t begin)
{
	const uint32_t quantized = quantized_tokens(d, &d->seq[request / d->splits]);
	uint32_t from = 0, to;

	if (quantized)
		decode_chunk(d, request, chunk, units_of(d, request), &from, &to);
	from *= SKV_PAGE_TOKENS;
	for (uint32_t t = begin; t < r->end; t += d->tile)
		r->quantized[t / d->tile] = from + t - begin < quantized ? from + t - begin : ROWS;
}

static void walk_run(void *ctx, uint32_t run, int thread)
{
	const struct decode_params *d = ctx;
	const struct skv_shape *sh = d->sh;
	const uint32_t request = skv_range_of(d->first_run, d->n * d->splits, run), i = request / d->splits;
	const uint32_t head0 = request % d->splits * d->span * d->group, h0 = head0 / (sh->n_heads / sh->n_kv_heads);
	const uint32_t chunk = (run - d->first_run[request]) * d->run;
	const uint32_t chunks = skv_min(d->run, d->first[request + 1] - d->first[request] - chunk);
	uint32_t tokens = 0;
	struct rows r;
	struct walk w;
	(void)thread;

	prefetch_lists(d, request, chunk, chunks);
	r.end = 0;
	for (uint32_t c = 0; c < chunks; c++) {
		const uint32_t begin = r.end;
		const struct gathered to = {r.row + begin, d->scales_at ? r.scale + begin : NULL};
		r.n[c] = gather(d, request, chunk + c, &to);
		tokens += r.n[c];
		for (r.end += r.n[c]; r.end % d->tile; r.end++) {
			r.row[r.end] = r.row[r.end - 1];
			if (d->scales_at)
				r.scale[r.end] = r.scale[r.end - 1];
		}
		mark_quantized(d, request, chunk + c, &r, begin);
	}
	if (d->seq[i].attended && !d->keys) /* atomic, because other threads have runs of the same sequence */
		__atomic_fetch_add(d->seq[i].attended, (uint64_t)tokens * d->span * d->group, __ATOMIC_RELAXED);
	w.d = d;
	w.r = &r;
	w.s = &d->seq[i];
	if (quantized_tokens(d, w.s))
		w.quant = quant_of(sh);
	w.ahead = (struct strip_pos){0};
	w.head_bytes = SKV_PAGE_TOKENS * (size_t)d->row_bytes;
	w.v_offset = skv_v_offset(sh);
	w.k_at = h0 * w.head_bytes;
	w.scale = sh->scale * LOG2E;
	w.cap = softcap_of(sh);
	w.q = d->q + ((size_t)d->seq[i].row * sh->n_heads + head0) * sh->head_dim;
	for (uint32_t s = 0; r.end && s < d->ahead; s++, next_strip(d, &r, &w.ahead))
		prefetch_strip(&w, &w.ahead);
	for (uint32_t c = 0, t = 0; c < chunks; c++) {
		walk_chunk(&w, t, r.n[c], partial_of(d, d->first[request] + chunk + c),
		           raw_of(d, request, chunk + c));
		t += (r.n[c] + d->tile - 1) / d->tile * d->tile;
	}
}

/* ---- a call ---------------------------------------------------------------------------------- */

/* Divides the q heads of a group into sets of four, and the rest into a pair and a single head. */
static void split_group(struct decode_params *d)
{
	d->tuples = 0;
	for (uint32_t g = 0, n; g < d->group; g += n) {
		n = d->group - g >= 4 ? 4 : d->group - g >= 2 ? 2 : 1;
		d->tuple[d->tuples].first = (uint8_t)g;
		d->tuple[d->tuples++].n = (uint8_t)n;
	}
}

static void split(struct decode_params *d, struct carve *c, int threads)
{
	const struct skv_shape *sh = d->sh;
	const uint32_t chunk = d->source == KV_TOKENS ? CHUNK : CHUNK / SKV_PAGE_TOKENS;

	d->splits = d->list ? d->list->rows : 1;
	d->span = d->splits > 1 ? 1 : sh->n_kv_heads;
	d->group = sh->n_heads / d->splits / d->span;
	split_group(d);
	d->row_bytes = (uint32_t)skv_row_bytes(sh);
	d->scales_at = sh->dtype == SKV_FP8 ? (size_t)2 * sh->n_kv_heads * SKV_PAGE_TOKENS * sh->head_dim : 0;
	d->tile = tile_tokens(sh->dtype);
	d->ahead = skv_max(1, ahead_bytes(sh->dtype, d->source == KV_TOKENS) / (d->tile * d->row_bytes));

	if (d->window) {
		d->start = carve(c, d->n * sizeof *d->start);
		for (uint32_t i = 0; i < d->n; i++)
			d->start[i] = skv_window_start(d->window, d->seq[i].len);
	}
	const uint32_t requests = d->n * d->splits;
	d->first = carve(c, (requests + 1) * sizeof *d->first);
	d->first[0] = 0;
	for (uint32_t o = 0; o < requests; o++)
		d->first[o + 1] = d->first[o] + (units_of(d, o) + chunk - 1) / chunk;
	d->run = CHUNK_RUN;
	if (threads > 1)
		d->run = skv_min(d->run, skv_max(1, d->first[requests] / (2 * (uint32_t)threads)));
	d->first_run = carve(c, (requests + 1) * sizeof *d->first_run);
	d->first_run[0] = 0;
	for (uint32_t o = 0; o < requests; o++)
		d->first_run[o + 1] = d->first_run[o] + (d->first[o + 1] - d->first[o] + d->run - 1) / d->run;
}

static void decode(struct decode_params *d, const struct skv_workspace *work)
{
	const struct skv_shape *sh = d->sh;
	struct carve c = carve_begin(work);

	split(d, &c, work->threads);
	const uint32_t requests = d->n * d->splits, heads = d->span * d->group, chunks = d->first[requests];
	d->part = carve(&c, chunks * partial_floats(sh, heads) * sizeof *d->part);
	if (d->scores && (d->scores->token || d->scores->page)) {
		d->raw_stride = (size_t)skv_pages_of(d->max_len) * SKV_PAGE_TOKENS;
		d->raw = carve(&c, (size_t)d->n * sh->n_heads * d->raw_stride * sizeof *d->raw);
		d->lse = carve(&c, (size_t)d->n * sh->n_heads * sizeof *d->lse);
	}
	skv_run(work->threads, d->first_run[requests], walk_run, d);
	/* from some tens of partial results on, a merge takes longer than waking threads */
	ISA(merge_partials)(d, chunks * heads >= 64 ? work->threads : 1);
	if (d->raw)
		ISA(reduce_scores)(d, work->threads);
}

/* Returns the number of sequences whose raw scores are held at a time, which bounds the workspace. */
static uint32_t scores_batch(const struct skv_shape *sh, uint32_t n, uint32_t max_len)
{
	size_t one = (size_t)sh->n_heads * skv_pages_of(max_len) * SKV_PAGE_TOKENS * sizeof(float);
	return one * n <= RAW_BYTES ? n : one <= RAW_BYTES ? (uint32_t)(RAW_BYTES / one) : 1;
}

size_t ISA(decode_bytes)(const struct skv_shape *sh, uint32_t n, uint32_t max_len)
{
	size_t tokens = (size_t)skv_pages_of(max_len) * SKV_PAGE_TOKENS;
	size_t chunks = (tokens + CHUNK - 1) / CHUNK;
	size_t requests = (size_t)n * sh->n_heads;
	/*
	 * This counts one request for each q head, the most that are possible. The partial results of a request with
	 * several heads take no more memory than those of as many requests.
	 */
	size_t part = partial_floats(sh, 1) * sizeof(float);
	size_t raw = sh->n_heads * tokens * sizeof(float);
	raw = raw * n <= RAW_BYTES ? raw * n : raw <= RAW_BYTES ? RAW_BYTES : raw;
	return carve_size(n * sizeof(uint32_t)) + 2 * carve_size((requests + 1) * sizeof(uint32_t)) +
	       carve_size(requests * chunks * part) + carve_size(raw) +
	       carve_size((size_t)n * sh->n_heads * sizeof(float));
}

/* Dense decode attention. If out is NULL, only the scores are computed. */
static void dense(const struct skv_shape *sh, const struct skv_batch *batch, const void *q, void *out,
                  const struct skv_scores *scores, const struct skv_workspace *work)
{
	uint32_t step = batch->n;
	if (scores && (scores->token || scores->page))
		step = scores_batch(sh, batch->n, batch->max_len);
	for (uint32_t i = 0; i < batch->n; i += step) {
		struct decode_params d = {.sh = sh, .seq = batch->seq + i, .n = skv_min(step, batch->n - i),
		                   .max_len = batch->max_len, .q = q, .out = out, .keys = !out};
		struct skv_scores part;
		if (scores) {
			part = *scores;
			part.token = scores->token ? scores->token + (size_t)i * scores->rows * scores->token_stride : NULL;
			part.page = scores->page ? scores->page + (size_t)i * scores->rows * scores->page_stride : NULL;
			part.lse = scores->lse ? scores->lse + (size_t)i * sh->n_heads : NULL;
			d.scores = &part;
		}
		decode(&d, work);
	}
}

void ISA(decode_dense)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q, void *out,
                       const struct skv_scores *scores, const struct skv_workspace *work)
{
	dense(sh, batch, q, out, scores, work);
}

void ISA(decode_window)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q, void *out,
                        const struct skv_window *window, const struct skv_workspace *work)
{
	decode(&(struct decode_params){.sh = sh, .seq = batch->seq, .n = batch->n, .max_len = batch->max_len, .q = q,
	                        .out = out, .source = KV_WINDOW, .window = window},
	       work);
}

void ISA(decode_pages)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q, void *out,
                       const struct skv_index_list *list, const struct skv_workspace *work)
{
	decode(&(struct decode_params){.sh = sh, .seq = batch->seq, .n = batch->n, .max_len = batch->max_len, .q = q,
	                        .out = out, .source = KV_PAGES, .list = list},
	       work);
}

void ISA(decode_tokens)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q, void *out,
                        const struct skv_index_list *list, const struct skv_workspace *work)
{
	decode(&(struct decode_params){.sh = sh, .seq = batch->seq, .n = batch->n, .max_len = batch->max_len, .q = q,
	                        .out = out, .source = KV_TOKENS, .list = list},
	       work);
}

/* Selects and attends in two passes, so the K rows of the selected tokens are read twice. */
void ISA(decode_topk)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q, void *out,
                        const struct skv_scores *scores, const struct skv_select *sel, struct skv_index_list *list,
                        const struct skv_workspace *work)
{
	struct skv_scores tokens = *scores;
	tokens.page = NULL;
	dense(sh, batch, q, NULL, &tokens, work);
	ISA(select)(sh, batch, &tokens, true, sel, list, work);
	ISA(decode_tokens)(sh, batch, q, out, list, work);
}
