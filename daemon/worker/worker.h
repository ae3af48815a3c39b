/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/worker/worker.h - jobs for a worker process: one of a CUDA device (daemon/mem/cuda.h), or of the disk (daemon/disk/job.h).
 *
 * The process is started by the first job and ends when it had none for a while, so that no context stays
 * on a device; while it keeps allocations (ipc = legacy) it stays. One job at a time is with it, the
 * rest wait, and users take turns (common/queue.h). A worker that dies, or says nothing for too long, is killed and its job tried once more
 * with another; when that fails too, everything that waits fails: each waiter hears within twice the
 * timeout after its job was next, if that does not go on saying that it works. Frees are done when the process is gone.
 *
 * Jobs and answers are structs of whom they are for. A job is a packet with descriptors, more of which follow in packets of one byte; an answer begins
 * with int32_t error (0, or negative errno) and uint32_t more (1: it works on, this is not the end), and has a text somewhere.
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

/* Embedded in its owner, which has it, and what it points to, until `done`. */
struct skv_worker_job {
	const void *job;
	size_t bytes;
	const int *fds;
	uint32_t n_fds;
	uint32_t user; /* whose it is: UID, or SKV_WORKER_NOBODY */
	bool once;  /* it cannot be tried again */
	bool frees; /* what it is to free goes with the process, too */
	/*
	 * Once; from within submit only when the worker is closed. error: 0, or negative errno and why. answer: NULL, if there
	 * was none.
	 */
	void (*done)(struct skv_worker_job *, int error, const char *why, const void *answer);

	/* the worker's own */
	struct skv_queued queued;
	unsigned tries;
	bool canceled;
};

struct skv_worker_config {
	const char *program; /* run with `option`, and `argument` if there is one; borrowed, as all texts */
	const char *option, *argument;
	const char *name; /* for the log: "cuda:0" */
	size_t answer_bytes, why_at; /* of the answer's struct: its size, and where its text of SKV_WORKER_TEXT bytes is */
	uint64_t timeout_ns, idle_ns;
	bool frail; /* a process that saw an error, but for -ENOMEM, is good for nothing more */
	/* The process is gone, and with it what it had allocated; `ctx` is the owner's. NULL: nobody has to know. */
	void (*lost)(void *ctx);
	void *ctx;
};
#define SKV_WORKER_TEXT 256u

/* -ENOMEM. No process yet. */
int skv_worker_new(struct skv_loop *, const struct skv_worker_config *, struct skv_worker **ret);
/* Kill the process; jobs, also those that are submitted from now on, end with -ECANCELED. NULL is fine. */
void skv_worker_close(struct skv_worker *);
/* After skv_loop_drain(). NULL is fine; returns NULL. */
struct skv_worker *skv_worker_free(struct skv_worker *);
void skv_worker_set_times(struct skv_worker *, uint64_t timeout_ns, uint64_t idle_ns);

void skv_worker_submit(struct skv_worker *, struct skv_worker_job *);
/* Nobody needs it: it ends soon with -ECANCELED, if at once from within; or as it does, when it is through already. The process goes. */
void skv_worker_cancel(struct skv_worker *, struct skv_worker_job *);
/* It keeps allocations: it has to live. */
void skv_worker_keep(struct skv_worker *, bool keep);

struct skv_worker_counters {
	uint64_t started, died, jobs, failed;
};
const struct skv_worker_counters *skv_worker_counters(const struct skv_worker *);
pid_t skv_worker_pid(const struct skv_worker *); /* 0: there is no process */

#endif
