/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/block-index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX
#define FIRST_ENTRIES 1024u

static uint32_t *list_of(const struct skv_block_index *x, const struct skv_block_key *key)
{
	uint32_t hash;

	memcpy(&hash, key->bytes, sizeof(hash));
	return &x->list[hash & (x->cap - 1)];
}

static void link_entry(struct skv_block_index *x, uint32_t i)
{
	uint32_t *list = list_of(x, &x->entry[i].key);

	x->entry[i].next = *list;
	*list = i;
}

/* Doubles the table, or allocates the first one. */
static int grow(struct skv_block_index *x)
{
	const uint32_t cap = x->cap ? 2 * x->cap : FIRST_ENTRIES;
	struct skv_block_entry *entry = realloc(x->entry, cap * sizeof(*entry));
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
		entry[i].next = i + 1 < cap ? i + 1 : NONE;
	x->free = x->cap;
	x->n_free = cap - x->cap;
	x->cap = cap;
	for (uint32_t i = 0; i < x->free; i++) /* the table grows only when no entry is free */
		link_entry(x, i);
	return 0;
}

int skv_block_index_add(struct skv_block_index *x, uintptr_t owner, const struct skv_block_key *keys, uint32_t n)
{
	for (uint32_t at = 0; at < n; at++) {
		uint32_t i;

		if (x->n_free == 0 && grow(x) < 0) {
			skv_block_index_remove(x, owner, keys, at);
			return -ENOMEM;
		}
		i = x->free;
		x->free = x->entry[i].next;
		x->n_free--;
		x->entry[i] = (struct skv_block_entry){.key = keys[at], .owner = owner, .at = at};
		link_entry(x, i);
	}
	return 0;
}

static void remove_entry(struct skv_block_index *x, uintptr_t owner, const struct skv_block_key *key)
{
	for (uint32_t *at = list_of(x, key), i; (i = *at) != NONE; at = &x->entry[i].next)
		if (x->entry[i].owner == owner && !memcmp(&x->entry[i].key, key, sizeof(*key))) {
			*at = x->entry[i].next;
			x->entry[i].next = x->free;
			x->free = i;
			x->n_free++;
			return;
		}
}

void skv_block_index_remove(struct skv_block_index *x, uintptr_t owner, const struct skv_block_key *keys, uint32_t n)
{
	for (uint32_t at = 0; at < n; at++)
		remove_entry(x, owner, &keys[at]);
}

void skv_block_index_deinit(struct skv_block_index *x)
{
	free(x->entry);
	free(x->list);
	*x = (struct skv_block_index)SKV_BLOCK_INDEX_NULL;
}

bool skv_block_index_next(const struct skv_block_index *x, const struct skv_block_key *key, uint32_t at, uint32_t *cursor, uintptr_t *ret_owner)
{
	/* the cursor is the last entry's index + 1 */
	uint32_t i = *cursor ? x->entry[*cursor - 1].next : x->cap ? *list_of(x, key) : NONE;

	while (i != NONE && (x->entry[i].at != at || memcmp(&x->entry[i].key, key, sizeof(*key))))
		i = x->entry[i].next;
	if (i == NONE)
		return false;
	*cursor = i + 1;
	*ret_owner = x->entry[i].owner;
	return true;
}
