/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/scale-cache.h - simulates where sealed prefixes are stored: hosts' memory and disks, and a store that hosts
 * share.
 *
 * Prefixes consist of blocks of SCALE_BLOCK tokens. A block's key depends on all tokens up to its end and on the
 * tenant, so two prompts share blocks as far as their tokens are equal. A request's hit is its longest prefix of
 * blocks that are in its host's memory, or else on its host's disk, or else in the store; blocks after a missing one
 * do not count. The last token of a prompt is always computed, and the last, partial block of a prompt or answer is
 * never stored.
 *
 * After a request all its blocks are in the host's memory. The host reads blocks from the store, and writes computed
 * blocks to the store unless they are there. Requests take no time: the next request finds what a request leaves.
 *
 * Memory evicts the least recently used block, and the last block of a request first, so a block never outlives its
 * predecessor there. (The daemon evicts whole sequences, which differs only for a partly evicted one.) An evicted
 * block goes to the disk, if there is one, and returns to memory when it is hit. The store evicts by exact LRU of
 * reads and writes (Redis approximates LRU by sampling), and by age since the write, which reads do not change. A
 * block of several values is evicted as one.
 */
#ifndef SKV_BENCH_SCALE_CACHE_H
#define SKV_BENCH_SCALE_CACHE_H

#include "bench/scale-trace.h"

#define SCALE_BLOCK 256u                 /* tokens */
#define SCALE_VALUE_BYTES (8ull << 20)   /* largest value in the store */
#define SCALE_KEY_BYTES 100u             /* assumed overhead of a key in the store */

struct scale_cache_params {
	uint32_t hosts;
	uint64_t block_bytes;              /* must be above 0 */
	uint64_t memory_bytes, disk_bytes; /* of each host */
	uint64_t store_bytes;              /* maxmemory; 0: no store */
	uint64_t ttl_us;                   /* of blocks in the store; 0: none */
};

enum scale_tier { SCALE_MEMORY, SCALE_DISK, SCALE_STORE, SCALE_TIERS };

struct scale_counts {
	uint64_t requests, prompt_tokens, answer_tokens;
	uint64_t hit_tokens[SCALE_TIERS]; /* the other tokens of prompts are computed */
	uint64_t blocks_read, blocks_written, blocks_evicted, blocks_expired; /* in the store */
	uint64_t max_blocks;              /* largest number of blocks in the store */
	uint64_t max_host_tokens;         /* prompt tokens of the busiest host */
	uint64_t first_us, last_us;
};

struct scale_cache *scale_cache_new(const struct scale_cache_params *); /* NULL: no memory */
struct scale_cache *scale_cache_free(struct scale_cache *);             /* NULL is ignored; returns NULL */
/* Requests must come in order of time. ret_hit: the request's hit tokens, may be NULL. Returns 0 or -ENOMEM. */
int scale_cache_request(struct scale_cache *, const struct scale_request *, uint64_t ret_hit[SCALE_TIERS]);
const struct scale_counts *scale_cache_counts(const struct scale_cache *);

/* Number of values, each with a key, that a block has in the store. */
uint64_t scale_block_values(uint64_t block_bytes);

#endif
