/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/records.h - computes in which pages the compressed tokens of a sealed prefix are, from a layer's form (struct
 * skv_form) and the number of tokens alone, by the rules of kernels/compress.h. For code that knows the form of a layer
 * but not the policy's compression plan, such as the daemon.
 *
 * In a layer with a form, all tokens are compressed except those of the first `form.first` pages. A layer without a
 * form stores uncompressed rows of K and V.
 */
#ifndef SKV_RECORDS_H
#define SKV_RECORDS_H

#include <sparsekv/policy.h>
#include "common/seqmem.h"

#define SKV_RECORD_UNIT 16u /* bytes of which record sizes are multiples */

/* Returns the number of records that the first n tokens have in a table of codes or references. */
static inline uint32_t skv_form_records(const struct skv_form *f, enum skv_page_kind kind, uint32_t n_kv_heads, uint32_t n)
{
	const uint32_t first = f->first * SKV_PAGE_TOKENS, more = n > first ? n - first : 0;
	/* reference tokens after the tokens of the first pages; the tokens of the first pages are all references */
	const uint32_t refs = f->stride ? (more + f->stride - 1u) / f->stride : 0;

	if (kind == SKV_PAGES_REFS)
		return f->stride ? n - more + refs : 0;
	return f->kind == SKV_COMPRESS_QUANT ? n / SKV_QUANT_BLOCK * n_kv_heads : more - refs;
}

/* Returns the bytes of a record, and (the next function) the number of records that fit in a page. */
static inline uint32_t skv_form_record_bytes(const struct skv_form *f, enum skv_page_kind kind)
{
	return (kind == SKV_PAGES_REFS ? f->ref_size : f->code_size) * SKV_RECORD_UNIT;
}
static inline uint32_t skv_form_records_in_page(const struct skv_form *f, enum skv_page_kind kind, uint64_t page_bytes)
{
	const uint32_t bytes = skv_form_record_bytes(f, kind);

	return bytes ? (uint32_t)(page_bytes / bytes) : 1;
}

/* Returns the number of pages that the first n tokens use in a table of K and V, codes or references. */
static inline uint32_t skv_form_pages(const struct skv_form *f, enum skv_page_kind kind, uint32_t n_kv_heads, uint64_t page_bytes, uint32_t n)
{
	const uint32_t pages = skv_pages_of(n), each = skv_form_records_in_page(f, kind, page_bytes);

	if (kind == SKV_PAGES_KV)
		return f->kind && f->first < pages ? f->first : pages;
	return f->kind ? (skv_form_records(f, kind, n_kv_heads, n) + each - 1) / each : 0;
}

/*
 * A block of a sealed prefix has fewer than this number of pages with records in a table: new pages, and one page that
 * an earlier block has begun to fill.
 */
#define SKV_MADE_BLOCK_PIECES 65u

/*
 * Returns the number of entries that the first n tokens of a sealed prefix have in this page table. A table whose pages
 * do not hold tokens has 0 entries.
 */
static inline uint32_t skv_made_entries(const struct skv_made *made, const struct skv_model *m, uint32_t table, uint32_t n)
{
	const enum skv_page_kind kind = skv_table_page_kind(m->n_layers, table);

	if (kind == SKV_PAGES_KV)
		return skv_pages_of(n); /* entries of compressed tokens are holes, and count */
	if (!skv_page_kind_holds_tokens(kind))
		return 0;
	return skv_form_pages(&made->form[skv_table_layer(m->n_layers, table)], kind, m->n_kv_heads, skv_page_bytes(m), n);
}

/* Returns the number of pages that the first n tokens of a sealed prefix use in all page tables of all layers. */
static inline uint64_t skv_made_pages(const struct skv_made *made, const struct skv_model *m, uint32_t n)
{
	uint64_t pages = 0;

	for (uint32_t layer = 0; layer < m->n_layers; layer++)
		for (int kind = SKV_PAGES_KV; kind <= SKV_PAGES_REFS; kind++)
			if (skv_page_kind_holds_tokens((enum skv_page_kind)kind))
				pages += skv_form_pages(&made->form[layer], (enum skv_page_kind)kind, m->n_kv_heads, skv_page_bytes(m), n);
	return pages;
}

#endif
