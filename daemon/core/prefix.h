/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/prefix.h - sealed prefixes: the first blocks of a prompt, which sequences that begin with the same tokens fork instead
 * of computing them.
 *
 * A sealed prefix is a sequence that nobody ever holds, so nothing of it changes. It has K and V of whole blocks in order, compressed where
 * its policy compresses, no state of a policy, and a name that no client can give. In all else it is as any other that nobody holds: it is its user's, makes room
 * when it was not used for long, is parked, outlives the daemon.
 *
 * Each block has a key, which follows from all tokens up to its end and from what else K and V depend on, its origin
 * (daemon/prefix-keys.h). Here keys are numbers that are equal where prefixes are, and an origin is what the sequence keeps for a daemon
 * that has to find out keys again.
 */
#ifndef SKV_CORE_PREFIX_H
#define SKV_CORE_PREFIX_H

#include "daemon/core/core.h"

#define SKV_PREFIX_ORIGIN 32u /* bytes */

/* The name of a prefix whose last block has this key: no client can give it. */
void skv_prefix_name(const struct skv_block_key *, char ret[SKV_NAME_MAX]);

/* n token ids, from `first` on, in the memory of a sequence that the session holds; with `committed` of its commit. E_INVALID: it has fewer. */
int skv_core_prefix_ids(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq, bool committed, uint32_t first, uint32_t n, int32_t *ret);

/*
 * Under which policy the tokens of such a sequence were computed, and how they are compressed; of one without tokens, how its client's
 * policy would compress them. E_INVALID: what its memory says of that cannot be.
 */
int skv_core_prefix_made(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq, struct skv_made *ret);

/*
 * Seal the first n blocks of a sequence that the session holds, as a fork of them, made so. Its library has checked that nothing of these
 * tokens is evicted. E_EXIST: they are sealed; now they count as used. Else as skv_core_seq_fork(), but nothing is given to the client.
 */
int skv_core_prefix_seal(struct skv_core *, uint32_t client, uint32_t session, uint32_t seq, const uint8_t origin[SKV_PREFIX_ORIGIN],
                         const struct skv_made *made, const struct skv_block_key *keys, uint32_t n);

/* Of these n keys of a prompt's blocks, those of how many, from the first on, a prefix in memory has; for the session's model. */
int skv_core_prefix_find(struct skv_core *, uint32_t client, uint32_t session, const struct skv_block_key *keys, uint32_t n, uint32_t *ret);

/*
 * A new sequence that begins with them: as skv_core_seq_new(), and *ret_blocks is how many it has, 0 if there is none. E_TURNS, as
 * calls on sequences; the number is right at once.
 */
int skv_core_prefix_open(struct skv_core *, uint32_t client, uint32_t session, const char *name, uint32_t max_tokens,
                         const struct skv_block_key *keys, uint32_t n, struct skv_core_seq_info *ret, uint32_t *ret_blocks);

/* ---- from and to elsewhere ---- */

/* The sealed prefix of these blocks, of the session's model. E_NOENT. */
int skv_core_prefix_seq(struct skv_core *, uint32_t client, uint32_t session, const struct skv_block_key *keys, uint32_t n, uint32_t *ret_seq);
/*
 * From now on its pages are read, until skv_core_prefix_read_end(): it stays, also if somebody needs its memory, so that should be for few at a time.
 * E_NOENT: it is gone; E_BUSY: they are read already, or it leaves memory.
 */
int skv_core_prefix_read(struct skv_core *, uint32_t seq);
void skv_core_prefix_read_end(struct skv_core *, uint32_t seq);
/* It is read, and somebody waits for its memory, which comes back from nowhere else: the reading should end soon. */
bool skv_core_prefix_is_wanted(const struct skv_core *, uint32_t seq);

/* Pages that were taken for it (skv_core_restore_take()), and that it has no use for. */
int skv_core_prefix_put_back(struct skv_core *, uint32_t seq, const struct skv_wire_run *runs, uint32_t n);
/*
 * A sequence without a name (skv_core_restore_new()), whose memory has n blocks, is sealed; origin NULL: its memory has that, too. E_EXIST: they
 * are, and this one is not. E_QUOTA: of its keys.
 */
int skv_core_prefix_restored(struct skv_core *, uint32_t seq, const uint8_t origin[SKV_PREFIX_ORIGIN], const struct skv_block_key *keys, uint32_t n);

/* Its blocks' keys (borrowed, until the next call into the core). E_NOENT. */
int skv_core_prefix_keys(struct skv_core *, uint32_t seq, const struct skv_block_key **ret, uint32_t *ret_n);

/* A prefix never changes, and is in a file since it was there before: it goes from memory, in turns. E_NOENT; E_BUSY: it is being forked. */
int skv_core_park_known(struct skv_core *, uint32_t seq);
/* Is the user's prefix of these blocks, of a model of this name and rank, in memory? */
bool skv_core_prefix_exists(const struct skv_core *, uid_t uid, const struct skv_wire_model *, const struct skv_block_key *keys, uint32_t n);

/* ---- after a start ---- */

/* A sealed prefix that the daemon before has left: its row from *row on, which begins with 0. False: no more. */
bool skv_core_prefix_next(struct skv_core *, uint32_t *row, uint32_t *ret_seq, uid_t *ret_uid, uint32_t *ret_blocks);
/* What it is made of: its origin, and n token ids from `first` on. Negative errno. */
int skv_core_prefix_origin(struct skv_core *, uint32_t seq, uint8_t ret[SKV_PREFIX_ORIGIN]);
int skv_core_prefix_sealed_ids(struct skv_core *, uint32_t seq, uint32_t first, uint32_t n, int32_t *ret);
/* It is found from now on; or, if its name is not that of these keys, it goes. 1: it is; 0: it goes; -ENOMEM. */
int skv_core_prefix_add(struct skv_core *, uint32_t seq, const struct skv_block_key *keys, uint32_t n);

#endif
