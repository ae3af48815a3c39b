/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/parked/parking-priv.h - what parking.c (jobs), the kinds of jobs and parking-request.c (requests for them) share. */
#ifndef SKV_PARKING_PRIV_H
#define SKV_PARKING_PRIV_H

#include "common/queue.h"
#include "daemon/core/block-index.h"
#include "daemon/core/parking.h"
#include "daemon/core/prefix.h"
#include "daemon/disk/job.h"
#include "daemon/parked/parking.h"
#include "daemon/requests/deferred.h"
#include "daemon/server/server-priv.h"
#include "daemon/worker/worker.h"

/*
 * Disk workers, one process each, so that they do not delay each other: an import waits for its sender, a prefix
 * store may be slow, sending to the store must not delay fetching, and files are removed while others are written.
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

/*
 * A request that is answered when all its jobs have ended. A connection has at most one: no further request is
 * received until the reply.
 */
struct skv_parking_ask {
	struct skv_deferred request;
	void (*tell)(struct skv_parking_ask *);
	char name[SKV_NAME_MAX];
	unsigned jobs; /* jobs under way */
	unsigned done;
	uint64_t bytes, begun_ns;
	int error; /* of the first job that failed: negative errno */
	char why[SKV_TEXT_MAX];
};
struct skv_parking_asked {
	struct skv_parking_asked *next;
	struct skv_parking_ask *ask;
};

struct skv_parking_job;
struct skv_parking_kind {
	unsigned worker; /* the worker that moves the bytes */
	/* runs once for a job in TURNS, and again when the job enters TURNS again; may be NULL */
	void (*turn)(struct skv_parking_job *);
	void (*moved)(struct skv_parking_job *, int error, const char *why, const void *answer);
};

struct skv_parking_job {
	struct skv_worker_job work; /* first: `done` gets a pointer to it */
	const struct skv_parking_kind *kind;
	struct skv_disk_job m;
	struct skv_parking_job *next;
	struct skv_parking *parking;
	enum skv_parking_state {
		SKV_PARKING_NEW,
		/*
		 * PARK, STORE_PUT: its entries are listed and checked, then it goes to the worker; RESUME, STORE_GET:
		 * it takes pages
		 */
		SKV_PARKING_TURNS,
		/*
		 * PARK: it is listed, and waits for the removal of a file: an earlier one of its name, or one that
		 * makes room on the disk
		 */
		SKV_PARKING_FILE,
		SKV_PARKING_MEMORY, /* RESUME, STORE_GET: waits for memory */
		SKV_PARKING_MOVING, /* a worker has it */
		SKV_PARKING_READER, /* SEND: its pipe is full */
		SKV_PARKING_WRITTEN, /* PARK, IMPORT: its file has been written */
		SKV_PARKING_STATES,
	} state; /* set by skv_parking_enter() */
	struct skv_queued queued; /* in the queue of its state */
	uint32_t seq; /* PARK, RESUME, STORE_GET, STORE_PUT */
	bool listed;   /* PARK, STORE_PUT: all entries are listed */
	bool insisted; /* PARK: the removal of an earlier file was requested */
	bool again;    /* PARK: the disk was full, and a prefix is being removed from it */
	struct skv_core_listing listing;
	struct skv_parked *file; /* RESUME: the file that is read; PARK, IMPORT: the file that was written */
	struct skv_parked *reserved; /* PARK, IMPORT: the list entry reserved for that file; else NULL */
	uint64_t taken;          /* RESUME, STORE_GET: pages taken so far */
	struct skv_op op;        /* SEND: waits until its pipe has room ... */
	uint64_t patient_until_ns; /* ... until this time, then the job ends */
	uint8_t *segments;       /* of a device: one byte for each segment, set if the segment is needed; else NULL */
	uint32_t n_segments;
	uint64_t marked; /* entries of the list scanned for `segments` */
	int list, store, other;  /* own descriptors, or -1; `store`: what a worker of the prefix store is told */
	int *fds;                /* for the worker; those of segments are borrowed */
	uint64_t begun_ns;
	struct skv_parking_asked *asked;
	struct skv_prefix_ask *prefix; /* STORE_*: the request it belongs to */
	int error;               /* IMPORT: its error, with a text, while a look is taken at what it left */
	char why[SKV_TEXT_MAX];
	/* bytes charged to the user for lists and the worker's input, until the job is freed (core/pins.h) */
	uint64_t pinned;
};

/*
 * A request that waits until files of its sequence are removed, or until fewer sequences of its user are being
 * parked.
 */
struct skv_put_off {
	struct skv_deferred request;
	struct skv_queued queued;
	skv_parking_again again;
	union {
		struct skv_msg_seq seq;
		struct skv_msg_seq_of name;
	} body;
};

struct skv_parking {
	struct skv_server *server;
	struct skv_files files;
	struct skv_block_index prefixes; /* sealed prefixes on disk; owners are addresses of struct skv_parked */
	struct skv_worker *workers[SKV_PARKING_WORKERS];
	struct skv_parking_job *jobs;
	struct skv_queue in[SKV_PARKING_STATES]; /* the jobs by state */
	struct skv_queue put_off, trying; /* requests that wait; those that are to be tried again now */
	size_t aged;     /* index of the file at which the next tick continues */
	bool look_again; /* look again at files that could not be read */
	bool settled; /* since the last check a job has ended or a file was removed */
	bool closed;
	const struct skv_parking_ops *ops;
};

/*
 * Begin a job: park a sequence, resume a file into memory of this device, export a file into a pipe, import a file
 * from a descriptor. 0: the job will end and then tell `ask` (may be NULL). Negative errno with a text: no job was
 * begun. `fd` is consumed. Parking a sealed prefix whose file exists needs no job: its memory is freed at once.
 */
int skv_parking_begin_park(struct skv_parking *, uint32_t seq, struct skv_parking_ask *, char why[SKV_TEXT_MAX]);
int skv_parking_begin_resume(struct skv_parking *, struct skv_parked *, uint32_t device, struct skv_parking_ask *, char why[SKV_TEXT_MAX]);
int skv_parking_begin_export(struct skv_parking *, struct skv_parked *, int fd, char why[SKV_TEXT_MAX]);
int skv_parking_begin_import(struct skv_parking *, uint32_t uid, int fd, struct skv_parking_ask *, char why[SKV_TEXT_MAX]);
/* Adds a request that waits for the job. -ENOMEM. */
int skv_parking_wait(struct skv_parking_job *, struct skv_parking_ask *);
/*
 * One job of the request has ended; the request counts as one job itself until all others are begun. The last call
 * answers the request and frees it.
 */
void skv_parking_answer(struct skv_parking_ask *, int error, const char *why);
/* Does the user have a job of this kind? */
bool skv_parking_has_job(const struct skv_parking *, const struct skv_parking_kind *, uint32_t uid);
/* The next job, after `after` or from the start (NULL), that moves this sequence; or NULL. */
struct skv_parking_job *skv_parking_find_job(struct skv_parking *, uint32_t kind, uint32_t uid, const char *model, const char *name,
                                             struct skv_parking_job *after);
/* Is there a PARK job for a file of this name? The file may exist already. */
bool skv_parking_is_about_to_be(const struct skv_parking *, uint32_t uid, const char *file);

/*
 * Files (parked-files.c). Removes a file and then forgets it. Removal is asynchronous and retried each second.
 * skv_parking_remove_rest() removes the rest synchronously at shutdown; after a fatal error it leaves the files,
 * since the commit that has the sequences in memory may be missing.
 */
void skv_parking_remove(struct skv_parking *, struct skv_parked *);
/* Marks the file as used now: written, or, for a sealed prefix, read. Its age counts from here. */
void skv_parking_used(struct skv_parked *);
void skv_parking_remove_again(struct skv_parking *, struct skv_parked *);
void skv_parking_remove_rest(struct skv_parking *);
/* Drops the list entry of a file that is gone already. */
void skv_parking_forget(struct skv_parking *, struct skv_parked *);
/* Removes the files of sequences that are in memory as well. */
void skv_parking_remove_known(struct skv_parking *);

/*
 * Looks (look.c). skv_parking_look_move() gives the worker a job whose kind, uid and file are set.
 * skv_parking_look_found() enters what the worker found into the list and, with unknown_goes, removes it; -ENOMEM.
 * skv_parking_odd() is a skv_files_odd that logs.
 */
int skv_parking_look_move(struct skv_parking_job *);
int skv_parking_look_found(struct skv_parking_job *, bool unknown_goes);
void skv_parking_odd(const char *file, const char *why);

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
/* PARK of a prefix: writes its n_keys keys and their tag to the list at keys_at. -ENOSPC. */
int skv_parking_list_keys(const struct skv_parking_job *, const struct skv_block_key *);
/*
 * Adds a prefix on disk to the index. It is removed if its tag belongs to another secret, if memory for its keys is
 * lacking, or if the user's quota has no room for them. Returns true if it was added.
 */
bool skv_parking_index_prefix(struct skv_parking *, struct skv_parked *);

/*
 * For the kinds of jobs: create a job (NULL, with a text: no memory); hand it to its worker, with `listed` bytes in
 * the list.
 */
struct skv_parking_job *skv_parking_job_new(struct skv_parking *, const struct skv_parking_kind *, uint32_t disk_kind, uint32_t uid,
                                            char why[SKV_TEXT_MAX]);
int skv_parking_move(struct skv_parking_job *, uint64_t listed);
/*
 * Moves the job to this state, behind the user's other jobs there. In TURNS it gets a turn; each turn of the loop
 * runs one job.
 */
void skv_parking_enter(struct skv_parking_job *, enum skv_parking_state);
/*
 * Puts a request off. It is carried out when a job has ended or a file was removed. No request of the connection is
 * received meanwhile.
 */
void skv_parking_put_off(struct skv_parking *, struct skv_conn *, const struct skv_msg_header *, const void *body, size_t bytes, skv_parking_again);
/* Carries out one of the requests that are due. At shutdown: frees all of them. */
void skv_parking_try_again(struct skv_parking *);
void skv_parking_forget_put_off(struct skv_parking *);
/*
 * RESUME, STORE_GET: takes some of the missing pages and adds them to the list; with the last of them the job goes to
 * its worker. Negative errno, with a text: the job cannot go on, and the caller ends it.
 */
int skv_parking_take_pages(struct skv_parking_job *, char why[SKV_TEXT_MAX]);
/*
 * PARK, STORE_PUT: marks the segments of some of the pages in the list. 1: more are left; -EIO: the list cannot be
 * read.
 */
int skv_parking_mark_segments(struct skv_parking_job *, uint32_t pages_per_segment);
/*
 * Enters the file that the job has written into the list, as the job's `file`: with this header and keys (consumed),
 * or, if the header is NULL, with what the job knows.
 */
void skv_parking_written(struct skv_parking_job *, const struct skv_parked_header *, struct skv_parked_keys *);
/*
 * End and free a job: and answer its requests; without answers.
 */
void skv_parking_end(struct skv_parking_job *, int error, const char *why);
void skv_parking_job_free(struct skv_parking_job *);
/*
 * The job could not be begun (r: negative errno, or an error of the core): frees it without answering its requests.
 * Returns the negative errno, with a text.
 */
int skv_parking_not_begun(struct skv_parking_job *, int r, char why[SKV_TEXT_MAX]);

#endif
