/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/state/block-index.h - finds the sealed prefix that shares most blocks with a prompt.
 *
 * A hash table of block keys. The first 64 blocks of a prefix have an entry each, later ones every 64th: so adding,
 * removing and finding a prefix of a million tokens takes a fraction of a millisecond. The blocks between two entries
 * are compared with the owner's own array of keys. A key follows from all tokens up to the end of its block, so an
 * owner that has block n of a prompt has all blocks before it, and the longest match is found by bisection.
 *
 * Owners are numbers or addresses of the caller. Keys are hashes already; their first bytes choose the bucket.
 */
#ifndef SKV_CORE_BLOCK_INDEX_H
#define SKV_CORE_BLOCK_INDEX_H

#include "common/seqmem.h"
#include "common/wire.h"

/* The name of a prefix whose last block has this key. Clients cannot give such a name. */
void skv_prefix_name(const struct skv_block_key *, char ret[SKV_NAME_MAX]);

struct skv_block_index {
	struct skv_block_entry {
		struct skv_block_key key;
		uintptr_t owner;
		uint32_t at;   /* number of the block */
		uint32_t next; /* in its bucket, or in the list of free entries */
	} *entry;         /* [cap] */
	uint32_t *bucket; /* [cap], n_buckets in use: the first entry of each */
	uint32_t cap, n_buckets;
	uint32_t n_used; /* entries that were ever used */
	uint32_t free, n_free;
};
#define SKV_BLOCK_INDEX_NULL {.entry = NULL}

/* Bytes that an owner of n blocks is charged for: its array of keys, and its entries. */
static inline uint64_t skv_block_index_bytes(uint32_t n)
{
	const uint32_t entries = n <= 64 ? n : 64 + (n - 1) / 64;

	return n * sizeof(struct skv_block_key) + entries * sizeof(struct skv_block_entry);
}

/* Add an owner of the first n blocks of a prompt. -ENOMEM: nothing was added. */
int skv_block_index_add(struct skv_block_index *, uintptr_t owner, const struct skv_block_key *keys, uint32_t n);
/* Remove it. keys and n as they were added. */
void skv_block_index_remove(struct skv_block_index *, uintptr_t owner, const struct skv_block_key *keys, uint32_t n);
void skv_block_index_deinit(struct skv_block_index *);

/* What the caller knows of its owners. */
struct skv_block_owners {
	/*
	 * The keys of an owner and their number; NULL: the owner cannot be used for this prompt (another model, being
	 * dropped).
	 */
	const struct skv_block_key *(*keys)(const struct skv_block_owners *, uintptr_t owner, uint32_t *ret_n);
	/* Of two owners that share equally many blocks with the prompt, is the first one preferred? */
	bool (*preferred)(const struct skv_block_owners *, uintptr_t owner, uintptr_t than);
};
/*
 * Returns how many of these n blocks the best owner has, from the first on; 0: there is no owner. *ret_owner is that
 * owner.
 */
uint32_t skv_block_index_longest(const struct skv_block_index *, const struct skv_block_owners *,
                                 const struct skv_block_key *keys, uint32_t n, uintptr_t *ret_owner);

#endif
