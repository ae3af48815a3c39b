/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/parked/parking-priv.h - shared by the files of parked/: the folder of parked sequences with its index, and the
 * functions that begin each kind of job. The struct of each kind of job is in that kind's .c file.
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
	struct skv_block_index prefixes; /* keys of sealed prefixes on disk; owners: addresses of struct skv_parked */
	struct skv_queue put_off, trying; /* requests that are put off (postpone.c); those to be carried out now */
	size_t n_leaving_prefixes; /* sealed prefixes whose files are being removed */
	size_t aged;     /* index in files.all at which the next tick continues to expire files */
	bool look_again; /* files that could not be read are to be read again */
	const struct skv_parking_ops *ops;
};

/*
 * These functions begin a job: to park a sequence, to resume a parked file into memory of a device, to export a file
 * into the pipe `fd`, or to import a file from the descriptor `fd`. `fd` is consumed. Return 0: the job is begun, and
 * when it ends it answers `ask`, unless NULL. Negative errno with a text: no job was begun. A sealed prefix whose file
 * exists is parked without a job: its memory is freed at once.
 */
int skv_parking_begin_park(struct skv_parking *, uint32_t seq, struct skv_job_ask *, char why[SKV_TEXT_MAX]);
int skv_parking_begin_resume(struct skv_parking *, struct skv_parked *, uint32_t device, struct skv_job_ask *,
                             char why[SKV_TEXT_MAX]);
int skv_parking_begin_export(struct skv_parking *, struct skv_parked *, int fd, char why[SKV_TEXT_MAX]);
int skv_parking_begin_import(struct skv_parking *, uint32_t uid, int fd, struct skv_job_ask *, char why[SKV_TEXT_MAX]);

/* Returns the next PARK or RESUME job of the user's sequence after `after`, or the first if that is NULL; or NULL. */
struct skv_job *skv_parking_find_job(const struct skv_parking *, enum skv_disk_job_kind, uint32_t uid,
                                     const char *model, const char *name, const struct skv_job *after);
/*
 * Cancels a PARK job if a worker is running it, and only if it parks the sequence `seq`, unless that is 0. Returns
 * whether the job was canceled; it may then be freed.
 */
bool skv_parking_cancel_park(struct skv_job *, uint32_t seq);
/* Ends exports whose reader has not read anything for disk-timeout. */
void skv_parking_end_exports(struct skv_parking *);

/*
 * LOOK jobs (rescan.c): a worker reads headers of files. skv_parking_look_move() submits such a job, whose kind, uid
 * and file are set; *ret_found is a memfd for the results, which the caller owns. skv_parking_look_found() enters files
 * of these results that are not known yet into the list, and with unknown_goes begins to remove them from the disk;
 * -ENOMEM. skv_parking_odd() is a skv_files_odd that logs.
 */
int skv_parking_look_move(struct skv_parking *, struct skv_job *, int *ret_found);
int skv_parking_look_found(struct skv_parking *, uint32_t uid, int found, bool unknown_goes);
void skv_parking_odd(const char *file, const char *why);

/*
 * Removal of files (parked-files.c). skv_parking_remove() begins to remove a file; when the file is gone, its list
 * entry is freed. A removal that failed is begun again by skv_parking_remove_again(), which is called each second. At
 * shutdown skv_parking_remove_rest() synchronously removes the files whose removal has not succeeded. After a fatal
 * error of the daemon it removes none, since the state that has their sequences in memory may not have been committed.
 */
void skv_parking_remove(struct skv_parking *, struct skv_parked *);
void skv_parking_remove_again(struct skv_parking *, struct skv_parked *);
void skv_parking_remove_rest(struct skv_parking *);
/* Frees the list entry of a file that is gone already, and removes its keys from the index. */
void skv_parking_forget(struct skv_parking *, struct skv_parked *);
/* Begins to remove the files of sequences that are in memory as well; the memory is then authoritative. */
void skv_parking_remove_known(struct skv_parking *);
/*
 * Enters a file that a job has written into the list, in the entry that was reserved for it, with the file's header and
 * keys, which are consumed. Header NULL: the file may be incomplete, and the entry gets only the job's model and name.
 */
void skv_parking_enter(struct skv_parking *, const struct skv_disk_job *, struct skv_parked *reserved,
                       const struct skv_parked_header *, struct skv_parked_keys *keys);
/* The same for a file that stays: makes room for it in the user's quota, by removing sealed prefixes. */
void skv_parking_written(struct skv_parking *, const struct skv_disk_job *, struct skv_parked *reserved,
                         const struct skv_parked_header *, struct skv_parked_keys *keys);
/* Restarts the age of a file that was just written, or of a sealed prefix that was just read. */
void skv_parking_used(struct skv_parked *);
/*
 * Returns whether the user's quota has room for a file of `more` bytes. Files that are being written count. Sealed
 * prefixes do not count, because they are removed to make room. *ret_left: bytes left in the quota.
 */
bool skv_parking_quota_allows(struct skv_parking *, uint32_t uid, uint64_t more, uint64_t *ret_left);
/* Removes the user's least recently used prefixes on disk until its sequences and prefixes together fit its quota. */
void skv_parking_trim_prefixes(struct skv_parking *, uint32_t uid);
/*
 * For a disk that is full: skv_parking_free_disk() removes the least recently used sealed prefix of all users, and
 * returns false if there is none. skv_parking_frees_disk() returns whether a prefix is being removed.
 */
bool skv_parking_free_disk(struct skv_parking *);
bool skv_parking_frees_disk(const struct skv_parking *);

/*
 * Adds a sealed prefix on disk to the index. Returns true if it was added. Otherwise the prefix's file is removed: its
 * tag was made with another secret, memory for its keys is lacking, or the user's quota has no room for the keys.
 */
bool skv_parking_index_prefix(struct skv_parking *, struct skv_parked *);

/*
 * Puts a request off (postpone.c): `again` carries it out when a job has ended or a file was removed. Until then no
 * other request of the connection is received.
 */
void skv_parking_put_off(struct skv_parking *, struct skv_conn *, const struct skv_msg_header *, const void *body,
                         size_t bytes, skv_parking_again);
/* Carries out one of the requests that were put off and are due. */
void skv_parking_try_again(struct skv_parking *);
/* Frees all requests that were put off, at shutdown. */
void skv_parking_forget_put_off(struct skv_parking *);

#endif
