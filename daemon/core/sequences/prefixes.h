/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/sequences/prefixes.h - the index of sealed prefixes: finds the prefix that has most blocks of a prompt.
 */
#ifndef SKV_CORE_PREFIXES_H
#define SKV_CORE_PREFIXES_H

#include "daemon/core/state/core-priv.h"

static inline bool skv_is_prefix(const struct skv_seq_row *q)
{
	return q->name[0] == '/';
}

/*
 * Adds the n blocks of a sequence (row) that no session holds to the index. `keys` is memory of malloc(), which the
 * index owns on success. -ENOMEM: the caller still owns `keys`.
 */
int skv_prefixes_add(struct skv_core *, uint32_t seq, struct skv_block_key *keys, uint32_t n);
/* Removes the blocks of the sequence from the index, if it has any there. */
void skv_prefixes_remove(struct skv_core *, uint32_t seq);

/*
 * Finds the sealed prefix of this pool and model that has most of a prompt's n blocks, from the first block on; among
 * several, the one used last. Returns the number of these blocks. *ret_seq: the prefix; SKV_NO_INDEX: there is none.
 */
uint32_t skv_prefixes_longest(const struct skv_core *, uint32_t pool, const struct skv_model *,
                              const struct skv_block_key *keys, uint32_t n, uint32_t *ret_seq);

#endif
