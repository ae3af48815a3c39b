/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/worker/worker.h - job queue of a worker process: of a CUDA device (daemon/mem/cuda.h) or of the disk
 * (daemon/disk/job.h).
 *
 * The first job starts the process. It exits after a time without jobs, so that no context stays on a device, unless it
 * keeps allocations (ipc = legacy). It runs one job at a time; the others wait, and users take turns (common/queue.h). A
 * worker that dies, or does not answer in time, is killed, and its job is retried once with a new process; if that
 * fails, too, all waiting jobs fail. So each job ends within twice the timeout after it became next, unless it keeps
 * reporting progress. Jobs that free memory succeed when the process is gone.
 *
 * Jobs and answers are structs that each kind of worker defines. A job is a packet with descriptors; more descriptors
 * follow in packets of one byte. An answer begins with int32_t error (0 or a negative errno) and uint32_t more (1:
 * progress report, not the final answer), and contains a text.
 */
#ifndef SKV_WORKER_H
#define SKV_WORKER_H

#include <sys/types.h>
#include "common/queue.h"
#include "daemon/loop/loop.h"

#define SKV_WORKER_PACKET_FDS 250u  /* the kernel's SCM_MAX_FD is 253 */
#define SKV_WORKER_MAX_ANSWER 1024u /* bytes */
#define SKV_WORKER_NOBODY UINT32_MAX

struct skv_worker;

/* Embedded in its owner. It and everything it points to must stay valid until `done`. */
struct skv_worker_job {
	const void *job;
	size_t bytes;
	const int *fds;
	uint32_t n_fds;
	uint32_t user; /* UID on whose behalf it runs, or SKV_WORKER_NOBODY */
	bool once;  /* must not be retried */
	bool frees; /* frees memory of the process, so it also succeeds when the process exits */
	/*
	 * Called once; from within skv_worker_submit() only if the worker is closed. error: 0, or a negative errno with
	 * the reason in why. answer: NULL if there was none.
	 */
	void (*done)(struct skv_worker_job *, int error, const char *why, const void *answer);

	/* private to the worker */
	struct skv_queued queued;
	unsigned tries;
	bool canceled;
};

struct skv_worker_config {
	const char *program; /* executed with `option`, and `argument` if not NULL; borrowed, as all texts */
	const char *option, *argument;
	const char *name; /* for the log: "cuda:0" */
	size_t answer_bytes, why_at; /* size of the answer's struct, and offset of its text of SKV_WORKER_TEXT bytes */
	uint64_t timeout_ns, idle_ns;
	bool frail; /* a process is unusable after any error except -ENOMEM */
	/* Called when the process is gone, and with it its allocations. May be NULL. */
	void (*lost)(void *ctx);
	void *ctx;
};
#define SKV_WORKER_TEXT 256u

/* Starts no process yet. Returns 0 or -ENOMEM. */
int skv_worker_new(struct skv_loop *, const struct skv_worker_config *, struct skv_worker **ret);
/* Kills the process. All jobs, including those submitted later, end with -ECANCELED. NULL is allowed. */
void skv_worker_close(struct skv_worker *);
/* Call after skv_loop_drain(). NULL is allowed; returns NULL. */
struct skv_worker *skv_worker_free(struct skv_worker *);
void skv_worker_set_times(struct skv_worker *, uint64_t timeout_ns, uint64_t idle_ns);

void skv_worker_submit(struct skv_worker *, struct skv_worker_job *);
/*
 * Cancels a job: a waiting one ends with -ECANCELED within this call; for the running one the process is killed, and it
 * ends with -ECANCELED soon after. No effect on a finished job.
 */
void skv_worker_cancel(struct skv_worker *, struct skv_worker_job *);
/* Keeps the process running while it has allocations. */
void skv_worker_keep(struct skv_worker *, bool keep);

struct skv_worker_counters {
	uint64_t started, died, jobs, failed;
};
const struct skv_worker_counters *skv_worker_counters(const struct skv_worker *);
pid_t skv_worker_pid(const struct skv_worker *); /* 0: no process is running */

#endif
