/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/sequences/prefixes.h - the index of sealed prefixes: which sequences have a block. */
#ifndef SKV_CORE_PREFIXES_H
#define SKV_CORE_PREFIXES_H

#include "daemon/core/state/core-priv.h"

static inline bool skv_is_prefix(const struct skv_seq_row *q)
{
	return q->name[0] == '/';
}

/* Index the n blocks of a sequence (row) that no session holds. Takes over `keys`, of malloc(); -ENOMEM: does not. */
int skv_prefixes_add(struct skv_core *, uint32_t seq, struct skv_block_key *keys, uint32_t n);
/* Remove the blocks of the sequence, if it has any. */
void skv_prefixes_remove(struct skv_core *, uint32_t seq);

/*
 * Returns how many of these n blocks a sequence of this pool and model has, from the first on. *ret_seq: the sequence
 * that was used last among those that have most; SKV_NO_INDEX: none.
 */
uint32_t skv_prefixes_longest(const struct skv_core *, uint32_t pool, const struct skv_model *,
                              const struct skv_block_key *keys, uint32_t n, uint32_t *ret_seq);

#endif
