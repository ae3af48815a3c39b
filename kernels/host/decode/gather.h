/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/decode/gather.h - lists the tokens of a chunk as addresses of their K rows. The kinds of decode
 * attention (dense, window, pages, tokens) differ only in which tokens are listed. Only decode.c includes this file, so
 * that its functions are inlined.
 */
#ifndef SKV_HOST_GATHER_H
#define SKV_HOST_GATHER_H

#include "kernels/host/decode/params.h"
#include "kernels/host/decode/tile.h"

/*
 * Returns the number of pages between the two parts of a sequence's window, which are the first *ret_head pages (with
 * the sinks) and the pages from the start of the window's recent part on.
 */
static uint32_t window_gap(const struct decode_params *d, uint32_t i, uint32_t *ret_head)
{
	uint32_t head = skv_pages_of(skv_min(d->window->sinks, d->seq[i].len));
	*ret_head = head;
	return skv_max(head, d->start[i] / SKV_PAGE_TOKENS) - head;
}

/* Returns the index of the list that a request reads, among all lists of the batch. */
static size_t list_of(const struct decode_params *d, uint32_t request)
{
	return request - request % d->splits + skv_index_list_row(d->list, request % d->splits);
}

/* Returns the number of units that a request attends to: tokens with a list of tokens, else pages. */
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

/*
 * Returns the number of tokens of a page. `last`: the page is the last one listed, which is the partial page if the
 * list has one.
 */
static uint32_t tokens_of(const struct decode_params *d, const struct skv_kseq *s, uint32_t page, bool last)
{
	if (d->list && d->list->last_partial)
		return last ? (s->len - 1) % SKV_PAGE_TOKENS + 1 : SKV_PAGE_TOKENS;
	return skv_min(SKV_PAGE_TOKENS, s->len - page * SKV_PAGE_TOKENS);
}

/* Returns the number of tokens of a sequence that are stored quantized. */
static uint32_t quantized_tokens(const struct decode_params *d, const struct skv_kseq *s)
{
	return d->sh->codec && d->sh->codec->kind == SKV_COMPRESS_QUANT ? s->n_compressed : 0;
}

/*
 * The output of gather(): addresses of the tokens' K rows for kv head 0 and, with fp8, of the scales of these rows
 * (else scale is NULL).
 */
struct gathered {
	const uint8_t **row, **scale;
};

static inline void gather_row(const struct decode_params *d, const struct gathered *to, uint32_t n, const uint8_t *page, uint32_t slot)
{
	to->row[n] = page + slot * d->row_bytes;
	if (to->scale)
		to->scale[n] = page + d->scales_at + slot;
}

/*
 * Appends the tokens of page `page` to which the request attends, from entry n on; a quantized token has NULL as its
 * row. Returns the number of tokens.
 */
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

/*
 * Prefetches the parts of a request's list and page table that gather() will read, because they were last used a step
 * ago.
 */
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

/* Lists the tokens of a chunk (at most CHUNK) in *to; returns their number. */
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
