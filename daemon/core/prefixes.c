/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/prefixes.c - the index of sealed prefixes that are in memory.
 *
 * The index is in process memory: after a start, the blocks of the existing prefixes are added again.
 */
#include "daemon/core/prefixes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/core/charge.h"

void skv_prefix_name(const struct skv_block_key *key, char ret[SKV_NAME_MAX])
{
	char *at = ret;

	*at++ = '/';
	for (size_t i = 0; i < sizeof(key->bytes); i++)
		at += sprintf(at, "%02x", key->bytes[i]);
}

int skv_prefixes_add(struct skv_core *c, uint32_t seq, const struct skv_block_key *keys, uint32_t n)
{
	struct skv_block_key *own = malloc(n * sizeof(*own) + 1);

	if (!own || skv_block_index_add(&c->prefixes, seq, keys, n) < 0) {
		free(own);
		return -ENOMEM;
	}
	memcpy(own, keys, n * sizeof(*own));
	c->seqs[seq].blocks = own;
	c->seqs[seq].n_blocks = n;
	skv_charge_seq(c, seq);
	return 0;
}

void skv_prefixes_remove(struct skv_core *c, uint32_t seq)
{
	struct skv_seq_local *l = &c->seqs[seq];

	skv_block_index_remove(&c->prefixes, seq, l->blocks, l->n_blocks);
	free(l->blocks);
	l->blocks = NULL;
	l->n_blocks = 0;
}

/* Does it exist, is it not being dropped, and do its K and V fit the model? */
static bool is_of(const struct skv_core *c, uint32_t seq, uint32_t pool, const struct skv_model *m)
{
	const struct skv_seq_row *q = skv_seq_row(&c->state, seq);

	return skv_is_prefix(q) && q->pool == pool && !strcmp(q->model.name, m->name) && q->model.rank == m->rank && q->model.n_ranks == m->n_ranks &&
	       q->model.n_layers == m->n_layers && q->model.n_heads == m->n_heads && q->model.n_kv_heads == m->n_kv_heads &&
	       q->model.head_dim == m->head_dim && q->model.kv_dtype == m->kv_dtype;
}

uint32_t skv_prefixes_find(const struct skv_core *c, uint32_t pool, const struct skv_model *m, const struct skv_block_key *key, uint32_t at)
{
	uint32_t found = SKV_NO_INDEX, cursor = 0;
	uintptr_t owner;

	while (skv_block_index_next(&c->prefixes, key, at, &cursor, &owner)) {
		const uint32_t seq = (uint32_t)owner;

		if (is_of(c, seq, pool, m) && (found == SKV_NO_INDEX || skv_seq_row(&c->state, seq)->used > skv_seq_row(&c->state, found)->used))
			found = seq;
	}
	return found;
}
