/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/server/server-priv.h - the state that the parts of the server share. Calls go downwards: server.c (life),
 * request.c (handlers), device.c (memory of devices), fence.c, tasks.c, lease.c, policy.c and report.c (JSON), reply.c
 * (answers).
 */
#ifndef SKV_SERVER_PRIV_H
#define SKV_SERVER_PRIV_H

#include <signal.h>
#include <sys/signalfd.h>
#include "common/queue.h"
#include "daemon/core/core.h"
#include "daemon/ipc/conn.h"
#include "daemon/loop/loop.h"
#include "daemon/mem/cuda.h"
#include "daemon/plugin/scan.h"
#include "daemon/server/server.h"
#include "daemon/server/hostmem.h"
#include "daemon/sys/counts.h"
#include "daemon/sys/sd.h"
#include "daemon/sys/socket.h"
#include "daemon/worker/worker.h"

/* An open CUDA device. */
struct skv_device {
	struct skv_mem_ops ops; /* first: the core's interface to it */
	struct skv_server *server;
	uint32_t number;  /* as in skv_model.device */
	unsigned ordinal; /* as CUDA counts */
	bool legacy;      /* ipc = legacy ... */
	uint64_t kept;    /* ... and the number of segments that its worker holds */
	char name[16];    /* "cuda:0" */
	struct skv_cuda_info info;
	struct skv_core_memory_limits limits;
	struct skv_worker *worker;
};

/* What the previous daemon left, and whether a next one gets what this one leaves: restart/. */
struct skv_restart {
	struct skv_sd_passed passed;     /* by the service manager */
	struct skv_past_client *clients; /* of the previous daemon, until they are watched */
	uint32_t n_clients;
	bool leaving; /* stopping, and the service manager keeps the state: clients are not gone */
};

/* Requests that are answered later, and clients that are not served any more: requests/. */
struct skv_requests {
	struct skv_queue leases;                /* that wait for memory */
	struct skv_queue queries, full_queries; /* being answered; waiting for room in their connection's queue */
	struct skv_attaching *attaching;        /* that wait for a file, or for the end of the sequence's holder */
	struct skv_task_reply *tasks;           /* that the core works on in turns */
	struct skv_fence *fences;               /* clients whose process outlives their connection */
	bool notices_due;                       /* the core has changed: segments may have to be announced */
};

/* Start, stop, reload, signals: server.c. */
struct skv_life {
	struct skv_sockets sockets; /* created by this daemon; unset if the service manager passed the sockets */
	int command_fd, signal_fd;
	uint64_t command;
	struct signalfd_siginfo signal;
	struct skv_op command_op, signal_op, watchdog_op;
	uint64_t watchdog_ns;
	bool serving, stopping, reload_again;
	bool reload_failed; /* the last reload failed; the status says so until one succeeds */
	char status[256];
	uint64_t started_ns;
};

/* What is done once a second: tick.c. */
struct skv_tick {
	struct skv_op op;
	uint32_t measured;                 /* sequence at which the next step continues to measure */
	size_t steps_left;                 /* of the last tick */
	uint64_t told_aged, told_for_room; /* dropped sequences that have been logged */
};

struct skv_server {
	struct skv_server_options options;
	struct skv_config config;
	char *worker; /* path of sparsekv-worker, owned */
	struct skv_loop *loop;
	struct skv_hostmem hostmem;
	struct skv_core *core;
	struct skv_ipc *ipc;
	struct skv_registry *registry;
	struct skv_scan *scan;
	struct skv_counts *counts;
	struct skv_device *devices[SKV_MEMORY_KINDS]; /* by number; NULL: not opened yet */
	struct skv_jobs *jobs;
	struct skv_parking *parking;                  /* NULL: parking is off */
	struct skv_prefix *prefix;
	struct skv_requests requests;
	struct skv_restart restart;
	struct skv_life life;
	struct skv_tick tick;
	int failure; /* negative errno of the fatal error; 0: none */
};

#endif
