/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/worker/worker.h - job queue of a worker process: of a worker of a CUDA device (daemon/mem/cuda.h) or of a disk
 * worker (daemon/disk/job.h).
 *
 * The first job starts the process. The process exits after a time without jobs, so that no context stays on a device,
 * unless skv_worker_keep() keeps it. A process runs one job at a time; the other jobs wait, and users take turns
 * (common/queue.h). If the process dies or does not answer in time, it is killed, and its job is retried once with a
 * new process; if that fails, too, all waiting jobs fail. So each job ends within twice the timeout after it became
 * next, unless it keeps reporting progress. Jobs that free memory of the process succeed when the process is gone.
 *
 * Jobs and answers are structs that each kind of worker defines. A job is sent as a packet with descriptors; if these
 * are too many for a packet, the others follow in packets of one byte. An answer begins with int32_t error (0 or a
 * negative errno) and uint32_t more (1: a progress report, not the final answer), and contains a text.
 */
#ifndef SKV_WORKER_H
#define SKV_WORKER_H

#include <sys/types.h>
#include "common/queue.h"
#include "daemon/loop/loop.h"

#define SKV_WORKER_PACKET_FDS 250u  /* descriptors in a packet; the kernel's limit, SCM_MAX_FD, is 253 */
#define SKV_WORKER_MAX_ANSWER 1024u /* maximum size of an answer in bytes */
#define SKV_WORKER_NOBODY UINT32_MAX

struct skv_worker;

/* A job, embedded in the submitter's struct. The job and everything that it points to must be valid until done(). */
struct skv_worker_job {
	const void *job;
	size_t bytes;
	const int *fds;
	uint32_t n_fds;
	uint32_t user; /* UID on whose behalf the job runs, or SKV_WORKER_NOBODY */
	bool once;  /* the job must not be retried */
	bool frees; /* the job frees memory of the process, so it also succeeds when the process exits */
	/*
	 * Called once, when the job has ended; from within skv_worker_submit() only if the worker is closed. error: 0,
	 * or a negative errno with the reason in `why`. answer: NULL if the process gave none.
	 */
	void (*done)(struct skv_worker_job *, int error, const char *why, const void *answer);

	/* private to the worker */
	struct skv_queued queued;
	unsigned tries;
	bool canceled;
};

struct skv_worker_config {
	const char *program; /* program with arguments `option` and, unless NULL, `argument`; all texts are borrowed */
	const char *option, *argument;
	const char *name; /* name in the log, such as "cuda:0" */
	size_t answer_bytes, why_at; /* size of the answer's struct; offset of its text of SKV_WORKER_TEXT bytes */
	uint64_t timeout_ns, idle_ns; /* maximum time without an answer; time without jobs until the process exits */
	bool frail; /* the process is unusable after any error of a job except -ENOMEM, and is then killed */
	/* Called when the process has died, and its allocations with it. May be NULL. */
	void (*lost)(void *ctx);
	void *ctx;
};
#define SKV_WORKER_TEXT 256u

/* Creates a worker, whose process the first job starts. Returns 0 or -ENOMEM. */
int skv_worker_new(struct skv_loop *, const struct skv_worker_config *, struct skv_worker **ret);
/* Kills the process. All jobs, including jobs submitted later, end with -ECANCELED. NULL is allowed. */
void skv_worker_close(struct skv_worker *);
/* Frees the worker. Call it after skv_loop_drain(). NULL is allowed; returns NULL. */
struct skv_worker *skv_worker_free(struct skv_worker *);
void skv_worker_set_times(struct skv_worker *, uint64_t timeout_ns, uint64_t idle_ns);

/* Queues a job; done() is called when it has ended. */
void skv_worker_submit(struct skv_worker *, struct skv_worker_job *);
/*
 * Cancels a job. A job that waits ends with -ECANCELED within this call. To cancel the job that runs, the process is
 * killed; the job ends with -ECANCELED soon after. A job that has ended is not affected.
 */
void skv_worker_cancel(struct skv_worker *, struct skv_worker_job *);
/* With `keep`, the process does not exit while it has no jobs, because it has allocations that must not be lost. */
void skv_worker_keep(struct skv_worker *, bool keep);

struct skv_worker_counters {
	uint64_t started, died, jobs, failed;
};
const struct skv_worker_counters *skv_worker_counters(const struct skv_worker *);
pid_t skv_worker_pid(const struct skv_worker *); /* 0: no process is running */

#endif
