/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/part.h - parts of a block (see values.h): which bytes of which pages they consist of, and how they are
 * sealed (sealed.h): with the tenant's key, for this part of a block with this name and this layout.
 */
#ifndef SKV_STORE_PART_H
#define SKV_STORE_PART_H

#include <sparsekv/types.h>
#include "daemon/store/client.h"
#include "daemon/store/sealed.h"
#include "daemon/store/values.h"

#define SKV_STORE_PART_OVERHEAD SKV_STORE_SEAL_OVERHEAD
#define SKV_STORE_PART_BYTES ((size_t)4 << 20) /* maximum of pages in a part; a larger page is a part by itself */

#define SKV_STORE_BLOCK_PAGES (SKV_BLOCK_TOKENS / SKV_PAGE_TOKENS) /* pages of rows per layer and block */

/* The bytes of a page that belong to a block. */
struct skv_store_piece {
	uint32_t table, page; /* in the sequence */
	uint32_t offset, bytes; /* in the page: the whole page if it has rows */
	uint64_t listed;      /* index of the page in the job's list */
};

/*
 * Layout of blocks: layer by layer, pages of K and V, or records of codes and then of references. A page of records may
 * also contain records of the previous block. Each part of a block consists of consecutive pieces, as many as fit.
 *
 * The list of a sequence (PUT) has its entries, table by table. The list of pages for incoming blocks (GET) is in the
 * order of pieces: a page is listed where its first bytes are.
 */
struct skv_store_cut {
	const struct skv_model *model;
	const struct skv_made *made;
	uint32_t table_entries; /* PUT: entries per table in the list; GET: 0 */
	uint64_t page_bytes;
	size_t most_bytes; /* maximum of a part */
	/* of the current block */
	uint32_t block, n_pieces, n_parts;
	struct skv_store_piece *piece; /* [n_pieces] */
	uint32_t *first;   /* [n_parts + 1]: part i begins at piece first[i] */
	uint64_t listed;   /* GET: pages listed before the next one */
};

/*
 * `made` must have been checked (skv_made_check()); both pointers are borrowed. Selects block 0. Returns 0;
 * -EOPNOTSUPP: a page does not fit into a value; -ENOMEM.
 */
int skv_store_cut_init(struct skv_store_cut *, const struct skv_model *, const struct skv_made *made, uint32_t table_entries);
void skv_store_cut_free(struct skv_store_cut *);
/* Selects the block that the layout describes. */
void skv_store_cut_to(struct skv_store_cut *, uint32_t block);
size_t skv_store_cut_bytes(const struct skv_store_cut *, uint32_t part);

#define SKV_STORE_PART_KEY 88u /* bytes of a part's key in the store, including NUL */
void skv_store_part_key(const uint8_t name[SKV_STORE_NAME], uint32_t part, char ret[SKV_STORE_PART_KEY]);

/* Identity of a part: authenticated as additional data. */
struct __attribute__((packed)) skv_store_identity {
	uint8_t name[SKV_STORE_NAME];
	uint32_t part, n_parts;
	uint64_t bytes, page_bytes;
	uint32_t n_layers;
};
struct skv_store_identity skv_store_part_identify(const struct skv_store_cut *, const uint8_t name[SKV_STORE_NAME], uint32_t part);

/* `value` has room for skv_store_cut_bytes() + SKV_STORE_PART_OVERHEAD. False: OpenSSL failed. */
bool skv_store_part_seal(const struct skv_store_cipher *, const struct skv_store_cut *, const uint8_t name[SKV_STORE_NAME], uint32_t part,
                         const void *pages, uint8_t *value);
/* False: the value is not valid for this part; `pages` is then undefined. */
bool skv_store_part_open(const struct skv_store_cipher *, const struct skv_store_cut *, const uint8_t name[SKV_STORE_NAME], uint32_t part,
                         const void *value, size_t bytes, void *pages);

#endif
