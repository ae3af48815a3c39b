/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/parked/parking.h - sequences are parked on disk and resumed. See parking.c. */
#ifndef SKV_PARKING_H
#define SKV_PARKING_H

#include <jansson.h>
#include "daemon/disk/files.h"

struct skv_server;
struct skv_conn;

/* What the parts of the daemon that use parking do for it. */
struct skv_parking_ops {
	/*
	 * A sequence that a client attaches, or a sealed prefix, has been read, or reading failed (error: negative
	 * errno, why).
	 */
	void (*restored)(struct skv_server *, uid_t uid, const struct skv_model *, const char *name, int error,
	                 const char *why);
	/* Makes the tag that proves that a sealed prefix's keys are this user's, and follow from the secret. */
	void (*tag)(const struct skv_server *, uid_t uid, const struct skv_block_key *keys, uint32_t n,
	            uint8_t ret[SKV_PARKED_TAG]);
};
/* Does nothing without parked-path. Negative errno, logged: the folder cannot be used. */
int skv_parking_start(struct skv_server *, const struct skv_parking_ops *);
/* Reads again what could not be read before: within a second, or after the import that is under way. */
void skv_parking_reload(struct skv_server *);
/* When its jobs are freed. */
void skv_parking_free(struct skv_server *);

/* Begins jobs. And: is there more to do? */
void skv_parking_work(struct skv_server *);
bool skv_parking_has_work(const struct skv_server *);
/* Once a second: expires parked sequences that were not used for sequence-ttl. */
void skv_parking_tick(struct skv_server *);
/* Once a second: after a reload, looks at files that could not be read, once no import is under way. */
void skv_parking_look_again(struct skv_server *);

/* Negative errno: the user may have a parked sequence of this name that the disk could not deliver; a text in `why`. */
int skv_parking_unread(struct skv_server *, uid_t uid, const char *name, char why[SKV_TEXT_MAX]);
/* Does the user have this parked sequence? */
bool skv_parking_has(struct skv_server *, uid_t uid, const struct skv_model *, const char *name);
/*
 * A session of this model attaches the sequence. 0: it is not parked; 1: it is being read, and `restored` will be
 * called; negative errno with a text.
 */
int skv_parking_attach(struct skv_server *, uid_t uid, const struct skv_model *, const char *name,
                       char why[SKV_TEXT_MAX]);
/* Counts an attach of a sequence that was in memory, or had to be read. */
void skv_parking_attached(struct skv_server *, uid_t, bool read);
/*
 * Does dropping a sequence (SEQ_DROP), or all of a name (SEQ_DROP_NAME), have to wait? True: a file of it exists or
 * may still be written, and the next daemon would take that for a parked sequence. Then this cancels the write,
 * pauses the connection, and calls `again` once the file is removed.
 */
typedef void (*skv_parking_again)(struct skv_server *, struct skv_conn *, const struct skv_msg_header *,
                                  const void *body, int *fds);
bool skv_parking_puts_off(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body,
                          skv_parking_again);
/*
 * Is a sequence of this name, of any rank, being read? Remove the files of all of them; returns how many. Afterwards:
 * what could not be removed counts as parked again; returns whether there was such a file.
 */
bool skv_parking_is_busy(struct skv_server *, uid_t uid, const char *model, const char *name);
unsigned skv_parking_drop(struct skv_server *, uid_t uid, const char *model, const char *name);
bool skv_parking_undo_drop(struct skv_server *, uid_t uid, const char *model, const char *name);

/* ---- sealed prefixes on disk (parked-prefixes.c, restore.c); without parked-path there are none ---- */
/*
 * Indexes those that are not indexed yet, so that they can be found. Removes those of another secret, and those whose
 * keys do not fit into their users' quotas: *ret_gone. Returns how many were added.
 */
unsigned skv_parking_index_prefixes(struct skv_server *, unsigned *ret_gone);
/*
 * Is there one that has at least `least` (1 or more) of these n blocks? Then the one that has the most of them is read,
 * `restored` will be called, and ret_name is its name.
 */
bool skv_parking_read_prefix(struct skv_server *, uid_t uid, const struct skv_model *, const struct skv_block_key *keys,
                             uint32_t n, uint32_t least, char ret_name[SKV_NAME_MAX]);
/* Gives up reading prefixes that wait for memory, and that nothing waits for any more. */
void skv_parking_give_up_prefixes(struct skv_server *,
                                  bool (*is_awaited)(const struct skv_server *, uid_t uid, const char *name));
/* Files and bytes of a user's, or of all. False: there is no parked-path. */
bool skv_parking_sum_prefixes(const struct skv_server *, bool all, uid_t uid, uint64_t *ret_files, uint64_t *ret_bytes);

/* SEQ_PARK, SEQ_RESUME, SEQ_EXPORT, SEQ_IMPORT. */
void skv_parking_request(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body,
                         int *fds);

/* For status: of all users, or of one, with these counts (sys/counts.h); [] if parking is off. */
json_t *skv_parking_status(const struct skv_server *, bool all, uid_t uid, const uint64_t *counts);
/*
 * Makes rows of the list from index *at (first 0) until *units are used up. The callback owns each row; a row is NULL
 * if there was no memory for it. True: the list is complete.
 */
bool skv_parking_rows_some(struct skv_server *, bool all, uid_t uid, size_t *at, uint32_t *units,
                           void (*cb)(void *, json_t *), void *ctx);

#endif
