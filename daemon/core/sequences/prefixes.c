/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/sequences/prefixes.c - the index of sealed prefixes that are in memory.
 *
 * The index is in process memory, not in the state: after a restart the keys of all prefixes in memory are added again.
 */
#include "daemon/core/sequences/prefixes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/core/memory/charge.h"

int skv_prefixes_add(struct skv_core *c, uint32_t seq, struct skv_block_key *keys, uint32_t n)
{
	if (skv_block_index_add(&c->prefixes, seq, keys, n) < 0)
		return -ENOMEM;
	c->seqs[seq].blocks = keys;
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

/* Restricts a search in the index to the prefixes of one pool and model. */
struct owners {
	struct skv_block_owners base; /* must be the first field: callbacks cast from it */
	const struct skv_core *core;
	const struct skv_model *model;
	uint32_t pool;
};

/* The keys of a prefix; NULL: the prefix is being dropped, or is of another pool or model. */
static const struct skv_block_key *keys_of(const struct skv_block_owners *owners, uintptr_t owner, uint32_t *ret_n)
{
	const struct owners *o = (const void *)owners;
	const struct skv_seq_row *q = skv_seq_row(&o->core->state, (uint32_t)owner);
	const struct skv_model *m = o->model;

	*ret_n = o->core->seqs[owner].n_blocks;
	return skv_is_prefix(q) && q->pool == o->pool && !strcmp(q->model.name, m->name) && q->model.rank == m->rank &&
	                       q->model.n_ranks == m->n_ranks && q->model.n_layers == m->n_layers &&
	                       q->model.n_heads == m->n_heads && q->model.n_kv_heads == m->n_kv_heads &&
	                       q->model.head_dim == m->head_dim && q->model.kv_dtype == m->kv_dtype
	               ? o->core->seqs[owner].blocks
	               : NULL;
}

static bool used_later(const struct skv_block_owners *owners, uintptr_t owner, uintptr_t than)
{
	const struct skv_state *state = &((const struct owners *)owners)->core->state;

	return skv_seq_row(state, (uint32_t)owner)->used > skv_seq_row(state, (uint32_t)than)->used;
}

uint32_t skv_prefixes_longest(const struct skv_core *c, uint32_t pool, const struct skv_model *m,
                              const struct skv_block_key *keys, uint32_t n, uint32_t *ret_seq)
{
	const struct owners owners = {{keys_of, used_later}, c, m, pool};
	uintptr_t owner = SKV_NO_INDEX;
	const uint32_t has = skv_block_index_longest(&c->prefixes, &owners.base, keys, n, &owner);

	*ret_seq = (uint32_t)owner;
	return has;
}
