/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/scale-cache.h - simulates the storage of sealed prefixes: the memory and the disk of each host, and a store
 * that all hosts share.
 *
 * Prefixes consist of blocks of SCALE_BLOCK tokens. A block's key depends on all tokens up to its end and on the
 * tenant, so two prompts share blocks as far as their tokens are equal. A request's hit is the longest prefix of its
 * prompt's blocks that can all be found; blocks after a missing one do not count. A block is looked up in the host's
 * memory, then on the host's disk, then in the store. The last token of a prompt is always computed. The last block of
 * a prompt or answer is not stored if it is incomplete.
 *
 * After a request all its blocks are in the memory of its host. The host reads blocks that it lacks from the store, and
 * writes blocks that it has computed to the store, unless the store has them. In the simulation a request takes no
 * time, so its blocks are available to the next request.
 *
 * Memory evicts the least recently used block; of the blocks of one request the last is evicted first, so memory never
 * has a block without the block before it. (The daemon evicts whole sequences. The simulation differs from it only if
 * some of a sequence's blocks are evicted.) An evicted block is written to the disk, if the host has one, and a hit
 * moves it back to memory. The store evicts the block that was least recently read or written (exact LRU; Redis
 * approximates LRU by sampling). The store also removes blocks whose last write is too long ago; reads do not extend
 * this time. All values of a block are evicted together.
 */
#ifndef SKV_BENCH_SCALE_CACHE_H
#define SKV_BENCH_SCALE_CACHE_H

#include "bench/scale-trace.h"

#define SCALE_BLOCK 256u                 /* number of tokens in a block */
#define SCALE_VALUE_BYTES (8ull << 20)   /* most bytes in a value of the store */
#define SCALE_KEY_BYTES 100u             /* assumed overhead in bytes of a key in the store */

struct scale_cache_params {
	uint32_t hosts;
	uint64_t block_bytes;              /* bytes of a block; must be above 0 */
	uint64_t memory_bytes, disk_bytes; /* bytes of memory and of disk that each host has for blocks */
	uint64_t store_bytes;              /* bytes of the store (maxmemory); 0: there is no store */
	uint64_t ttl_us;                   /* lifetime of a block in the store after it is written; 0: unlimited */
};

enum scale_tier { SCALE_MEMORY, SCALE_DISK, SCALE_STORE, SCALE_TIERS };

struct scale_counts {
	uint64_t requests, prompt_tokens, answer_tokens;
	uint64_t hit_tokens[SCALE_TIERS]; /* tokens of prompts that each tier had; all others are computed */
	/* numbers of blocks read from, written to, evicted from and expired in the store */
	uint64_t blocks_read, blocks_written, blocks_evicted, blocks_expired;
	uint64_t max_blocks;              /* largest number of blocks that the store had */
	uint64_t max_host_tokens;         /* number of prompt tokens of the host that had most */
	uint64_t first_us, last_us;
};

struct scale_cache *scale_cache_new(const struct scale_cache_params *); /* NULL: no memory */
struct scale_cache *scale_cache_free(struct scale_cache *);             /* NULL is ignored; returns NULL */
/*
 * Simulates one request. Requests must come in order of time. ret_hit gets the request's hit tokens by tier; it may be
 * NULL. Returns 0 or -ENOMEM.
 */
int scale_cache_request(struct scale_cache *, const struct scale_request *, uint64_t ret_hit[SCALE_TIERS]);
const struct scale_counts *scale_cache_counts(const struct scale_cache *);

/* Returns the number of values, each with its own key, that a block has in the store. */
uint64_t scale_block_values(uint64_t block_bytes);

#endif
