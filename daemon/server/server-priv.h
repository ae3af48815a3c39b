/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/server/server-priv.h - the state that the parts of the server share. A part calls only parts after it in this
 * list: server.c (start and stop), request.c (handlers), device.c (memory of devices), fence.c, tasks.c, lease.c,
 * policy.c and report.c (JSON), reply.c (replies).
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
	struct skv_mem_ops ops; /* must be first: functions by which the core uses the device's memory */
	struct skv_server *server;
	uint32_t number;  /* number of the device, as in skv_model.device */
	unsigned ordinal; /* number of the device in CUDA, which counts from 0 */
	bool legacy;      /* the setting `ipc` is legacy: the worker allocates and keeps segments */
	uint64_t kept;    /* number of segments that the worker keeps, if legacy */
	char name[16];    /* "cuda:0" */
	struct skv_cuda_info info;
	struct skv_core_memory_limits limits;
	struct skv_worker *worker;
};

/*
 * State of the code in daemon/restart/: what the previous daemon left, and whether the next daemon gets the state of
 * this one.
 */
struct skv_restart {
	struct skv_sd_passed passed;     /* descriptors that the service manager passed */
	struct skv_past_client *clients; /* clients of the previous daemon, until their processes are watched */
	uint32_t n_clients;
	/* the daemon stops and the service manager keeps the state, so a closed connection does not end its client */
	bool leaving;
};

/* State of the code in daemon/requests/: requests that are answered later, and fenced clients. */
struct skv_requests {
	struct skv_queue leases;                /* leases that wait for memory */
	/* lists that are being sent; lists that wait for room in their connection's queue */
	struct skv_queue queries, full_queries;
	/* attaches that wait until the sequence is read from its file, or until its holder is gone */
	struct skv_attaching *attaching;
	struct skv_task_reply *tasks;           /* requests on which the core works in turns */
	struct skv_fence *fences;               /* clients whose connection has ended, and whose process has not */
	/* the core may have changed, so that segments have to be announced to clients */
	bool notices_due;
};

/* State of server.c: start, stop, reload, signals. */
struct skv_life {
	/* listening sockets that this daemon created; unset if the service manager passed the sockets */
	struct skv_sockets sockets;
	int command_fd, signal_fd;
	uint64_t command;
	struct signalfd_siginfo signal;
	struct skv_op command_op, signal_op, watchdog_op;
	uint64_t watchdog_ns;
	bool serving, stopping, reload_again;
	bool reload_failed; /* the last reload failed; the status line says so until a reload succeeds */
	char status[256];
	uint64_t started_ns;
};

/* State of tick.c: work that is done once a second. */
struct skv_tick {
	struct skv_op op;
	/* index of the sequence at which the next step continues to measure memory */
	uint32_t measured;
	unsigned trim_in;                  /* number of ticks before the next skv_core_trim() */
	size_t steps_left;                 /* number of steps of the current tick that have not been done */
	uint64_t told_aged, told_for_room; /* number of dropped sequences that have been logged */
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
	struct skv_device *devices[SKV_MEMORY_KINDS]; /* devices by number; NULL: not opened yet */
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
