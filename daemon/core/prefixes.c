/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/prefixes.c - the index of sealed prefixes.
 *
 * A table of lists: an entry for each block of each prefix. Prefixes that begin alike have entries with the same key, so that when one
 * goes the others are found. Keys are hashes already, and their first bytes as good as any. It is in the daemon's memory alone: after a
 * start the blocks of prefixes that are there are added again.
 */
#include "daemon/core/prefixes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX
#define FIRST_ENTRIES 1024u

struct skv_prefixes {
	struct skv_prefix_entry {
		struct skv_block_key key;
		uint32_t seq, at; /* row, and number of the block */
		uint32_t next;    /* of the list, or of those that are free */
	} *entry;
	uint32_t *list; /* [cap] */
	uint32_t cap, free, n_free; /* a power of two */
};

void skv_prefix_name(const struct skv_block_key *key, char ret[SKV_NAME_MAX])
{
	char *at = ret;

	*at++ = '/';
	for (size_t i = 0; i < sizeof(key->bytes); i++)
		at += sprintf(at, "%02x", key->bytes[i]);
}

static uint32_t *list_of(const struct skv_prefixes *x, const struct skv_block_key *key)
{
	uint32_t hash;

	memcpy(&hash, key->bytes, sizeof(hash));
	return &x->list[hash & (x->cap - 1)];
}

static void link_entry(struct skv_prefixes *x, uint32_t i)
{
	uint32_t *list = list_of(x, &x->entry[i].key);

	x->entry[i].next = *list;
	*list = i;
}

/* Twice as many, or the first. */
static int grow(struct skv_prefixes *x)
{
	const uint32_t cap = x->cap ? 2 * x->cap : FIRST_ENTRIES;
	struct skv_prefix_entry *entry = realloc(x->entry, cap * sizeof(*entry));
	uint32_t *list;

	if (!entry)
		return -ENOMEM;
	x->entry = entry;
	list = malloc(cap * sizeof(*list));
	if (!list)
		return -ENOMEM;
	free(x->list);
	x->list = list;
	memset(list, 0xff, cap * sizeof(*list));
	for (uint32_t i = x->cap; i < cap; i++)
		entry[i] = (struct skv_prefix_entry){.seq = NONE, .next = i + 1 < cap ? i + 1 : NONE};
	x->free = x->cap;
	x->n_free = cap - x->cap;
	x->cap = cap;
	for (uint32_t i = 0; i < x->free; i++) /* it grows when none is free */
		link_entry(x, i);
	return 0;
}

int skv_prefixes_add(struct skv_core *c, uint32_t seq, const struct skv_block_key *keys, uint32_t n)
{
	struct skv_block_key *own = malloc(n * sizeof(*own) + 1);
	struct skv_prefixes *x = c->prefixes;

	if (!x)
		x = c->prefixes = calloc(1, sizeof(*x));
	if (!own || !x) {
		free(own);
		return -ENOMEM;
	}
	memcpy(own, keys, n * sizeof(*own));
	c->seqs[seq].blocks = own;
	for (uint32_t at = 0; at < n; at++) {
		uint32_t i;

		if (x->n_free == 0 && grow(x) < 0) {
			skv_prefixes_remove(c, seq);
			return -ENOMEM;
		}
		i = x->free;
		x->free = x->entry[i].next;
		x->n_free--;
		x->entry[i] = (struct skv_prefix_entry){.key = keys[at], .seq = seq, .at = at};
		link_entry(x, i);
		c->seqs[seq].n_blocks = at + 1;
	}
	return 0;
}

static void remove_entry(struct skv_prefixes *x, const struct skv_block_key *key, uint32_t seq)
{
	for (uint32_t *at = list_of(x, key), i; (i = *at) != NONE; at = &x->entry[i].next)
		if (x->entry[i].seq == seq && !memcmp(&x->entry[i].key, key, sizeof(*key))) {
			*at = x->entry[i].next;
			x->entry[i] = (struct skv_prefix_entry){.seq = NONE, .next = x->free};
			x->free = i;
			x->n_free++;
			return;
		}
}

void skv_prefixes_remove(struct skv_core *c, uint32_t seq)
{
	struct skv_seq_local *l = &c->seqs[seq];

	for (uint32_t at = 0; at < l->n_blocks; at++)
		remove_entry(c->prefixes, &l->blocks[at], seq);
	free(l->blocks);
	l->blocks = NULL;
	l->n_blocks = 0;
}

void skv_prefixes_free(struct skv_core *c)
{
	if (c->prefixes) {
		free(c->prefixes->entry);
		free(c->prefixes->list);
	}
	free(c->prefixes);
	c->prefixes = NULL;
}

/* Are its K and V what the model's would be? */
static bool is_of(const struct skv_core *c, uint32_t seq, uint32_t pool, const struct skv_model *m)
{
	const struct skv_seq_row *q = skv_seq_row(&c->state, seq);

	return q->pool == pool && !strcmp(q->model.name, m->name) && q->model.rank == m->rank && q->model.n_ranks == m->n_ranks &&
	       q->model.n_layers == m->n_layers && q->model.n_heads == m->n_heads && q->model.n_kv_heads == m->n_kv_heads &&
	       q->model.head_dim == m->head_dim && q->model.kv_dtype == m->kv_dtype;
}

uint32_t skv_prefixes_find(const struct skv_core *c, uint32_t pool, const struct skv_model *m, const struct skv_block_key *key, uint32_t at)
{
	const struct skv_prefixes *x = c->prefixes;
	uint32_t found = SKV_NO_INDEX;

	for (uint32_t i = x && x->cap ? *list_of(x, key) : NONE; i != NONE; i = x->entry[i].next) {
		const struct skv_prefix_entry *e = &x->entry[i];

		if (e->at == at && !memcmp(&e->key, key, sizeof(*key)) && is_of(c, e->seq, pool, m) &&
		    (found == SKV_NO_INDEX || skv_seq_row(&c->state, e->seq)->used > skv_seq_row(&c->state, found)->used))
			found = e->seq;
	}
	return found;
}
