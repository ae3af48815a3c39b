/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/parked/parking.h - parks sequences and sealed prefixes in files, and resumes them. See parking.c. */
#ifndef SKV_PARKING_H
#define SKV_PARKING_H

#include <jansson.h>
#include "daemon/disk/files.h"

struct skv_server;
struct skv_conn;

/* Functions of other parts of the daemon that parking calls. */
struct skv_parking_ops {
	/*
	 * Called when a sequence or a sealed prefix has been read into memory (error: 0), or when reading it has failed
	 * (error: negative errno, with the reason in `why`).
	 */
	void (*restored)(struct skv_server *, uid_t uid, const struct skv_model *, const char *name, int error,
	                 const char *why);
	/* Computes the tag of n block keys, which proves that they were made with the daemon's secret for this user. */
	void (*tag)(const struct skv_server *, uid_t uid, const struct skv_block_key *keys, uint32_t n,
	            uint8_t ret[SKV_PARKED_TAG]);
};
/*
 * Opens the folder of parked sequences (parked-path); without that setting, does nothing. Negative errno, logged: the
 * folder cannot be used.
 */
int skv_parking_start(struct skv_server *, const struct skv_parking_ops *);
/* After a reload of the settings: files that could not be read are read again, as soon as no import is running. */
void skv_parking_reload(struct skv_server *);
/* Call it after skv_jobs_free(). */
void skv_parking_free(struct skv_server *);

/* Runs a turn: carries out one request that was put off, and begins to park one sequence, if any are due. */
void skv_parking_work(struct skv_server *);
/* Returns whether skv_parking_work() has anything to do. */
bool skv_parking_has_work(const struct skv_server *);
/* Call it once a second: expires parked sequences and sealed prefixes that were not used for sequence-ttl. */
void skv_parking_tick(struct skv_server *);
/* Call it once a second: begins the reads that skv_parking_reload() has requested, once no import is running. */
void skv_parking_look_again(struct skv_server *);

/*
 * Returns a negative errno, with a text in `why`, if the user may have a parked sequence of this name whose file could
 * not be read; otherwise 0.
 */
int skv_parking_unread(struct skv_server *, uid_t uid, const char *name, char why[SKV_TEXT_MAX]);
/* Does the user have a parked sequence of this model, rank and name? */
bool skv_parking_has(struct skv_server *, uid_t uid, const struct skv_model *, const char *name);
/*
 * Begins to resume a parked sequence that a session of this model attaches. Returns 0: the sequence is not parked; 1:
 * its file is being read, and `restored` will be called; or a negative errno with a text.
 */
int skv_parking_attach(struct skv_server *, uid_t uid, const struct skv_model *, const char *name,
                       char why[SKV_TEXT_MAX]);
/* Counts that a client attached a sequence that was in memory, or with `read` one that was read from its file. */
void skv_parking_attached(struct skv_server *, uid_t, bool read);
/*
 * Returns whether a request to drop a sequence (SEQ_DROP), or all sequences of a name (SEQ_DROP_NAME), must wait,
 * because a file of such a sequence is being removed or written: if the daemon ended now, the next one would take the
 * file for a parked sequence. In this case the function cancels the write and puts the request off: no other request of
 * the connection is received, and `again` is called when a job has ended or a file was removed.
 */
typedef void (*skv_parking_again)(struct skv_server *, struct skv_conn *, const struct skv_msg_header *,
                                  const void *body, int *fds);
bool skv_parking_puts_off(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body,
                          skv_parking_again);
/* Is the file of a sequence of this name, of any rank, being read? */
bool skv_parking_is_busy(struct skv_server *, uid_t uid, const char *model, const char *name);
/* Begins to remove the files of the sequences of this name, of all ranks; returns how many there are. */
unsigned skv_parking_drop(struct skv_server *, uid_t uid, const char *model, const char *name);
/* After skv_parking_drop(): files that could not be removed count as parked again. Returns whether there are any. */
bool skv_parking_undo_drop(struct skv_server *, uid_t uid, const char *model, const char *name);

/* ---- sealed prefixes on disk (parked-prefixes.c, restore.c); without parked-path there are none ---- */
/*
 * Adds the sealed prefixes on disk that are not in the index of block keys yet to it, so that they can be found.
 * Returns how many were added. Prefixes that were made with another secret, or whose keys do not fit into their user's
 * quota, are removed: *ret_gone is their number.
 */
unsigned skv_parking_index_prefixes(struct skv_server *, unsigned *ret_gone);
/*
 * Begins to read the user's sealed prefix on disk that shares the most of its first blocks with these n block keys, if
 * it shares at least `least` (1 or more). Returns false if there is none. When the prefix, whose name is ret_name, has
 * been read, `restored` is called.
 */
bool skv_parking_read_prefix(struct skv_server *, uid_t uid, const struct skv_model *, const struct skv_block_key *keys,
                             uint32_t n, uint32_t least, char ret_name[SKV_NAME_MAX]);
/*
 * Ends jobs that read a sealed prefix, still wait for memory, and have no request that waits for the prefix any more.
 */
void skv_parking_give_up_prefixes(struct skv_server *,
                                  bool (*is_awaited)(const struct skv_server *, uid_t uid, const char *name));
/*
 * Returns number and bytes of the sealed prefixes on disk of a user, or of `all` users. False: there is no parked-path.
 */
bool skv_parking_sum_prefixes(const struct skv_server *, bool all, uid_t uid, uint64_t *ret_files, uint64_t *ret_bytes);

/* Handles a SEQ_PARK, SEQ_RESUME, SEQ_EXPORT or SEQ_IMPORT request. */
void skv_parking_request(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body,
                         int *fds);

/*
 * Returns statistics of parked sequences of a user, or of `all` users, with these counts (sys/counts.h), as JSON for
 * `sparsekvctl status`. [] if parking is off.
 */
json_t *skv_parking_status(const struct skv_server *, bool all, uid_t uid, const uint64_t *counts);
/*
 * Passes parked sequences of a user, or of `all` users, to the callback as JSON rows, in turns: from index *at (0 in
 * the first call) on, until *units are used up. The callback owns each row; a row is NULL if there was no memory for
 * it. Returns true when all rows were passed.
 */
bool skv_parking_rows_some(struct skv_server *, bool all, uid_t uid, size_t *at, uint32_t *units,
                           void (*cb)(void *, json_t *), void *ctx);

#endif
