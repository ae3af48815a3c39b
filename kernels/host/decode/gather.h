/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/decode/gather.h - the tokens of a chunk, as addresses of their K rows. The kinds of decode attention
 * (dense, window, pages, tokens) differ in nothing else. For decode.c alone, which has it inline.
 */
#ifndef SKV_HOST_GATHER_H
#define SKV_HOST_GATHER_H

#include "kernels/host/decode/params.h"
#include "kernels/host/decode/tile.h"

/* Pages of a window: those with sinks, then those from the window's start on that are not among them. */
static uint32_t window_gap(const struct decode_params *d, uint32_t i, uint32_t *ret_head)
{
	uint32_t head = skv_pages_of(skv_min(d->window->sinks, d->seq[i].len));
	*ret_head = head;
	return skv_max(head, d->start[i] / SKV_PAGE_TOKENS) - head;
}

/* Which of all lists a request reads. */
static size_t list_of(const struct decode_params *d, uint32_t request)
{
	return request - request % d->splits + skv_index_list_row(d->list, request % d->splits);
}

/* Units (pages, or tokens for a token list) that a request attends to. */
static uint32_t units_of(const struct decode_params *d, uint32_t request)
{
	uint32_t i = request / d->splits, head, pages = skv_pages_of(d->seq[i].len);
	switch (d->source) {
	case KV_WINDOW:
		return pages - window_gap(d, i, &head);
	case KV_PAGES:
	case KV_TOKENS:
		return d->list->count[list_of(d, request)];
	default:
		return pages;
	}
}

/* Tokens of a page, the last one listed or not. If a list has a partial page, that is the last one. */
static uint32_t tokens_of(const struct decode_params *d, const struct skv_kseq *s, uint32_t page, bool last)
{
	if (d->list && d->list->last_partial)
		return last ? (s->len - 1) % SKV_PAGE_TOKENS + 1 : SKV_PAGE_TOKENS;
	return skv_min(SKV_PAGE_TOKENS, s->len - page * SKV_PAGE_TOKENS);
}

/* Tokens of a sequence that are quantized. */
static uint32_t quantized_tokens(const struct decode_params *d, const struct skv_kseq *s)
{
	return d->sh->codec && d->sh->codec->kind == SKV_COMPRESS_QUANT ? s->n_compressed : 0;
}

/* What is listed of tokens: addresses of kv head 0's K rows, and of fp8 of their scales (else NULL). */
struct gathered {
	const uint8_t **row, **scale;
};

static inline void gather_row(const struct decode_params *d, const struct gathered *to, uint32_t n, const uint8_t *page, uint32_t slot)
{
	to->row[n] = page + slot * d->row_bytes;
	if (to->scale)
		to->scale[n] = page + d->scales_at + slot;
}

/* The tokens of page `page` that are attended to, rows NULL if quantized, as number n and on; returns how many. */
static uint32_t gather_page(const struct decode_params *d, uint32_t i, const skv_pte *table, uint32_t page, bool last,
                            const struct gathered *to, uint32_t n)
{
	const struct skv_kseq *s = &d->seq[i];
	const uint32_t first = page * SKV_PAGE_TOKENS, begin = n;
	if (first < quantized_tokens(d, s)) {
		for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t++)
			to->row[n + t] = NULL;
		return SKV_PAGE_TOKENS;
	}
	if (first >= s->len || !skv_pte_resident(table[page]))
		return 0;
	const uint8_t *k = skv_page_k(d->sh, table[page], 0);
	uint32_t end = tokens_of(d, s, page, last);
	if (d->source != KV_WINDOW) {
		UNROLL
		for (uint32_t t = 0; t < SKV_PAGE_TOKENS; t++)
			gather_row(d, to, n + t, k, t);
		return end;
	}
	for (uint32_t t = 0; t < end; t++) {
		gather_row(d, to, n, k, t);
		n += first + t < d->window->sinks || first + t >= d->start[i];
	}
	return n - begin;
}

/* Prefetch what gather() is about to read of a request's list and page table: it was last used a whole step ago. */
static void prefetch_lists(const struct decode_params *d, uint32_t request, uint32_t chunk, uint32_t chunks)
{
	const skv_pte *table = skv_layer_table(d->sh, &d->seq[request / d->splits]);
	uint32_t from, to, end, units = units_of(d, request);
	decode_chunk(d, request, chunk, units, &from, &end);
	decode_chunk(d, request, chunk + chunks - 1, units, &end, &to);
	if (d->list) {
		const uint32_t *ids = d->list->ids + list_of(d, request) * d->list->stride;
		for (uint32_t u = from; u < to; u += 16)
			prefetch_line((const uint8_t *)(ids + u));
		if (d->source == KV_TOKENS) {
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

/* The tokens of a chunk, up to CHUNK of them; returns how many. */
static uint32_t gather(const struct decode_params *d, uint32_t request, uint32_t chunk, const struct gathered *to)
{
	const uint32_t i = request / d->splits;
	const struct skv_kseq *s = &d->seq[i];
	const skv_pte *table = skv_layer_table(d->sh, s);
	const uint32_t *ids = d->list ? d->list->ids + list_of(d, request) * d->list->stride : NULL;
	const uint32_t units = units_of(d, request);
	uint32_t from, end, n = 0, head = 0, gap = 0;

	decode_chunk(d, request, chunk, units, &from, &end);
	if (d->source == KV_TOKENS) {
		for (uint32_t u = from; u < end; u++) {
			uint32_t t = ids[u];
			if (t >= s->len || !skv_pte_resident(table[t / SKV_PAGE_TOKENS]))
				continue;
			gather_row(d, to, n++, skv_page_k(d->sh, table[t / SKV_PAGE_TOKENS], 0), t % SKV_PAGE_TOKENS);
		}
		return n;
	}
	if (d->source == KV_WINDOW)
		gap = window_gap(d, i, &head);
	for (uint32_t u = from; u < end; u++) {
		uint32_t page = ids ? ids[u] : d->source == KV_WINDOW && u >= head ? u + gap : u;
		n += gather_page(d, i, table, page, u + 1 == units, to, n);
	}
	return n;
}

#endif
