/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/server-priv.h - the state that the parts of the server share. Calls go downwards: server.c (life), request.c
 * (handlers), device.c (memory of devices), fence.c, turns.c, lease.c, policy.c and report.c (JSON), reply.c (answers).
 */
#ifndef SKV_SERVER_PRIV_H
#define SKV_SERVER_PRIV_H

#include <signal.h>
#include <sys/signalfd.h>
#include "common/queue.h"
#include "daemon/core/core.h"
#include "daemon/hostmem.h"
#include "daemon/ipc/conn.h"
#include "daemon/loop/loop.h"
#include "daemon/mem/cuda.h"
#include "daemon/plugin/scan.h"
#include "daemon/server.h"
#include "daemon/sys/counts.h"
#include "daemon/sys/sd.h"
#include "daemon/sys/socket.h"
#include "daemon/worker/worker.h"

/* A CUDA device that a model was opened on. */
struct skv_device {
	struct skv_mem_ops ops; /* first: the core's view of it */
	struct skv_server *server;
	uint32_t number;  /* as in skv_model */
	unsigned ordinal; /* as CUDA counts */
	bool legacy;      /* ipc = legacy ... */
	uint64_t kept;    /* ... and segments that the worker keeps */
	char name[16];    /* "cuda:0" */
	struct skv_cuda_info info;
	struct skv_core_memory_limits limits;
	struct skv_worker *worker;
};

struct skv_server {
	struct skv_server_options options;
	struct skv_config config;

	struct skv_sd_passed passed;  /* by the service manager, or another daemon */
	struct skv_past_client *past; /* clients of the daemon before, until they are watched */
	uint32_t n_past;

	struct skv_loop *loop;
	struct skv_hostmem hostmem;
	struct skv_core *core;
	struct skv_ipc *ipc;
	struct skv_registry *registry;
	struct skv_scan *scan;
	struct skv_device *devices[SKV_MEMORY_KINDS]; /* by number; NULL: none was needed */
	struct skv_queue waiting;               /* requests for pages */
	struct skv_fence *fences;               /* clients whose process outlives their connection */
	struct skv_attaching *attaching;        /* requests for their sequences */
	struct skv_turns *turns;                /* requests that the core works on */
	struct skv_parking *parking;            /* NULL: sequences are not parked */
	struct skv_prefix *prefix;
	struct skv_queue queries, full_queries; /* that are being answered; those that wait for a connection's queue to drain */

	struct skv_sockets sockets; /* its own, unless the service manager passed them */
	int command_fd, signal_fd;
	uint64_t command;
	struct signalfd_siginfo signal;
	struct skv_op command_op, signal_op, tick_op, watchdog_op;
	uint64_t watchdog_ns;

	bool serving, stopping, reload_again;
	bool reload_failed; /* the last one, which the status says until one succeeds */
	bool handing; /* stopping, and another daemon is to have everything (handover.c) */
	bool leaving; /* the same, or the service manager keeps everything: clients are not gone */
	bool notices_due; /* the core has changed: clients may have to be told of segments */
	int failure;      /* negative errno: why the daemon cannot go on */
	char status[256];
	uint64_t started_ns;
	struct skv_counts *counts;
	uint32_t measured;                   /* sequence at which the next step goes on measuring */
	size_t steps_left;                   /* of the last tick: tick.c */
	uint64_t told_aged, told_for_room; /* sequences that were dropped, as logged */
};

#endif
