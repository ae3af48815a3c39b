/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/part.h - parts of a block, as values.h says: which pages are in them, and how they are sealed (sealed.h): with the tenant's
 * key, for this part of a block of this name, cut like this one.
 */
#ifndef SKV_STORE_PART_H
#define SKV_STORE_PART_H

#include <sparsekv/types.h>
#include "daemon/store/client.h"
#include "daemon/store/sealed.h"
#include "daemon/store/values.h"

#define SKV_STORE_PART_OVERHEAD SKV_STORE_SEAL_OVERHEAD
#define SKV_STORE_PART_BYTES ((size_t)4 << 20) /* of pages, at most; a page that is larger is a part by itself */

#define SKV_STORE_BLOCK_PAGES (SKV_BLOCK_TOKENS / SKV_PAGE_TOKENS) /* of a layer */
#define SKV_STORE_MAX_PART_PAGES (SKV_MAX_LAYERS * SKV_STORE_BLOCK_PAGES)

/* How blocks are cut. Page number p of a block is page p % SKV_STORE_BLOCK_PAGES of layer p / SKV_STORE_BLOCK_PAGES. */
struct skv_store_cut {
	uint32_t n_layers, n_pages; /* of a block */
	uint64_t page_bytes;
	uint32_t part_pages, n_parts; /* part i begins with page i * part_pages */
};

/* n_layers up to SKV_MAX_LAYERS. False: a page does not fit into a value. */
bool skv_store_cut_init(struct skv_store_cut *, uint32_t n_layers, uint64_t page_bytes);
/* Of this part. */
uint32_t skv_store_cut_pages(const struct skv_store_cut *, uint32_t part);
static inline size_t skv_store_cut_bytes(const struct skv_store_cut *c, uint32_t part)
{
	return skv_store_cut_pages(c, part) * c->page_bytes;
}

#define SKV_STORE_PART_KEY 88u /* bytes of its key in the store, NUL included */
void skv_store_part_key(const uint8_t name[SKV_STORE_NAME], uint32_t part, char ret[SKV_STORE_PART_KEY]);

/* What a part is: authenticated with it. */
struct __attribute__((packed)) skv_store_identity {
	uint8_t name[SKV_STORE_NAME];
	uint32_t part, n_parts;
	uint64_t bytes, page_bytes;
	uint32_t n_layers;
};
struct skv_store_identity skv_store_part_identify(const struct skv_store_cut *, const uint8_t name[SKV_STORE_NAME], uint32_t part);

/* `value` has room for skv_store_cut_bytes() and SKV_STORE_PART_OVERHEAD. False: OpenSSL cannot. */
bool skv_store_part_seal(const struct skv_store_cipher *, const struct skv_store_cut *, const uint8_t name[SKV_STORE_NAME], uint32_t part,
                         const void *pages, uint8_t *value);
/* False: it is not what was sealed, whatever is in `pages` now. */
bool skv_store_part_open(const struct skv_store_cipher *, const struct skv_store_cut *, const uint8_t name[SKV_STORE_NAME], uint32_t part,
                         const void *value, size_t bytes, void *pages);

#endif
