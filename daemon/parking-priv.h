/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/parking-priv.h - what parking.c (jobs) and parking-request.c (who asks for them) share. */
#ifndef SKV_PARKING_PRIV_H
#define SKV_PARKING_PRIV_H

#include "common/queue.h"
#include "daemon/core/block-index.h"
#include "daemon/core/parking.h"
#include "daemon/core/prefix.h"
#include "daemon/disk/job.h"
#include "daemon/parking.h"
#include "daemon/server-priv.h"
#include "daemon/worker/worker.h"

/*
 * Each kind has a process of its own: what an import waits for holds up neither those that are parked nor those that wait for a sequence;
 * nor does a slow store, and what it is sent holds up none that wait for it. Files go while others are written.
 */
enum {
	SKV_PARKING_OUT,
	SKV_PARKING_IN,
	SKV_PARKING_EXPORT,
	SKV_PARKING_IMPORT,
	SKV_PARKING_FETCH,
	SKV_PARKING_SEND,
	SKV_PARKING_REMOVE,
	SKV_PARKING_WORKERS
};

/* A request that is answered when its jobs are through. Its connection has one at most: no request is received until then. */
struct skv_parking_ask {
	void (*tell)(const struct skv_parking *, const struct skv_parking_ask *);
	uint64_t conn; /* its number */
	struct skv_msg_header header;
	char name[SKV_NAME_MAX];
	unsigned jobs; /* that are under way */
	unsigned done;
	uint64_t bytes, begun_ns;
	int error; /* of the first that failed: negative errno */
	char why[SKV_TEXT_MAX];
};
struct skv_parking_asked {
	struct skv_parking_asked *next;
	struct skv_parking_ask *ask;
};

struct skv_parking_job;
struct skv_parking_kind {
	unsigned worker; /* which moves its bytes */
	void (*turn)(struct skv_parking_job *); /* in TURNS: once, and again if it enters TURNS anew; NULL: it has none */
	void (*moved)(struct skv_parking_job *, int error, const char *why, const void *answer);
};

struct skv_parking_job {
	struct skv_worker_job work; /* first: what `done` is given */
	const struct skv_parking_kind *kind;
	struct skv_disk_job m;
	struct skv_parking_job *next;
	struct skv_parking *parking;
	enum skv_parking_state {
		SKV_PARKING_NEW,
		SKV_PARKING_TURNS,  /* PARK: its entries are checked, and then it goes to the worker; RESUME: it takes pages */
		SKV_PARKING_FILE,   /* PARK: it is listed, and a file that is there, of its name, or that makes room on the disk, is to go first */
		SKV_PARKING_MEMORY, /* RESUME: it waits for memory */
		SKV_PARKING_MOVING, /* with a worker */
		SKV_PARKING_READER, /* SEND: its pipe is full */
		SKV_PARKING_WRITTEN, /* PARK, IMPORT: its file is there */
		SKV_PARKING_STATES,
	} state; /* skv_parking_enter() */
	struct skv_queued queued; /* beside the others in the same state */
	uint32_t seq; /* PARK, RESUME */
	bool listed;   /* PARK, STORE_PUT: its entries are */
	bool insisted; /* PARK: that an earlier file goes */
	bool again;    /* PARK: the disk was full, and a prefix there goes */
	struct skv_core_listing listing;
	struct skv_parked *file; /* RESUME, SEND; PARK, IMPORT: that was written */
	struct skv_parked *reserved; /* PARK, IMPORT: for that; NULL */
	uint64_t taken;          /* RESUME: pages */
	struct skv_op op;        /* SEND: its pipe has room ... */
	uint64_t patient_until_ns; /* ... before this time, or it ends */
	uint8_t *segments;       /* of a device: which are needed, a byte each; else NULL */
	uint32_t n_segments;
	uint64_t marked; /* entries of the list that were looked at for these */
	int list, store, other;  /* own descriptors: -1; `store` is what the store is told */
	int *fds;                /* for the worker; those of segments are borrowed */
	uint64_t begun_ns;
	struct skv_parking_asked *asked;
	struct skv_prefix_ask *prefix; /* STORE_: whose it is */
	int error;               /* IMPORT: that has ended it, while a look is taken at what it left; with a text */
	char why[SKV_TEXT_MAX];
	uint64_t pinned;               /* bytes that its user is charged for lists and what is told, until it is freed (core/pins.h) */
};

/* A request that waits until files of its sequence are gone, or until fewer of its user's are being parked. */
struct skv_put_off {
	struct skv_queued queued;
	uint64_t conn; /* its number */
	struct skv_msg_header header;
	skv_parking_again again;
	union {
		struct skv_msg_seq seq;
		struct skv_msg_seq_of name;
	} body;
};

struct skv_parking {
	struct skv_server *server;
	struct skv_files files;
	struct skv_block_index prefixes; /* sealed prefixes on disk: addresses of those files */
	struct skv_worker *workers[SKV_PARKING_WORKERS];
	struct skv_parking_job *jobs;
	struct skv_queue in[SKV_PARKING_STATES]; /* the same by state */
	struct skv_queue put_off, trying; /* those that wait; and those that are to be tried again */
	size_t aged;     /* the file at which the next tick goes on aging them */
	bool look_again; /* for what could not be read */
	bool settled; /* since those were looked at, a job has ended or a file has gone */
	bool closed;
	skv_parking_restored restored;
};

/*
 * Begin: an errno, negative, with a text, or 0; then the job will end, and tell `ask` (NULL: nobody asked). A sequence that is in memory to
 * a file; a file's to memory, of this device; a file into a pipe; what a descriptor has, to a file. `fd` is consumed. No job is needed for a
 * sealed prefix that is in a file already: it goes from memory at once.
 */
int skv_parking_begin_park(struct skv_parking *, uint32_t seq, struct skv_parking_ask *, char why[SKV_TEXT_MAX]);
int skv_parking_begin_resume(struct skv_parking *, struct skv_parked *, uint32_t device, struct skv_parking_ask *, char why[SKV_TEXT_MAX]);
int skv_parking_begin_export(struct skv_parking *, struct skv_parked *, int fd, char why[SKV_TEXT_MAX]);
int skv_parking_begin_import(struct skv_parking *, uint32_t uid, int fd, struct skv_parking_ask *, char why[SKV_TEXT_MAX]);
/* Another who waits for a job. -ENOMEM. */
int skv_parking_wait(struct skv_parking_job *, struct skv_parking_ask *);
/* A job of it is through; or none was begun (`error` 0, and jobs is 0): it is answered when that was the last one, and freed. */
void skv_parking_answer(struct skv_parking *, struct skv_parking_ask *, int error, const char *why);
/* Has the user a job of this kind? */
bool skv_parking_has_job(const struct skv_parking *, const struct skv_parking_kind *, uint32_t uid);
/* The job that moves such a sequence, or NULL. */
struct skv_parking_job *skv_parking_find_job(struct skv_parking *, uint32_t kind, uint32_t uid, const char *model, const char *name,
                                             struct skv_parking_job *after);
/* A file of this name is being written, or was and nobody has heard of it yet. */
bool skv_parking_is_about_to_be(const struct skv_parking *, uint32_t uid, const char *file);

/*
 * Files (parked-files.c). One goes, and then is not known any more; where that fails it is tried again, at each tick. The last time nobody
 * waits: a daemon that could not go on leaves them, since that a sequence is in memory, and its file may go, was perhaps not committed.
 */
void skv_parking_remove(struct skv_parking *, struct skv_parked *);
/* It was written just now, or, a sealed prefix, read: from now on it grows old. */
void skv_parking_used(struct skv_parked *);
void skv_parking_remove_again(struct skv_parking *, struct skv_parked *);
void skv_parking_remove_rest(struct skv_parking *);
/* It is gone already. */
void skv_parking_forget(struct skv_parking *, struct skv_parked *);
/* What is in memory, too: its file goes. */
void skv_parking_remove_known(struct skv_parking *);

/*
 * Looks (look.c): a job, of which kind, uid and file are set, goes to its worker; what it has found is entered into the list, and (unknown_goes)
 * removed: -ENOMEM. A skv_files_odd, which logs.
 */
int skv_parking_look_move(struct skv_parking_job *);
int skv_parking_look_found(struct skv_parking_job *, bool unknown_goes);
void skv_parking_odd(const char *file, const char *why);

/* Is there room for so many bytes in the user's quota, with what is being written, and without prefixes? *ret_left: that there is. */
bool skv_parking_quota_allows(struct skv_parking *, uint32_t uid, uint64_t more, uint64_t *ret_left);
/* The user's prefixes on disk that were not used for longest go, as long as they do not fit into what sequences leave of its quota. */
void skv_parking_trim_prefixes(struct skv_parking *, uint32_t uid);
/* The disk is full: the prefix of anybody's that was not used for longest goes. False: there is none. And is one on its way? */
bool skv_parking_free_disk(struct skv_parking *);
bool skv_parking_frees_disk(const struct skv_parking *);
/* PARK of a prefix: its n_keys keys, and their tag, into the list at keys_at. -ENOSPC. */
int skv_parking_list_keys(const struct skv_parking_job *, const struct skv_block_key *);
/*
 * The prefix on disk, or all that are new, are found from now on: how many; or they go, since they are of another secret, or there is no memory for
 * their keys, or none in their user's quota.
 */
bool skv_parking_index_prefix(struct skv_parking *, struct skv_parked *);
unsigned skv_parking_index_prefixes(struct skv_parking *, unsigned *ret_gone);
/*
 * A prefix on disk that has the most of these n blocks, `least` (1 or more) at least; the smallest of those that have as many. NULL: there is
 * none. It may be on its way to memory already (`busy`).
 */
struct skv_parked *skv_parking_find_prefix(const struct skv_parking *, uint32_t uid, const struct skv_model *, const struct skv_block_key *keys,
                                           uint32_t n, uint32_t least);

/* For the kinds: a job, with the user's folder (NULL, with a text); to its worker, with so many bytes listed; who asked is told, and it is freed; it is freed. */
struct skv_parking_job *skv_parking_job_new(struct skv_parking *, const struct skv_parking_kind *, uint32_t disk_kind, uint32_t uid,
                                            char why[SKV_TEXT_MAX]);
int skv_parking_move(struct skv_parking_job *, uint64_t listed);
/* It is in this state from now on, behind the user's others that are: in TURNS it gets a turn, of which there is one in a turn of the loop. */
void skv_parking_enter(struct skv_parking_job *, enum skv_parking_state);
/* Its connection, of which no request is received meanwhile, has this one again when a job has ended, or a file has gone. */
void skv_parking_put_off(struct skv_parking *, struct skv_conn *, const struct skv_msg_header *, const void *body, size_t bytes, skv_parking_again);
/* One of these requests that need not be put off any more has its turn. At the end: nobody waits for them. */
void skv_parking_try_again(struct skv_parking *);
void skv_parking_forget_put_off(struct skv_parking *);
/*
 * RESUME, STORE_GET: a turn's worth of the pages that it lacks, into the list; with the last of them it goes to its worker. Negative errno,
 * with a text: it cannot go on, and the caller ends it.
 */
int skv_parking_take_pages(struct skv_parking_job *, char why[SKV_TEXT_MAX]);
/* PARK, STORE_PUT: segments of the pages in the list, a turn's worth. 1: there are more; -EIO: it cannot be read. */
int skv_parking_mark_segments(struct skv_parking_job *, uint32_t pages_per_segment);
/* The file that the job has written, with this header and keys (consumed), or (NULL) all that is known of it: it is the job's `file`. */
void skv_parking_written(struct skv_parking_job *, const struct skv_parked_header *, struct skv_parked_keys *);
/* RESUME: nobody waits for it any more. */
void skv_parking_give_up(struct skv_parking_job *);
void skv_parking_end(struct skv_parking_job *, int error, const char *why);
void skv_parking_job_free(struct skv_parking_job *);
/* It cannot be begun (negative errno, or an error of the core): it is freed, and who asks is not told. The negative errno, with a text. */
int skv_parking_not_begun(struct skv_parking_job *, int r, char why[SKV_TEXT_MAX]);

#endif
