/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/block-index.h - which sealed prefixes have a block: an entry for each block of each prefix.
 *
 * A hash table of lists. Prefixes that begin alike have entries with the same key, so that when one is removed the
 * others are still found. Keys are hashes already, so their first bytes serve as the hash. Owners are numbers or
 * addresses chosen by the caller.
 */
#ifndef SKV_CORE_BLOCK_INDEX_H
#define SKV_CORE_BLOCK_INDEX_H

#include "common/seqmem.h"

struct skv_block_index {
	struct skv_block_entry {
		struct skv_block_key key;
		uintptr_t owner;
		uint32_t at; /* number of the block */
		uint32_t next; /* in the hash list, or in the free list */
	} *entry;
	uint32_t *list; /* [cap] */
	uint32_t cap, free, n_free; /* cap: a power of two */
};
/* Charge for a block of a prefix: its entry, and the owner's copy of the key. */
#define SKV_BLOCK_BYTES (sizeof(struct skv_block_entry) + sizeof(struct skv_block_key))
#define SKV_BLOCK_INDEX_NULL {.entry = NULL}

/* Enters the owner's n blocks, the first blocks of a prompt. -ENOMEM: none is entered. */
int skv_block_index_add(struct skv_block_index *, uintptr_t owner, const struct skv_block_key *keys, uint32_t n);
void skv_block_index_remove(struct skv_block_index *, uintptr_t owner, const struct skv_block_key *keys, uint32_t n);
void skv_block_index_deinit(struct skv_block_index *);

/* The next owner whose block number `at` has this key; *cursor starts at 0. False: no more. */
bool skv_block_index_next(const struct skv_block_index *, const struct skv_block_key *, uint32_t at, uint32_t *cursor, uintptr_t *ret_owner);

#endif
