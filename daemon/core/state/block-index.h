/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/state/block-index.h - finds the sealed prefix that shares most blocks with a prompt.
 *
 * The index is a hash table of block keys. Each of the first 64 blocks of a prefix has an entry, and after these every
 * 64th block: so adding, removing and finding a prefix of a million tokens takes a fraction of a millisecond. Blocks
 * between two entries are compared with the owner's array of keys. A key is computed from all tokens up to the end of
 * its block, so an owner that has block n of a prompt has all blocks before it, and the longest match is found by
 * bisection.
 *
 * An owner stands for a prefix: a number or an address that the caller chooses. Keys are hashes already; the first
 * bytes of a key choose the bucket.
 */
#ifndef SKV_CORE_BLOCK_INDEX_H
#define SKV_CORE_BLOCK_INDEX_H

#include "common/seqmem.h"
#include "common/wire.h"

/* Makes the name of a prefix from the key of its last block. The name begins with '/', as no client's name may. */
void skv_prefix_name(const struct skv_block_key *, char ret[SKV_NAME_MAX]);

struct skv_block_index {
	struct skv_block_entry {
		struct skv_block_key key;
		uintptr_t owner;
		uint32_t at;   /* index of the block in the prefix */
		uint32_t next; /* next entry of the same bucket, or of the list of free entries */
	} *entry;         /* [cap] */
	uint32_t *bucket; /* [cap]: first entry of each bucket; the first n_buckets are in use */
	uint32_t cap, n_buckets;
	uint32_t n_used; /* number of entries that were ever used */
	uint32_t free, n_free;
};
#define SKV_BLOCK_INDEX_NULL {.entry = NULL}

/* Bytes of memory that are charged for a prefix of n blocks: its array of keys, and its entries in the index. */
static inline uint64_t skv_block_index_bytes(uint32_t n)
{
	const uint32_t entries = n <= 64 ? n : 64 + (n - 1) / 64;

	return n * sizeof(struct skv_block_key) + entries * sizeof(struct skv_block_entry);
}

/* Adds an owner with the keys of its n blocks. -ENOMEM: nothing was added. */
int skv_block_index_add(struct skv_block_index *, uintptr_t owner, const struct skv_block_key *keys, uint32_t n);
/* Removes an owner. `keys` and `n` must be as they were when the owner was added. */
void skv_block_index_remove(struct skv_block_index *, uintptr_t owner, const struct skv_block_key *keys, uint32_t n);
void skv_block_index_deinit(struct skv_block_index *);

/* Callbacks by which a search asks the caller about owners. */
struct skv_block_owners {
	/*
	 * Returns the keys of an owner and their number; NULL: the owner cannot be used for this prompt (it is of
	 * another model, or is being dropped).
	 */
	const struct skv_block_key *(*keys)(const struct skv_block_owners *, uintptr_t owner, uint32_t *ret_n);
	/* Is `owner` preferred to the owner `than`, which shares as many blocks with the prompt? */
	bool (*preferred)(const struct skv_block_owners *, uintptr_t owner, uintptr_t than);
};
/*
 * Finds the owner that has most of a prompt's n blocks, from the first block on. Returns the number of these blocks; 0:
 * there is no such owner, and *ret_owner is not set.
 */
uint32_t skv_block_index_longest(const struct skv_block_index *, const struct skv_block_owners *,
                                 const struct skv_block_key *keys, uint32_t n, uintptr_t *ret_owner);

#endif
