/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/block-part.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/records.h"

#define MAGIC "SKVPART1"

static const enum skv_page_kind kinds[] = {SKV_PAGES_KV, SKV_PAGES_CODES, SKV_PAGES_REFS};

static uint32_t pages_of(const struct skv_store_cut *c, uint32_t layer, enum skv_page_kind kind, uint32_t n_blocks)
{
	return skv_form_pages(&c->made->form[layer], kind, c->model->n_kv_heads, c->page_bytes, n_blocks * SKV_BLOCK_TOKENS);
}

/* Returns how many pages of this kind the layer needs for the block and did not need for the blocks before it. */
static uint32_t new_pages(const struct skv_store_cut *c, uint32_t layer, enum skv_page_kind kind, uint32_t block)
{
	return pages_of(c, layer, kind, block + 1) - pages_of(c, layer, kind, block);
}

/* Returns the index in a GET job's list of a page whose first bytes belong to a block before the current one. */
static uint64_t listed_before(const struct skv_store_cut *c, uint32_t layer, enum skv_page_kind kind, uint32_t page)
{
	uint32_t block = c->block;
	uint64_t n;

	while (pages_of(c, layer, kind, block) > page)
		block--;
	n = skv_made_pages(c->made, c->model, block * SKV_BLOCK_TOKENS) + page - pages_of(c, layer, kind, block);
	for (uint32_t l = 0; l <= layer; l++)
		for (size_t k = 0; k < 3 && (l < layer || kinds[k] != kind); k++)
			n += new_pages(c, l, kinds[k], block);
	return n;
}

static void add_piece(struct skv_store_cut *c, uint32_t layer, enum skv_page_kind kind, uint32_t page, uint32_t offset, uint32_t bytes)
{
	const uint32_t table = skv_table(c->model->n_layers, kind, layer);
	uint64_t listed = (uint64_t)table * c->table_entries + page;

	if (c->table_entries == 0)
		listed = offset ? listed_before(c, layer, kind, page) : c->listed++;
	c->piece[c->n_pieces++] = (struct skv_store_piece){table, page, offset, bytes, listed};
}

static void cut_rows(struct skv_store_cut *c, uint32_t layer)
{
	for (uint32_t page = pages_of(c, layer, SKV_PAGES_KV, c->block), end = pages_of(c, layer, SKV_PAGES_KV, c->block + 1); page < end; page++)
		add_piece(c, layer, SKV_PAGES_KV, page, 0, (uint32_t)c->page_bytes);
}

static void cut_records(struct skv_store_cut *c, uint32_t layer, enum skv_page_kind kind)
{
	const struct skv_form *f = &c->made->form[layer];
	const uint32_t each = skv_form_records_in_page(f, kind, c->page_bytes), bytes = skv_form_record_bytes(f, kind);
	const uint32_t heads = c->model->n_kv_heads, end = skv_form_records(f, kind, heads, (c->block + 1) * SKV_BLOCK_TOKENS);

	for (uint32_t at = skv_form_records(f, kind, heads, c->block * SKV_BLOCK_TOKENS), n; at < end; at += n) {
		n = each - at % each < end - at ? each - at % each : end - at;
		add_piece(c, layer, kind, at / each, at % each * bytes, n * bytes);
	}
}

void skv_store_cut_to(struct skv_store_cut *c, uint32_t block)
{
	size_t bytes = 0;

	if (block == c->block && c->n_pieces > 0)
		return;
	c->block = block;
	c->n_pieces = 0;
	c->listed = skv_made_pages(c->made, c->model, block * SKV_BLOCK_TOKENS);
	for (uint32_t layer = 0; layer < c->model->n_layers; layer++) {
		cut_rows(c, layer);
		if (c->made->form[layer].kind) {
			cut_records(c, layer, SKV_PAGES_CODES);
			cut_records(c, layer, SKV_PAGES_REFS);
		}
	}
	c->n_parts = 0;
	for (uint32_t i = 0; i < c->n_pieces; i++) {
		if (i == 0 || bytes + c->piece[i].bytes > c->most_bytes) {
			c->first[c->n_parts++] = i;
			bytes = 0;
		}
		bytes += c->piece[i].bytes;
	}
	c->first[c->n_parts] = c->n_pieces;
}

int skv_store_cut_init(struct skv_store_cut *c, const struct skv_model *m, const struct skv_made *made, uint32_t table_entries)
{
	const uint64_t page_bytes = skv_page_bytes(m);
	const size_t most = (size_t)m->n_layers * (SKV_STORE_BLOCK_PAGES + 2 * SKV_MADE_BLOCK_PIECES);

	if (page_bytes > SKV_STORE_MAX_VALUE - SKV_STORE_PART_OVERHEAD)
		return -EOPNOTSUPP;
	*c = (struct skv_store_cut){.model = m, .made = made, .table_entries = table_entries, .page_bytes = page_bytes};
	c->most_bytes = page_bytes > SKV_STORE_PART_BYTES ? page_bytes : SKV_STORE_PART_BYTES;
	c->piece = malloc(most * sizeof(*c->piece));
	c->first = malloc((most + 1) * sizeof(*c->first));
	if (!c->piece || !c->first) {
		skv_store_cut_free(c);
		return -ENOMEM;
	}
	skv_store_cut_to(c, 0);
	return 0;
}

void skv_store_cut_free(struct skv_store_cut *c)
{
	free(c->piece);
	free(c->first);
	c->piece = NULL;
	c->first = NULL;
}

size_t skv_store_cut_bytes(const struct skv_store_cut *c, uint32_t part)
{
	size_t bytes = 0;

	for (uint32_t i = c->first[part]; i < c->first[part + 1]; i++)
		bytes += c->piece[i].bytes;
	return bytes;
}

void skv_store_part_key(const uint8_t name[SKV_STORE_NAME], uint32_t part, char ret[SKV_STORE_PART_KEY])
{
	char hex[2 * SKV_STORE_NAME + 1];

	for (uint32_t i = 0; i < SKV_STORE_NAME; i++)
		snprintf(hex + 2 * (size_t)i, 3, "%02x", name[i]);
	snprintf(ret, SKV_STORE_PART_KEY, "sparsekv:%s:%u", hex, part);
}

struct skv_store_identity skv_store_part_identify(const struct skv_store_cut *c, const uint8_t name[SKV_STORE_NAME], uint32_t part)
{
	struct skv_store_identity id = {.part = part, .n_parts = c->n_parts, .bytes = skv_store_cut_bytes(c, part), .page_bytes = c->page_bytes,
	                                .n_layers = c->model->n_layers};

	memcpy(id.name, name, sizeof(id.name));
	return id;
}

bool skv_store_part_seal(const struct skv_store_cipher *cipher, const struct skv_store_cut *c, const uint8_t name[SKV_STORE_NAME],
                         uint32_t part, const void *pages, uint8_t *value)
{
	const struct skv_store_identity id = skv_store_part_identify(c, name, part);

	return skv_store_seal(cipher, MAGIC, (struct skv_store_about){&id, sizeof(id)}, pages, skv_store_cut_bytes(c, part), value);
}

bool skv_store_part_open(const struct skv_store_cipher *cipher, const struct skv_store_cut *c, const uint8_t name[SKV_STORE_NAME],
                         uint32_t part, const void *value, size_t n_value, void *pages)
{
	const struct skv_store_identity id = skv_store_part_identify(c, name, part);

	return n_value == skv_store_cut_bytes(c, part) + SKV_STORE_PART_OVERHEAD &&
	       skv_store_unseal(cipher, MAGIC, (struct skv_store_about){&id, sizeof(id)}, value, n_value, pages);
}
