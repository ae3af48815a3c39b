/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/prefix.h - sealed prefixes: the first blocks of a prompt, which sequences that begin with the same tokens fork instead
 * of computing them.
 *
 * A sealed prefix is a sequence that nobody ever holds, so nothing of it changes. It has K and V of whole blocks in order, no
 * state of a policy, and a name that no client can give. In all else it is as any other that nobody holds: it is its user's, makes room
 * when it was not used for long, is parked, outlives the daemon.
 *
 * Each block has a key, which follows from all tokens up to its end and from what else K and V depend on (daemon/prefix.c). Here keys
 * are numbers that are equal where prefixes are.
 */
#ifndef SKV_CORE_PREFIX_H
#define SKV_CORE_PREFIX_H

#include "daemon/core/core.h"

#define SKV_BLOCK_TOKENS 256u

struct skv_block_key {
	uint8_t bytes[16];
};

/*
 * Seal the first n blocks of a sequence that the session holds, as a fork of them. Its library has checked that nothing of these
 * tokens is evicted or compressed. E_EXIST: they are sealed; now they count as used. Else as skv_core_seq_fork(), but nothing is given
 * to the client.
 */
int skv_core_prefix_seal(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq, const struct skv_block_key *keys, uint32_t n);

/* Of these n keys of a prompt's blocks, those of how many, from the first on, a prefix in memory has; for the session's model. */
int skv_core_prefix_find(struct skv_core *, uint32_t client, uint32_t session, const struct skv_block_key *keys, uint32_t n, uint32_t *ret);

/*
 * A new sequence that begins with them: as skv_core_seq_new(), and *ret_blocks is how many it has, 0 if there is none. E_TURNS, as
 * calls on sequences; the number is right at once.
 */
int skv_core_prefix_open(struct skv_core *, uint32_t client, uint32_t session, const char *name, uint32_t max_tokens,
                         const struct skv_block_key *keys, uint32_t n, struct skv_core_seq_info *ret, uint32_t *ret_blocks);

#endif
