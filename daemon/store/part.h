/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/part.h - parts of a block, as values.h says: which bytes of which pages are in them, and how they are sealed (sealed.h): with
 * the tenant's key, for this part of a block of this name, cut like this one.
 */
#ifndef SKV_STORE_PART_H
#define SKV_STORE_PART_H

#include <sparsekv/types.h>
#include "daemon/store/client.h"
#include "daemon/store/sealed.h"
#include "daemon/store/values.h"

#define SKV_STORE_PART_OVERHEAD SKV_STORE_SEAL_OVERHEAD
#define SKV_STORE_PART_BYTES ((size_t)4 << 20) /* of pages, at most; a page that is larger is a part by itself */

#define SKV_STORE_BLOCK_PAGES (SKV_BLOCK_TOKENS / SKV_PAGE_TOKENS) /* of a layer, of rows */

/* Bytes of a page that are a block's. */
struct skv_store_piece {
	uint32_t table, page; /* of the sequence */
	uint32_t offset, bytes; /* in the page: all of it, if it has rows */
	uint64_t listed;      /* the page's number in the job's list */
};

/*
 * How blocks are cut: layer by layer pages of K and V, or records of codes and then of references. A page of records may have
 * some of the block before, too. The parts of a block are pieces one after the other, as many as fit.
 *
 * A sequence's list (PUT) has its entries, table by table. A list of pages for blocks that come (GET) has them in the order of pieces: a page
 * stands where its first bytes do.
 */
struct skv_store_cut {
	const struct skv_model *model;
	const struct skv_made *made;
	uint32_t table_entries; /* PUT: of each table in the list; GET: 0 */
	uint64_t page_bytes;
	size_t most_bytes; /* of a part */
	/* of a block */
	uint32_t block, n_pieces, n_parts;
	struct skv_store_piece *piece; /* [n_pieces] */
	uint32_t *first;   /* [n_parts + 1]: of part i begin at pieces first[i] */
	uint64_t listed;   /* GET: pages that stand before the next one */
};

/*
 * `made` was checked (skv_made_check()); both are borrowed. 0; -EOPNOTSUPP: a page does not fit into a value; -ENOMEM. It is of block 0 then.
 */
int skv_store_cut_init(struct skv_store_cut *, const struct skv_model *, const struct skv_made *made, uint32_t table_entries);
void skv_store_cut_free(struct skv_store_cut *);
/* All that follows is of this block. */
void skv_store_cut_to(struct skv_store_cut *, uint32_t block);
size_t skv_store_cut_bytes(const struct skv_store_cut *, uint32_t part);

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
