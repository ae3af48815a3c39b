/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/worker/worker.h - jobs for the worker process of a CUDA device (daemon/mem/cuda.h).
 *
 * The process is started by the first job and ends when it had none for a while, so that no context stays
 * on the device; while it keeps allocations (ipc = legacy) it stays. One job at a time is with it, the
 * rest wait in order. A worker that dies or does not answer in time is killed and its job tried once more
 * with another; when that fails too, everything that waits fails: each waiter hears within twice the
 * timeout after its job was next. Frees are done when the process is gone.
 */
#ifndef SKV_WORKER_H
#define SKV_WORKER_H

#include <sys/types.h>
#include "daemon/loop/loop.h"
#include "daemon/mem/cuda.h"

struct skv_worker;

/* Embedded in its owner, which keeps it until `done`. */
struct skv_worker_job {
	struct skv_cuda_job job;
	int fd; /* the segment to zero, borrowed until `done`; else -1 */
	/* Once; from within submit only when the worker is closed. error: 0, or negative errno and why. */
	void (*done)(struct skv_worker_job *, int error, const char *why, const uint8_t *ipc);

	/* the worker's own */
	struct skv_worker_job *next;
	unsigned tries;
};

struct skv_worker_config {
	const char *program; /* run with --cuda-worker; borrowed */
	unsigned device;
	uint64_t timeout_ns, idle_ns;
	/* The process is gone, and with it what it had allocated; `ctx` is the owner's. */
	void (*lost)(void *ctx);
	void *ctx;
};

/* -ENOMEM. No process yet. */
int skv_worker_new(struct skv_loop *, const struct skv_worker_config *, struct skv_worker **ret);
/* Kill the process; jobs, also those that are submitted from now on, end with -ECANCELED. NULL is fine. */
void skv_worker_close(struct skv_worker *);
/* After skv_loop_drain(). NULL is fine; returns NULL. */
struct skv_worker *skv_worker_free(struct skv_worker *);
void skv_worker_set_times(struct skv_worker *, uint64_t timeout_ns, uint64_t idle_ns);

void skv_worker_submit(struct skv_worker *, struct skv_worker_job *);
/* It keeps allocations: it has to live. */
void skv_worker_keep(struct skv_worker *, bool keep);

struct skv_worker_counters {
	uint64_t started, died, jobs, failed;
};
const struct skv_worker_counters *skv_worker_counters(const struct skv_worker *);
pid_t skv_worker_pid(const struct skv_worker *); /* 0: there is no process */

#endif
