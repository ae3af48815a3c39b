/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/scale-cache.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

/* ---- a tier of blocks ---------------------------------------------------------------------------- */

/* A tier keeps its blocks in two orders: by last use, and by insertion. */
enum order { BY_USE, BY_AGE, ORDERS };

struct block {
	uint64_t key, since_us;
	/* in both orders, the next older and the next newer block; for a free entry, after[0] is the next free entry */
	uint32_t before[ORDERS], after[ORDERS];
	uint32_t chain;                         /* next block in the same hash bucket */
};

struct tier {
	uint64_t capacity;          /* most blocks */
	/* number of blocks; number of allocated entries; number of entries that were ever used */
	uint32_t n, room, high;
	uint32_t buckets;           /* number of hash buckets; a power of two, equal to `room` */
	uint32_t unused;            /* first free entry; NONE: no free entry */
	uint32_t oldest[ORDERS], newest[ORDERS];
	struct block *block;
	uint32_t *bucket;
};

static void tier_init(struct tier *t, uint64_t capacity)
{
	*t = (struct tier){.capacity = capacity, .unused = NONE, .oldest = {NONE, NONE}, .newest = {NONE, NONE}};
}

static void tier_deinit(struct tier *t)
{
	free(t->block);
	free(t->bucket);
}

static uint32_t *bucket_of(const struct tier *t, uint64_t key)
{
	return &t->bucket[key & (t->buckets - 1)];
}

static uint32_t tier_find(const struct tier *t, uint64_t key)
{
	uint32_t i = t->n ? *bucket_of(t, key) : NONE;

	while (i != NONE && t->block[i].key != key)
		i = t->block[i].chain;
	return i;
}

static void unlink_from(struct tier *t, uint32_t i, enum order o)
{
	const struct block *b = &t->block[i];

	*(b->before[o] == NONE ? &t->oldest[o] : &t->block[b->before[o]].after[o]) = b->after[o];
	*(b->after[o] == NONE ? &t->newest[o] : &t->block[b->after[o]].before[o]) = b->before[o];
}

static void link_newest(struct tier *t, uint32_t i, enum order o)
{
	struct block *b = &t->block[i];

	b->before[o] = t->newest[o];
	b->after[o] = NONE;
	*(t->newest[o] == NONE ? &t->oldest[o] : &t->block[t->newest[o]].after[o]) = i;
	t->newest[o] = i;
}

static void tier_touch(struct tier *t, uint32_t i)
{
	unlink_from(t, i, BY_USE);
	link_newest(t, i, BY_USE);
}

static int tier_grow(struct tier *t)
{
	const uint32_t room = t->room ? 2 * t->room : 64;
	struct block *block = room > 1u << 31 ? NULL : realloc(t->block, room * sizeof *block);
	uint32_t *bucket;

	if (!block)
		return -ENOMEM;
	t->block = block;
	bucket = realloc(t->bucket, room * sizeof *bucket);
	if (!bucket)
		return -ENOMEM;
	t->bucket = bucket;
	t->room = t->buckets = room;
	memset(bucket, 0xff, room * sizeof *bucket); /* sets all buckets to NONE */
	for (uint32_t i = t->oldest[BY_USE]; i != NONE; i = t->block[i].after[BY_USE]) {
		uint32_t *head = bucket_of(t, t->block[i].key);

		t->block[i].chain = *head;
		*head = i;
	}
	return 0;
}

/* Inserts a block as the newest one in both orders. */
static int tier_insert(struct tier *t, uint64_t key, uint64_t now_us)
{
	uint32_t i = t->unused, *head;

	if (i == NONE && t->high == t->room && tier_grow(t) < 0)
		return -ENOMEM;
	if (i == NONE)
		i = t->high++;
	else
		t->unused = t->block[i].after[0];
	head = bucket_of(t, key);
	t->block[i] = (struct block){.key = key, .since_us = now_us, .chain = *head};
	*head = i;
	link_newest(t, i, BY_USE);
	link_newest(t, i, BY_AGE);
	t->n++;
	return 0;
}

static void tier_remove(struct tier *t, uint32_t i)
{
	uint32_t *at = bucket_of(t, t->block[i].key);

	while (*at != i)
		at = &t->block[*at].chain;
	*at = t->block[i].chain;
	unlink_from(t, i, BY_USE);
	unlink_from(t, i, BY_AGE);
	t->block[i].after[0] = t->unused;
	t->unused = i;
	t->n--;
}

/* ---- the cache ----------------------------------------------------------------------------------- */

struct host {
	struct tier memory, disk;
	uint64_t prompt_tokens;
};

struct scale_cache {
	struct scale_cache_params p;
	struct scale_counts counts;
	struct host *host;
	struct tier store;
	uint64_t *key; /* keys of the current request's blocks */
	uint32_t room;
};

uint64_t scale_block_values(uint64_t block_bytes)
{
	return (block_bytes + SCALE_VALUE_BYTES - 1) / SCALE_VALUE_BYTES;
}

struct scale_cache *scale_cache_new(const struct scale_cache_params *p)
{
	const uint64_t stored = p->block_bytes + scale_block_values(p->block_bytes) * SCALE_KEY_BYTES;
	struct scale_cache *c = calloc(1, sizeof *c);

	if (!c)
		return NULL;
	c->p = *p;
	tier_init(&c->store, p->store_bytes / stored);
	c->host = calloc(p->hosts, sizeof *c->host);
	if (!c->host)
		return scale_cache_free(c);
	for (uint32_t i = 0; i < p->hosts; i++) {
		tier_init(&c->host[i].memory, p->memory_bytes / p->block_bytes);
		tier_init(&c->host[i].disk, p->disk_bytes / p->block_bytes);
	}
	return c;
}

struct scale_cache *scale_cache_free(struct scale_cache *c)
{
	if (!c)
		return NULL;
	for (uint32_t i = 0; c->host && i < c->p.hosts; i++) {
		tier_deinit(&c->host[i].memory);
		tier_deinit(&c->host[i].disk);
	}
	tier_deinit(&c->store);
	free(c->host);
	free(c->key);
	free(c);
	return NULL;
}

const struct scale_counts *scale_cache_counts(const struct scale_cache *c)
{
	return &c->counts;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
	uint64_t x = (a ^ b) * 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
	return x ^ x >> 29;
}

/*
 * Computes the keys of the first `n` blocks of prompt and answer. A key depends on the parts of segments in its block
 * and on the key of the block before. Equal parts have equal tokens, and all segments with the same content have the
 * same length, so hashing segments is equivalent to hashing token ids.
 */
static void make_keys(uint64_t *key, uint32_t n, const struct scale_request *r)
{
	uint64_t chained = mix(0x736361u, r->tenant);
	uint32_t filled = 0, done = 0;

	for (uint32_t s = 0; s <= r->n_segments && done < n; s++) {
		const struct scale_segment *seg = s < r->n_segments ? &r->prompt[s] : &r->answer;

		for (uint32_t from = 0, len; from < seg->n_tokens && done < n; from += len) {
			len = SCALE_BLOCK - filled < seg->n_tokens - from ? SCALE_BLOCK - filled : seg->n_tokens - from;
			chained = mix(mix(chained, seg->content), (uint64_t)from << 32 | len);
			filled = (filled + len) % SCALE_BLOCK;
			if (filled == 0)
				key[done++] = chained;
		}
	}
}

static int make_room(struct scale_cache *c, uint32_t n)
{
	uint64_t *more;

	if (n <= c->room)
		return 0;
	more = realloc(c->key, 2ull * n * sizeof *more);
	if (!more)
		return -ENOMEM;
	c->key = more;
	c->room = 2 * n;
	return 0;
}

static void expire(struct scale_cache *c, uint64_t now_us)
{
	struct tier *t = &c->store;

	while (c->p.ttl_us && t->n && t->block[t->oldest[BY_AGE]].since_us + c->p.ttl_us <= now_us) {
		tier_remove(t, t->oldest[BY_AGE]);
		c->counts.blocks_expired++;
	}
}

/*
 * Returns how many of the first `most` blocks are found before one is missing. hit[] counts the blocks found in each
 * tier.
 */
static uint32_t look_up(const struct scale_cache *c, const struct host *h, uint32_t most, uint64_t hit[SCALE_TIERS])
{
	uint32_t i;

	for (i = 0; i < most; i++) {
		if (tier_find(&h->memory, c->key[i]) != NONE)
			hit[SCALE_MEMORY]++;
		else if (tier_find(&h->disk, c->key[i]) != NONE)
			hit[SCALE_DISK]++;
		else if (tier_find(&c->store, c->key[i]) != NONE)
			hit[SCALE_STORE]++;
		else
			break;
	}
	return i;
}

/*
 * Updates the store after a request: blocks that the host read from the store become the most recently used; blocks
 * that the host computed, those from index n_hit on, are written to the store.
 */
static int put_in_store(struct scale_cache *c, const struct host *h, uint32_t n_hit, uint32_t n, uint64_t now_us)
{
	struct tier *t = &c->store;

	if (t->capacity == 0)
		return 0;
	for (uint32_t i = n; i-- > 0;) {
		const uint32_t found = tier_find(t, c->key[i]);

		if (i < n_hit && (tier_find(&h->memory, c->key[i]) != NONE || tier_find(&h->disk, c->key[i]) != NONE))
			continue;
		if (found != NONE) {
			tier_touch(t, found);
			continue;
		}
		if (tier_insert(t, c->key[i], now_us) < 0)
			return -ENOMEM;
		c->counts.blocks_written++;
	}
	for (; t->n > t->capacity; c->counts.blocks_evicted++)
		tier_remove(t, t->oldest[BY_USE]);
	if (t->n > c->counts.max_blocks)
		c->counts.max_blocks = t->n;
	return 0;
}

/* Puts all n blocks of a request into the host's memory. Blocks that no longer fit in memory are moved to the disk. */
static int put_in_memory(struct scale_cache *c, struct host *h, uint32_t n, uint64_t now_us)
{
	for (uint32_t i = n; i-- > 0;) {
		const uint32_t found = tier_find(&h->memory, c->key[i]), parked = tier_find(&h->disk, c->key[i]);

		if (parked != NONE)
			tier_remove(&h->disk, parked);
		if (found != NONE)
			tier_touch(&h->memory, found);
		else if (tier_insert(&h->memory, c->key[i], now_us) < 0)
			return -ENOMEM;
	}
	while (h->memory.n > h->memory.capacity) {
		const uint32_t oldest = h->memory.oldest[BY_USE];

		if (h->disk.capacity > 0 && tier_insert(&h->disk, h->memory.block[oldest].key, now_us) < 0)
			return -ENOMEM;
		tier_remove(&h->memory, oldest);
	}
	while (h->disk.n > h->disk.capacity)
		tier_remove(&h->disk, h->disk.oldest[BY_USE]);
	return 0;
}

static void count(struct scale_cache *c, struct host *h, const struct scale_request *r, const uint64_t hit[SCALE_TIERS])
{
	struct scale_counts *n = &c->counts;

	n->first_us = n->requests++ ? n->first_us : r->time_us;
	n->last_us = r->time_us;
	n->prompt_tokens += r->n_prompt;
	n->answer_tokens += r->answer.n_tokens;
	for (int tier = 0; tier < SCALE_TIERS; tier++)
		n->hit_tokens[tier] += hit[tier];
	n->blocks_read += hit[SCALE_STORE] / SCALE_BLOCK;
	h->prompt_tokens += r->n_prompt;
	if (h->prompt_tokens > n->max_host_tokens)
		n->max_host_tokens = h->prompt_tokens;
}

int scale_cache_request(struct scale_cache *c, const struct scale_request *r, uint64_t ret_hit[SCALE_TIERS])
{
	const uint32_t n = (r->n_prompt + r->answer.n_tokens) / SCALE_BLOCK;
	struct host *h = &c->host[r->host];
	uint64_t hit[SCALE_TIERS] = {0};
	uint32_t n_hit;
	int e = make_room(c, n);

	if (e < 0)
		return e;
	make_keys(c->key, n, r);
	expire(c, r->time_us);
	n_hit = look_up(c, h, (r->n_prompt - 1) / SCALE_BLOCK, hit);
	e = put_in_store(c, h, n_hit, n, r->time_us);
	e = e < 0 ? e : put_in_memory(c, h, n, r->time_us);
	if (e < 0)
		return e;
	for (int tier = 0; tier < SCALE_TIERS; tier++)
		hit[tier] *= SCALE_BLOCK;
	count(c, h, r, hit);
	if (ret_hit)
		memcpy(ret_hit, hit, sizeof hit);
	return 0;
}
