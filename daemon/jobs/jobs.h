/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/jobs/jobs.h - jobs of disk workers: the daemon prepares a job in turns, a worker process moves the bytes
 * (disk/job.h), the daemon completes it.
 *
 * Each kind of job has a file and a struct of its own, in which a struct skv_job is embedded: those on files are in
 * parked/, those with the prefix store in prefix/. Here is what they share: states and their queues, in which users
 * take turns; workers; and requests that wait for the end of jobs (ask.h).
 */
#ifndef SKV_JOBS_H
#define SKV_JOBS_H

#include "common/queue.h"
#include "daemon/disk/job.h"
#include "daemon/worker/worker.h"

/*
 * Disk workers, one process each, so that they do not delay each other: an import waits for its sender, a prefix
 * store may be slow, sending to the store must not delay fetching, and files are removed while others are written.
 */
enum skv_jobs_worker {
	SKV_JOBS_WRITE,
	SKV_JOBS_READ,
	SKV_JOBS_EXPORT,
	SKV_JOBS_IMPORT,
	SKV_JOBS_FETCH,
	SKV_JOBS_SEND,
	SKV_JOBS_REMOVE,
	SKV_JOBS_WORKERS
};

struct skv_core;
struct skv_job;
struct skv_job_kind {
	enum skv_jobs_worker worker; /* moves the bytes */
	/* runs once for a job in TURNS, and again when the job enters TURNS again; may be NULL */
	void (*turn)(struct skv_job *);
	/* The worker has ended the job. answer: NULL if it gave none. */
	void (*moved)(struct skv_job *, int error, const char *why, const struct skv_disk_answer *answer);
	/* Frees the kind's struct and what is in it. */
	void (*free)(struct skv_job *);
};

enum skv_job_state {
	SKV_JOB_HELD,   /* by its kind: it is new, or waits for what only the kind knows */
	SKV_JOB_TURNS,  /* due for a turn */
	SKV_JOB_OTHERS, /* waits until another job has ended or a file was removed */
	SKV_JOB_MEMORY, /* waits for memory */
	SKV_JOB_MOVING, /* a worker has it */
	SKV_JOB_STATES
};

struct skv_job {
	const struct skv_job_kind *kind;
	struct skv_jobs *jobs;
	struct skv_job *next;
	struct skv_disk_job m; /* what the worker is told; `kind` and `uid` are set from the beginning */
	struct skv_worker_job work;
	int *fds; /* for the worker; borrowed, except for the array */
	enum skv_job_state state; /* set by skv_job_enter() */
	struct skv_queued queued; /* in the queue of its state */
	struct skv_job_asked *asked; /* requests that wait for it */
	uint64_t pinned; /* bytes charged to the user until the job is freed (core/memory/pins.h) */
};
/* The kind's struct. */
#define SKV_JOB_OWNER(j, type, member) ((type *)(void *)((char *)(j)-offsetof(type, member)))

struct skv_jobs_config {
	struct skv_loop *loop;
	struct skv_core *core;
	const char *program; /* of workers; borrowed */
	uint64_t timeout_ns; /* as in struct skv_worker_config */
	void (*fail)(void *server, const char *what, int error); /* a fatal error: stops the daemon */
	void *server;
};
struct skv_jobs {
	struct skv_jobs_config config;
	struct skv_worker *workers[SKV_JOBS_WORKERS];
	struct skv_job *all;
	struct skv_queue in[SKV_JOB_STATES]; /* the jobs by state */
	int lock; /* the state's file, which workers lock (disk/lock.h) */
	bool settled; /* a job has ended or a file was removed since the last skv_jobs_settle() */
	bool closed;
};

/*
 * Waits until no worker of the previous daemon is at work, up to a second. Negative errno, with a text. *ret is set
 * even then, if there is memory for it; skv_jobs_free() frees it.
 */
int skv_jobs_new(const struct skv_jobs_config *, struct skv_jobs **ret, char why[SKV_TEXT_MAX]);
void skv_jobs_set_timeout(struct skv_jobs *, uint64_t timeout_ns);
/* Cancels all jobs. Call it before the loop is drained. */
void skv_jobs_close(struct skv_jobs *);
/* Call it after that. `core`: NULL if it was given up. NULL is fine; returns NULL. */
struct skv_jobs *skv_jobs_free(struct skv_jobs *, struct skv_core *core);

/* Runs a turn of one job. And: is there more to do? */
void skv_jobs_work(struct skv_jobs *);
bool skv_jobs_has_work(const struct skv_jobs *);
/* Memory may have been freed: tries the jobs that wait for it. NULL is fine. */
void skv_jobs_retry(struct skv_jobs *);
/* Has a job ended or was a file removed since the last call? Then the jobs that waited for that are due for a turn. */
bool skv_jobs_settle(struct skv_jobs *);

/* The next job after `after` (NULL: the first) that tells its worker this kind, of this user. NULL: there is none. */
struct skv_job *skv_jobs_next(const struct skv_jobs *, const struct skv_job *after, enum skv_disk_job_kind,
                              uint32_t uid);
/* The same of all users. */
struct skv_job *skv_jobs_any(const struct skv_jobs *, enum skv_disk_job_kind);
/* Does the user have a job of this kind? */
bool skv_jobs_has(const struct skv_jobs *, const struct skv_job_kind *, uint32_t uid);

/* Begins a job, in a zeroed struct of its kind. skv_job_free() ends it, in any state but MOVING. */
void skv_job_begin(struct skv_job *, struct skv_jobs *, const struct skv_job_kind *, enum skv_disk_job_kind,
                   uint32_t uid);
void skv_job_free(struct skv_job *);
/*
 * Moves the job to this state, behind the user's other jobs there. In TURNS it gets a turn; each turn of the loop
 * runs one job.
 */
void skv_job_enter(struct skv_job *, enum skv_job_state);
/*
 * Hands the job to its worker, with these descriptors at SKV_DISK_FD_USER and, unless -1, SKV_DISK_FD_OTHER. They are
 * borrowed: nothing is duplicated while the job waits for its turn. -ENOMEM.
 */
int skv_job_move(struct skv_job *, int user, int other);
/*
 * The same with n_fds descriptors, in an array of malloc() that the job owns from now on, or that it had when it was
 * moved before. The first one is set here.
 */
void skv_job_move_fds(struct skv_job *, int *fds, uint32_t n_fds);

#endif
