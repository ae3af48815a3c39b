/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/parked/parking-priv.h - what the files of parked/ share: the folder and its index, and how each kind of job
 * is begun. A kind's struct is in the kind's own file.
 */
#ifndef SKV_PARKING_PRIV_H
#define SKV_PARKING_PRIV_H

#include "daemon/core/state/block-index.h"
#include "daemon/jobs/ask.h"
#include "daemon/parked/parking.h"
#include "daemon/server/server-priv.h"

struct skv_parking {
	struct skv_server *server;
	struct skv_jobs *jobs;
	struct skv_files files;
	struct skv_block_index prefixes; /* sealed prefixes on disk; owners are addresses of struct skv_parked */
	struct skv_queue put_off, trying; /* requests that wait; those that are to be tried again now */
	size_t aged;     /* index of the file at which the next tick continues */
	bool look_again; /* look again at files that could not be read */
	const struct skv_parking_ops *ops;
};

/*
 * Begin a job: park a sequence, resume a file into memory of this device, export a file into a pipe, import a file
 * from a descriptor. 0: the job will end and then tell `ask` (may be NULL). Negative errno with a text: no job was
 * begun. `fd` is consumed. Parking a sealed prefix whose file exists needs no job: its memory is freed at once.
 */
int skv_parking_begin_park(struct skv_parking *, uint32_t seq, struct skv_job_ask *, char why[SKV_TEXT_MAX]);
int skv_parking_begin_resume(struct skv_parking *, struct skv_parked *, uint32_t device, struct skv_job_ask *,
                             char why[SKV_TEXT_MAX]);
int skv_parking_begin_export(struct skv_parking *, struct skv_parked *, int fd, char why[SKV_TEXT_MAX]);
int skv_parking_begin_import(struct skv_parking *, uint32_t uid, int fd, struct skv_job_ask *, char why[SKV_TEXT_MAX]);

/* The next PARK or RESUME, after `after` or from the start (NULL), that moves this sequence; or NULL. */
struct skv_job *skv_parking_find_job(const struct skv_parking *, enum skv_disk_job_kind, uint32_t uid,
                                     const char *model, const char *name, const struct skv_job *after);
/* Cancels the PARK of this sequence, or (0) of any, if a worker has it. False: it has not. May free the job. */
bool skv_parking_cancel_park(struct skv_job *, uint32_t seq);
/* Ends exports whose reader reads nothing. */
void skv_parking_end_exports(struct skv_parking *);

/*
 * Looks (rescan.c). skv_parking_look_move() hands the worker a job whose kind, uid and file are set; *ret_found is a
 * memfd for what it finds, the caller's. skv_parking_look_found() enters what the worker found into the list and, with
 * unknown_goes, removes it; -ENOMEM. skv_parking_odd() is a skv_files_odd that logs.
 */
int skv_parking_look_move(struct skv_parking *, struct skv_job *, int *ret_found);
int skv_parking_look_found(struct skv_parking *, uint32_t uid, int found, bool unknown_goes);
void skv_parking_odd(const char *file, const char *why);

/*
 * Files (parked-files.c). Removes a file and then forgets it. Removal is asynchronous and retried each second.
 * skv_parking_remove_rest() removes the rest synchronously at shutdown; after a fatal error it leaves the files,
 * since the commit that has the sequences in memory may be missing.
 */
void skv_parking_remove(struct skv_parking *, struct skv_parked *);
void skv_parking_remove_again(struct skv_parking *, struct skv_parked *);
void skv_parking_remove_rest(struct skv_parking *);
/* Drops the list entry of a file that is gone already. */
void skv_parking_forget(struct skv_parking *, struct skv_parked *);
/* Removes the files of sequences that are in memory as well. */
void skv_parking_remove_known(struct skv_parking *);
/*
 * Enters the file that a job has written, in the entry that was reserved for it: with this header and keys (consumed),
 * or, if the header is NULL, with what the job knows.
 */
void skv_parking_written(struct skv_parking *, const struct skv_disk_job *, struct skv_parked *reserved,
                         const struct skv_parked_header *, struct skv_parked_keys *keys);
/* Marks the file as used now: written, or, for a sealed prefix, read. Its age counts from here. */
void skv_parking_used(struct skv_parked *);
/*
 * Does the user's quota have room for so many more bytes, counting what is being written, but no prefixes? *ret_left:
 * the room.
 */
bool skv_parking_quota_allows(struct skv_parking *, uint32_t uid, uint64_t more, uint64_t *ret_left);
/* Removes the user's least recently used prefixes on disk until the rest fits into the quota that sequences leave. */
void skv_parking_trim_prefixes(struct skv_parking *, uint32_t uid);
/*
 * The disk is full: remove the least recently used prefix of all users. False: there is none. And: is such a removal
 * under way?
 */
bool skv_parking_free_disk(struct skv_parking *);
bool skv_parking_frees_disk(const struct skv_parking *);

/*
 * Adds a prefix on disk to the index. It is removed if its tag belongs to another secret, if memory for its keys is
 * lacking, or if the user's quota has no room for them. Returns true if it was added.
 */
bool skv_parking_index_prefix(struct skv_parking *, struct skv_parked *);

/*
 * Puts a request off (postpone.c). It is carried out when a job has ended or a file was removed. No request of the
 * connection is received meanwhile.
 */
void skv_parking_put_off(struct skv_parking *, struct skv_conn *, const struct skv_msg_header *, const void *body,
                         size_t bytes, skv_parking_again);
/* Carries out one of the requests that are due. At shutdown: frees all of them. */
void skv_parking_try_again(struct skv_parking *);
void skv_parking_forget_put_off(struct skv_parking *);

#endif
