/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/operations/prefix.h - sealed prefixes: the first blocks of a prompt. Sequences that begin with the same
 * tokens fork them instead of computing them.
 *
 * A sealed prefix is a sequence that no client ever holds, so its contents never change. It has K and V of whole blocks
 * in order, compressed as far as its policy compresses, no policy state, and a name that no client can give. In all
 * else it is like any other sequence without a holder: it belongs to its user, makes room when it has not been used for
 * long, is parked, and outlives the daemon.
 *
 * Each block has a key, which follows from all tokens up to its end and from its origin: everything else that K and V
 * depend on (daemon/prefix/prefix-keys.h). For the core, keys are numbers that are equal where prefixes are equal, and
 * an origin is a value that the sequence's memory stores for a daemon that has to compute the keys again.
 */
#ifndef SKV_CORE_PREFIX_H
#define SKV_CORE_PREFIX_H

#include "daemon/core/core.h"

#define SKV_PREFIX_ORIGIN 32u /* bytes */

/*
 * Reads n token ids, from `first` on, from the memory of a sequence that the session holds; with `committed` only ids
 * of its commit. E_INVALID: it has fewer.
 */
int skv_core_prefix_ids(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq, bool committed,
                        uint32_t first, uint32_t n, int32_t *ret);

/*
 * Returns the policy under which the tokens of such a sequence were computed, and how they are compressed; for a
 * sequence without tokens, how its client's policy would compress them. E_INVALID: its memory contains impossible
 * values.
 */
int skv_core_prefix_made(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq, struct skv_made *ret);

/*
 * Seals the first n blocks of a sequence that the session holds: forks them in the form `made`. The client library has
 * checked that nothing of these tokens is evicted. E_EXIST: they are sealed already; they count as used now. Other
 * errors as skv_core_seq_fork(), but the client gets no sequence.
 */
int skv_core_prefix_seal(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq,
                         const uint8_t origin[SKV_PREFIX_ORIGIN], const struct skv_made *made,
                         const struct skv_block_key *keys, uint32_t n);

/*
 * Returns how many of the first of these n blocks (keys of a prompt) a prefix in memory has, for the session's model.
 */
int skv_core_prefix_find(struct skv_core *, uint32_t client, uint32_t session, const struct skv_block_key *keys,
                         uint32_t n, uint32_t *ret);

/*
 * Creates a sequence that begins with the longest such prefix: as skv_core_seq_new(). *ret_blocks is the number of its
 * blocks, 0 if there is no prefix. E_TURNS as for calls on sequences; *ret_blocks is valid at once.
 */
int skv_core_prefix_open(struct skv_core *, uint32_t client, uint32_t session, const char *name, uint32_t max_tokens,
                         const struct skv_block_key *keys, uint32_t n, struct skv_core_seq_info *ret,
                         uint32_t *ret_blocks);

/* ---- import and export ---- */

/* The sealed prefix that consists of these blocks, of the session's model. E_NOENT. */
int skv_core_prefix_seq(struct skv_core *, uint32_t client, uint32_t session, const struct skv_block_key *keys,
                        uint32_t n, uint32_t *ret_seq);
/*
 * Starts reading its pages, until skv_core_prefix_read_end(). Meanwhile it stays in memory even if its memory is
 * needed, so read only a few prefixes at a time. E_NOENT: it no longer exists. E_BUSY: it is being read already, or is
 * leaving memory.
 */
int skv_core_prefix_read(struct skv_core *, uint32_t seq);
void skv_core_prefix_read_end(struct skv_core *, uint32_t seq);
/*
 * It is being read, and a request waits for its memory, which cannot come from elsewhere: the reader should end soon.
 */
bool skv_core_prefix_is_wanted(const struct skv_core *, uint32_t seq);

/* Frees pages that were taken for it (skv_core_restore_take()) and that it does not need. */
int skv_core_prefix_put_back(struct skv_core *, uint32_t seq, const struct skv_wire_run *runs, uint32_t n);
/*
 * Makes a nameless sequence (skv_core_restore_new()), whose memory has n blocks, a sealed prefix. origin NULL: its
 * memory contains the origin already. E_EXIST: these blocks are sealed already, and this sequence is not. E_QUOTA: for
 * its keys.
 */
int skv_core_prefix_restored(struct skv_core *, uint32_t seq, const uint8_t origin[SKV_PREFIX_ORIGIN],
                             const struct skv_block_key *keys, uint32_t n);

/* The keys of its blocks (borrowed, until the next call into the core). E_NOENT. */
int skv_core_prefix_keys(struct skv_core *, uint32_t seq, const struct skv_block_key **ret, uint32_t *ret_n);

/*
 * Removes from memory, in turns, a prefix that is in a file already; prefixes never change. E_NOENT; E_BUSY: it is
 * being forked.
 */
int skv_core_park_known(struct skv_core *, uint32_t seq);
/* Is the user's prefix that consists of these blocks, of a model of this name and rank, in memory? */
bool skv_core_prefix_exists(const struct skv_core *, uid_t uid, const struct skv_wire_model *,
                            const struct skv_block_key *keys, uint32_t n);

/* ---- after a start ---- */

/*
 * The next sealed prefix from the previous daemon whose blocks are not in the index yet, from row *row on (0 at first).
 * False: no more.
 */
bool skv_core_prefix_next(struct skv_core *, uint32_t *row, uint32_t *ret_seq, uid_t *ret_uid, uint32_t *ret_blocks);
/* What its keys are computed from: its origin, and n token ids from `first` on. Negative errno. */
int skv_core_prefix_origin(struct skv_core *, uint32_t seq, uint8_t ret[SKV_PREFIX_ORIGIN]);
int skv_core_prefix_sealed_ids(struct skv_core *, uint32_t seq, uint32_t first, uint32_t n, int32_t *ret);
/*
 * Adds its keys to the index, so that it can be found. If its name does not match the keys, drops it. 1: added; 0:
 * dropped; -ENOMEM.
 */
int skv_core_prefix_add(struct skv_core *, uint32_t seq, const struct skv_block_key *keys, uint32_t n);

#endif
