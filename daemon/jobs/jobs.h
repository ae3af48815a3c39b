/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/jobs/jobs.h - jobs of disk workers: the daemon prepares a job in turns, a worker process moves the bytes
 * (disk/job.h), the daemon completes the job.
 *
 * Each kind of job has a file, and a struct in which a struct skv_job is embedded: jobs on files are in parked/, jobs
 * for the prefix store in prefix/. This file has the parts that all kinds share: the states of jobs, with a queue for
 * each, in which users take turns; and the workers. Requests that wait for the end of jobs are in ask.h.
 */
#ifndef SKV_JOBS_H
#define SKV_JOBS_H

#include "common/queue.h"
#include "daemon/disk/job.h"
#include "daemon/worker/worker.h"

/*
 * The disk workers. Each is a process of its own, so that its jobs do not delay those of other workers: an import waits
 * for its sender, a prefix store may be slow, sending to the store must not delay fetching, and files must be removed
 * while other files are written.
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
	enum skv_jobs_worker worker; /* the worker that moves the bytes of such jobs */
	/*
	 * Called once each time the job has entered the state TURNS, when it is the job's turn. NULL: never in TURNS.
	 */
	void (*turn)(struct skv_job *);
	/*
	 * Called when the worker has ended the job, with 0 or a negative errno. answer: NULL if the worker gave none.
	 */
	void (*moved)(struct skv_job *, int error, const char *why, const struct skv_disk_answer *answer);
	/* Frees the kind's struct, in which the job is embedded, and everything that it owns. */
	void (*free)(struct skv_job *);
};

enum skv_job_state {
	SKV_JOB_HELD,   /* the kind's functions have the job: it is new, runs its turn, or waits for an event */
	SKV_JOB_TURNS,  /* the job is due for a turn */
	SKV_JOB_OTHERS, /* the job waits until another job has ended or a file was removed */
	SKV_JOB_MEMORY, /* the job waits for pages of memory */
	SKV_JOB_MOVING, /* the job's worker runs the job, or has it in its queue */
	SKV_JOB_STATES
};

struct skv_job {
	const struct skv_job_kind *kind;
	struct skv_jobs *jobs;
	struct skv_job *next;
	struct skv_disk_job m; /* the job as it is sent to the worker; skv_job_begin() sets `kind` and `uid` */
	struct skv_worker_job work;
	int *fds; /* [m.n_fds]: descriptors for the worker, borrowed; the job owns the array itself */
	enum skv_job_state state; /* set by skv_job_enter() */
	struct skv_queued queued; /* entry in the queue of its state */
	struct skv_job_asked *asked; /* requests that wait for the job */
	uint64_t pinned; /* bytes charged to the user until the job is freed (core/memory/pins.h) */
};
/* Returns the struct, of this type, in which a job is embedded as this member. */
#define SKV_JOB_OWNER(j, type, member) ((type *)(void *)((char *)(j)-offsetof(type, member)))

struct skv_jobs_config {
	struct skv_loop *loop;
	struct skv_core *core;
	const char *program; /* path of the workers' program; borrowed */
	uint64_t timeout_ns; /* as in struct skv_worker_config */
	void (*fail)(void *server, const char *what, int error); /* called after a fatal error; stops the daemon */
	void *server;
};
struct skv_jobs {
	struct skv_jobs_config config;
	struct skv_worker *workers[SKV_JOBS_WORKERS];
	struct skv_job *all;
	struct skv_queue in[SKV_JOB_STATES]; /* in[state]: all jobs in this state */
	int lock; /* descriptor of the file of the daemon's state, which workers lock (disk/lock.h) */
	bool settled; /* a job has ended or a file was removed since the last skv_jobs_settle() */
	bool closed;
};

/*
 * Prepares the disk workers, and waits up to a second until no worker of the previous daemon is at work. Returns 0, or
 * a negative errno with a text; even then *ret may be set, and must be freed by skv_jobs_free().
 */
int skv_jobs_new(const struct skv_jobs_config *, struct skv_jobs **ret, char why[SKV_TEXT_MAX]);
void skv_jobs_set_timeout(struct skv_jobs *, uint64_t timeout_ns);
/* Cancels all jobs and kills the workers. Call it before skv_loop_drain(). */
void skv_jobs_close(struct skv_jobs *);
/* Call it after skv_loop_drain(). `core` is NULL after skv_core_abandon(). NULL jobs are allowed; returns NULL. */
struct skv_jobs *skv_jobs_free(struct skv_jobs *, struct skv_core *core);

/* Runs a turn of one job. */
void skv_jobs_work(struct skv_jobs *);
/* Returns whether a job is due for a turn. */
bool skv_jobs_has_work(const struct skv_jobs *);
/* Called when memory may have been freed: runs turns of jobs that wait for memory. NULL is allowed. */
void skv_jobs_retry(struct skv_jobs *);
/*
 * Returns whether a job has ended or a file was removed since the last call. If so, all jobs in the state OTHERS become
 * due for a turn.
 */
bool skv_jobs_settle(struct skv_jobs *);

/* Returns the user's next job whose m.kind is this one, after `after` (NULL: the first such job); NULL: none. */
struct skv_job *skv_jobs_next(const struct skv_jobs *, const struct skv_job *after, enum skv_disk_job_kind,
                              uint32_t uid);
/* Returns a job of any user whose m.kind is this one; NULL: there is none. */
struct skv_job *skv_jobs_any(const struct skv_jobs *, enum skv_disk_job_kind);
/* Returns whether the user has a job of this kind. */
bool skv_jobs_has(const struct skv_jobs *, const struct skv_job_kind *, uint32_t uid);

/* Begins a job, in a zeroed struct of its kind. skv_job_free() frees the struct, in any state of the job but MOVING. */
void skv_job_begin(struct skv_job *, struct skv_jobs *, const struct skv_job_kind *, enum skv_disk_job_kind,
                   uint32_t uid);
void skv_job_free(struct skv_job *);
/* Puts the job into this state, and into the state's queue behind the user's other jobs in it. */
void skv_job_enter(struct skv_job *, enum skv_job_state);
/*
 * Hands the job to its worker, with the descriptors `user` at SKV_DISK_FD_USER and, unless -1, `other` at
 * SKV_DISK_FD_OTHER. Both are borrowed and not duplicated, so they must stay open until the job has ended. -ENOMEM.
 */
int skv_job_move(struct skv_job *, int user, int other);
/*
 * Hands the job to its worker with n_fds descriptors. `fds` is an array of malloc(), which the job owns from now on, or
 * the array that the job has already. This function sets fds[SKV_DISK_FD_LOCK].
 */
void skv_job_move_fds(struct skv_job *, int *fds, uint32_t n_fds);

#endif
