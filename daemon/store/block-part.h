/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/block-part.h - parts of a block of a sealed prefix (see values.h): which bytes of which pages a part
 * consists of, and how it is sealed (sealed-value.h): with the tenant's key, bound to the block's name and layout and
 * the part's number.
 */
#ifndef SKV_STORE_BLOCK_PART_H
#define SKV_STORE_BLOCK_PART_H

#include <sparsekv/types.h>
#include "daemon/store/client.h"
#include "daemon/store/sealed-value.h"
#include "daemon/store/values.h"

#define SKV_STORE_PART_OVERHEAD SKV_STORE_SEAL_OVERHEAD
#define SKV_STORE_PART_BYTES ((size_t)4 << 20) /* maximum size of a part; a page larger than this is a part by itself */

#define SKV_STORE_BLOCK_PAGES (SKV_BLOCK_TOKENS / SKV_PAGE_TOKENS) /* pages of K and V rows per layer and block */

/* The bytes of a page that belong to a block. */
struct skv_store_piece {
	uint32_t table, page; /* page table of the sequence, and index of the page in it */
	uint32_t offset, bytes; /* range of bytes in the page; the whole page if it has rows of K and V */
	uint64_t listed;      /* index of the page in the job's list */
};

/*
 * Splits blocks into pieces and parts. A block consists of pieces, layer by layer: its pages of K and V rows, then, if
 * the layer is compressed, its records of codes and of references. A page of records may also contain records of
 * earlier blocks. A part of a block consists of consecutive pieces, as many as fit.
 *
 * The list of a PUT job has the page table entries of the sequence, table by table. The list of a GET job has the pages
 * for the blocks to be read, in the order of pieces: a page is listed at the piece that has its first bytes.
 */
struct skv_store_cut {
	const struct skv_model *model;
	const struct skv_made *made;
	uint32_t table_entries; /* PUT: number of entries of each page table in the list; GET: 0 */
	uint64_t page_bytes;
	size_t most_bytes; /* maximum size of a part in bytes */
	/* pieces and parts of the current block */
	uint32_t block, n_pieces, n_parts;
	struct skv_store_piece *piece; /* [n_pieces] */
	uint32_t *first;   /* [n_parts + 1]: part i begins at piece first[i] */
	uint64_t listed;   /* GET: index in the list of the next page to be assigned to a piece */
};

/*
 * Initializes the struct for blocks of this model and selects block 0. `made` must have been checked
 * (skv_made_check()); both pointers are borrowed. Returns 0; -EOPNOTSUPP: a page does not fit into a value; -ENOMEM.
 */
int skv_store_cut_init(struct skv_store_cut *, const struct skv_model *, const struct skv_made *made, uint32_t table_entries);
void skv_store_cut_free(struct skv_store_cut *);
/* Makes this block the current one: computes its pieces and parts. */
void skv_store_cut_to(struct skv_store_cut *, uint32_t block);
/* Returns the number of bytes of a part of the current block. */
size_t skv_store_cut_bytes(const struct skv_store_cut *, uint32_t part);

#define SKV_STORE_PART_KEY 88u /* bytes of a part's key in the store, including NUL */
void skv_store_part_key(const uint8_t name[SKV_STORE_NAME], uint32_t part, char ret[SKV_STORE_PART_KEY]);

/* Identity of a part, which sealing authenticates as additional data. */
struct __attribute__((packed)) skv_store_identity {
	uint8_t name[SKV_STORE_NAME];
	uint32_t part, n_parts;
	uint64_t bytes, page_bytes;
	uint32_t n_layers;
};
struct skv_store_identity skv_store_part_identify(const struct skv_store_cut *, const uint8_t name[SKV_STORE_NAME], uint32_t part);

/* Seals a part. `value` has room for skv_store_cut_bytes() + SKV_STORE_PART_OVERHEAD bytes. False: OpenSSL failed. */
bool skv_store_part_seal(const struct skv_store_cipher *, const struct skv_store_cut *, const uint8_t name[SKV_STORE_NAME], uint32_t part,
                         const void *pages, uint8_t *value);
/*
 * Verifies and decrypts the value of a part. False: it is not valid for this part, and `pages` has undefined contents.
 */
bool skv_store_part_open(const struct skv_store_cipher *, const struct skv_store_cut *, const uint8_t name[SKV_STORE_NAME], uint32_t part,
                         const void *value, size_t bytes, void *pages);

#endif
