/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/part.h"

#include <stdio.h>
#include <string.h>

#define MAGIC "SKVPART1"

bool skv_store_cut_init(struct skv_store_cut *c, uint32_t n_layers, uint64_t page_bytes)
{
	if (page_bytes > SKV_STORE_MAX_VALUE - SKV_STORE_PART_OVERHEAD)
		return false;
	*c = (struct skv_store_cut){.n_layers = n_layers, .n_pages = n_layers * SKV_STORE_BLOCK_PAGES, .page_bytes = page_bytes};
	c->part_pages = page_bytes > SKV_STORE_PART_BYTES ? 1 : (uint32_t)(SKV_STORE_PART_BYTES / page_bytes);
	if (c->part_pages > c->n_pages)
		c->part_pages = c->n_pages;
	c->n_parts = (c->n_pages + c->part_pages - 1) / c->part_pages;
	return true;
}

uint32_t skv_store_cut_pages(const struct skv_store_cut *c, uint32_t part)
{
	const uint32_t left = c->n_pages - part * c->part_pages;

	return left < c->part_pages ? left : c->part_pages;
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
	                                .n_layers = c->n_layers};

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
