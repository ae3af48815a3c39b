/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/operations/prefix.h - sealed prefixes: the first blocks of a prompt. A sequence whose prompt begins with
 * the tokens of a sealed prefix forks the prefix instead of computing its K and V.
 *
 * A sealed prefix is a sequence that no client ever holds, so its contents never change. A sealed prefix has K and V of
 * whole blocks in order, compressed as far as its policy compresses, no policy state, and a name that no client can
 * give. Otherwise a sealed prefix is like any sequence without a holder: it belongs to its user, makes room when it has
 * not been used for long, can be parked, and outlives the daemon.
 *
 * Each block has a key, computed from all tokens up to the block's end and from an origin. The origin stands for
 * everything else that K and V depend on (daemon/prefix/prefix-keys.h). The core only compares keys: they are equal
 * where prefixes are equal. The memory of a sealed prefix stores the origin, so that the next daemon can compute the
 * keys again.
 */
#ifndef SKV_CORE_PREFIX_H
#define SKV_CORE_PREFIX_H

#include "daemon/core/core.h"

#define SKV_PREFIX_ORIGIN 32u /* bytes of an origin */

/*
 * Reads n token ids, from `first` on, from the memory of a sequence that the session holds; if `committed` is true,
 * only ids of committed tokens. E_INVALID: the sequence has fewer tokens.
 */
int skv_core_prefix_ids(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq, bool committed,
                        uint32_t first, uint32_t n, int32_t *ret);

/*
 * Returns the policy under which the tokens of a held sequence were computed, and the form in which the tokens are
 * compressed; for a sequence without tokens, the form in which its client's policy would compress them. E_INVALID: the
 * sequence's memory contains impossible values.
 */
int skv_core_prefix_made(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq, struct skv_made *ret);

/*
 * Seals the first n blocks of a sequence that the session holds: makes a sealed prefix that is a fork of these blocks,
 * in the form `made`. The client library has checked that none of these tokens is evicted. The client gets no sequence.
 * E_EXIST: the blocks are sealed already; that prefix counts as used now. Other errors are those of
 * skv_core_seq_fork().
 */
int skv_core_prefix_seal(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq,
                         const uint8_t origin[SKV_PREFIX_ORIGIN], const struct skv_made *made,
                         const struct skv_block_key *keys, uint32_t n);

/*
 * Returns the number of a prompt's blocks, from the first on, that a sealed prefix in memory has, for the session's
 * model. `keys` are the keys of the prompt's n blocks.
 */
int skv_core_prefix_find(struct skv_core *, uint32_t client, uint32_t session, const struct skv_block_key *keys,
                         uint32_t n, uint32_t *ret);

/*
 * Creates a sequence that begins with the longest sealed prefix of the prompt, held by the session. *ret_blocks is the
 * number of blocks of the prefix; 0: there is no such prefix, and the sequence is empty. Errors are those of
 * skv_core_seq_new(). E_TURNS: the work continues; *ret_blocks is valid at once.
 */
int skv_core_prefix_open(struct skv_core *, uint32_t client, uint32_t session, const char *name, uint32_t max_tokens,
                         const struct skv_block_key *keys, uint32_t n, struct skv_core_seq_info *ret,
                         uint32_t *ret_blocks);

/* ---- import and export ---- */

/* Returns the id of the sealed prefix that consists of exactly these blocks, for the session's model. E_NOENT. */
int skv_core_prefix_seq(struct skv_core *, uint32_t client, uint32_t session, const struct skv_block_key *keys,
                        uint32_t n, uint32_t *ret_seq);
/*
 * Begins to read the pages of a sealed prefix, until skv_core_prefix_read_end(). While a prefix is being read it stays
 * in memory, even if its memory is needed; so read only a few prefixes at a time. E_NOENT: the prefix no longer exists.
 * E_BUSY: the prefix is being read already, or is leaving memory.
 */
int skv_core_prefix_read(struct skv_core *, uint32_t seq);
void skv_core_prefix_read_end(struct skv_core *, uint32_t seq);
/*
 * Does a request wait for the memory of a prefix that is being read, because no other memory can come free? If so, the
 * reader of the prefix should end soon.
 */
bool skv_core_prefix_is_wanted(const struct skv_core *, uint32_t seq);

/* Frees pages that skv_core_restore_take() took for the sequence and that the sequence does not need. */
int skv_core_prefix_put_back(struct skv_core *, uint32_t seq, const struct skv_wire_run *runs, uint32_t n);
/*
 * Turns a nameless sequence (skv_core_restore_new()), whose memory has n blocks, into a sealed prefix. origin NULL: the
 * sequence's memory contains the origin already. E_EXIST: another prefix consists of these blocks, so this sequence is
 * not sealed. E_QUOTA: the quota has no room for the keys.
 */
int skv_core_prefix_restored(struct skv_core *, uint32_t seq, const uint8_t origin[SKV_PREFIX_ORIGIN],
                             const struct skv_block_key *keys, uint32_t n);

/* Returns the keys of the prefix's blocks (borrowed until the next call into the core). E_NOENT. */
int skv_core_prefix_keys(struct skv_core *, uint32_t seq, const struct skv_block_key **ret, uint32_t *ret_n);

/*
 * Removes a sealed prefix from memory, in turns, because a file has it already: prefixes never change, so the file need
 * not be written again. E_NOENT; E_BUSY: the prefix is being forked.
 */
int skv_core_park_known(struct skv_core *, uint32_t seq);
/* Is the user's sealed prefix of exactly these blocks, for a model of this name and rank, in memory? */
bool skv_core_prefix_exists(const struct skv_core *, uid_t uid, const struct skv_wire_model *,
                            const struct skv_block_key *keys, uint32_t n);

/* ---- after a start ---- */

/*
 * Returns the next sealed prefix from the previous daemon whose blocks are not in the index yet, from row *row on (0 at
 * first). False: there is none.
 */
bool skv_core_prefix_next(struct skv_core *, uint32_t *row, uint32_t *ret_seq, uid_t *ret_uid, uint32_t *ret_blocks);
/* Read the data that a prefix's keys are computed from: the origin, and n token ids from `first` on. Negative errno. */
int skv_core_prefix_origin(struct skv_core *, uint32_t seq, uint8_t ret[SKV_PREFIX_ORIGIN]);
int skv_core_prefix_sealed_ids(struct skv_core *, uint32_t seq, uint32_t first, uint32_t n, int32_t *ret);
/*
 * Adds a prefix's keys to the index, so that the prefix can be found. A prefix whose name does not match the keys is
 * dropped. 1: added; 0: dropped; -ENOMEM.
 */
int skv_core_prefix_add(struct skv_core *, uint32_t seq, const struct skv_block_key *keys, uint32_t n);

#endif
