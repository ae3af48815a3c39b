/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/scale-cache.h - a simulation of where sealed prefixes are: hosts' memory and disks, and a store that hosts share.
 *
 * Prefixes are in blocks of SCALE_BLOCK tokens. A block's key follows from all tokens up to its end and from the tenant, so
 * two prompts have the same first blocks as far as they have the same tokens. A request's hit is its longest prefix in blocks, each of
 * which is in its host's memory, else on its host's disk, else in the store; a block behind one that is missing counts for
 * nothing. The last token of a prompt is always computed, and a prompt's or answer's last, partial block is nowhere.
 *
 * After its request all blocks of prompt and answer are in the host's memory; it gets those of the store by reading them,
 * and writes those that it computed to the store, unless they are there. Requests take no time: what one leaves behind is there for the
 * next.
 *
 * Memory lets the least recently used block go first, and of one request's the last one: so a block never outlives the one before
 * it there. (The daemon lets whole sequences go, which is the same but for the one that goes in part.) It goes to the disk,
 * where there is one, and comes back when it is hit. The store's blocks go as exact LRU, by when they were read or written last - Redis
 * samples, which approximates it -, and by age since they were written, which no reading changes. A block of several values
 * goes as one.
 */
#ifndef SKV_BENCH_SCALE_CACHE_H
#define SKV_BENCH_SCALE_CACHE_H

#include "bench/scale-trace.h"

#define SCALE_BLOCK 256u                 /* tokens */
#define SCALE_VALUE_BYTES (8ull << 20)   /* of a value of the store, at most */
#define SCALE_KEY_BYTES 100u             /* that a key takes in the store beside its value: an assumption */

struct scale_cache_params {
	uint32_t hosts;
	uint64_t block_bytes;              /* above 0 */
	uint64_t memory_bytes, disk_bytes; /* of each host */
	uint64_t store_bytes;              /* maxmemory; 0: there is no store */
	uint64_t ttl_us;                   /* of the store's blocks; 0: none */
};

enum scale_tier { SCALE_MEMORY, SCALE_DISK, SCALE_STORE, SCALE_TIERS };

struct scale_counts {
	uint64_t requests, prompt_tokens, answer_tokens;
	uint64_t hit_tokens[SCALE_TIERS]; /* the rest of the prompt's tokens is computed */
	uint64_t blocks_read, blocks_written, blocks_evicted, blocks_expired; /* the store's */
	uint64_t max_blocks;              /* that the store had at a time */
	uint64_t max_host_tokens;         /* prompts' tokens of the host that had the most */
	uint64_t first_us, last_us;
};

struct scale_cache *scale_cache_new(const struct scale_cache_params *); /* NULL: no memory */
struct scale_cache *scale_cache_free(struct scale_cache *);             /* NULL is fine; returns NULL */
/* A request, not before the one before it. ret_hit: its own hit tokens, may be NULL. 0, or -ENOMEM. */
int scale_cache_request(struct scale_cache *, const struct scale_request *, uint64_t ret_hit[SCALE_TIERS]);
const struct scale_counts *scale_cache_counts(const struct scale_cache *);

/* Values that a block of the store takes, each with a key. */
uint64_t scale_block_values(uint64_t block_bytes);

#endif
