/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/prefixes.h - the index of sealed prefixes: which sequences have a block. */
#ifndef SKV_CORE_PREFIXES_H
#define SKV_CORE_PREFIXES_H

#include "daemon/core/core-priv.h"
#include "daemon/core/prefix.h"

static inline bool skv_is_prefix(const struct skv_seq_row *q)
{
	return q->name[0] == '/';
}

/* Adds the blocks of a sequence (row) without a holder to the index. Copies the keys. -ENOMEM. */
int skv_prefixes_add(struct skv_core *, uint32_t seq, const struct skv_block_key *keys, uint32_t n);
/* Removes its blocks; does nothing if it has none. */
void skv_prefixes_remove(struct skv_core *, uint32_t seq);

/*
 * The sequence of this pool and model whose block number `at` (from 0) has this key; of several, the one used last.
 * SKV_NO_INDEX: none.
 */
uint32_t skv_prefixes_find(const struct skv_core *, uint32_t pool, const struct skv_model *, const struct skv_block_key *, uint32_t at);

#endif
