/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/server-priv.h - the server's own parts: server.c (life), request.c (what clients ask), lease.c
 * (what may have to wait), device.c (memory of devices), policy.c (what operators ask about policies),
 * report.c (JSON).
 */
#ifndef SKV_SERVER_PRIV_H
#define SKV_SERVER_PRIV_H

#include <signal.h>
#include <sys/signalfd.h>
#include "daemon/core/core.h"
#include "daemon/ipc/conn.h"
#include "daemon/loop/loop.h"
#include "daemon/mem/cuda.h"
#include "daemon/plugin/registry.h"
#include "daemon/server.h"
#include "daemon/sys/socket.h"
#include "daemon/worker/worker.h"

/* A CUDA device that a model was opened on. */
struct skv_device {
	struct skv_mem_ops ops; /* first: what the books have of it */
	struct skv_server *server;
	uint32_t number;  /* as in skv_model */
	unsigned ordinal; /* as CUDA counts */
	bool legacy;      /* ipc = legacy ... */
	uint64_t kept;    /* ... and segments that the worker keeps */
	char name[16];    /* "cuda:0" */
	struct skv_cuda_info info;
	struct skv_core_place limits;
	struct skv_worker *worker;
};

struct skv_server {
	struct skv_server_options options;
	struct skv_config config;
	bool have_operator_gid;
	gid_t operator_gid;

	struct skv_loop *loop;
	struct skv_core *core;
	struct skv_ipc *ipc;
	struct skv_registry *registry;
	struct skv_device *devices[SKV_PLACES]; /* by number; NULL: none was needed */
	struct skv_waiting *waiting;            /* leases, the oldest first */

	struct skv_socket socket; /* where it listens, unless the service manager does */
	int command_fd, signal_fd;
	uint64_t command;
	struct signalfd_siginfo signal;
	struct skv_op command_op, signal_op, tick_op, watchdog_op;
	uint64_t watchdog_ns;

	bool serving, stopping, reload_again;
	bool notices_due; /* the books were touched: someone may have to hear of segments */
	int failure;      /* negative errno: why the daemon cannot go on */
	char status[256];
	uint64_t started_ns;
	/* how long the books took to take back what a client had */
	uint64_t clients_gone, reclaim_last_ns, reclaim_max_ns;
};

/* The books are broken: log it and stop. */
void skv_server_fail(struct skv_server *, const char *what, int error);

/* request.c */
void skv_request(void *server, struct skv_conn *, const struct skv_msg_header *, const void *body, int *fds);
void skv_request_gone(void *server, struct skv_conn *);
bool skv_request_lingers(void *server, struct skv_conn *); /* it has sessions on a device */
/* Tell the client of the segments that it has to hear of. */
void skv_request_announce(struct skv_server *, struct skv_conn *);
/* Tell each client of them. */
void skv_request_notices(struct skv_server *);
/* May the peer do what operators may? */
bool skv_request_operator(struct skv_server *, struct skv_conn *);
/* Is the book's answer a failure? Then the client has been told, or the daemon stops. */
bool skv_request_failed(struct skv_server *, struct skv_conn *, uint32_t serial, const char *what, int r);
/* The plugin that a spec names; NULL after telling the client that there is none. */
const struct skv_plugin *skv_request_find_policy(struct skv_server *, struct skv_conn *, uint32_t serial,
                                                 const char *spec);

/* lease.c */
void skv_lease_get(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body,
                   int *fds);
/* A segment of the pool is there, or could not be had (error: positive errno): whoever waits is served. */
void skv_lease_arrived(struct skv_server *, uint32_t pool);
void skv_lease_failed(struct skv_server *, uint32_t pool, int error, const char *device, const char *why);
void skv_lease_gone(struct skv_server *, const struct skv_conn *); /* it waits for nothing any more */

/* device.c */
/*
 * *number, as the client counts devices, becomes the one of the device that has this UUID (all zeros: it
 * stays). 0, or a positive errno and why not.
 */
int skv_device_resolve(struct skv_server *, const uint8_t uuid[SKV_UUID_BYTES], uint32_t *number,
                       char why[SKV_TEXT_MAX]);
#define SKV_DEVICE_UUID_TEXT 41u
const char *skv_device_uuid_text(const uint8_t uuid[SKV_UUID_BYTES], char to[SKV_DEVICE_UUID_TEXT]);
/* See to it that the device can be used. 0, or a positive errno and why not. */
int skv_device_need(struct skv_server *, uint32_t device, char why[SKV_TEXT_MAX]);
void skv_device_make(struct skv_server *);        /* start on the segments that the books want */
void skv_device_reconfigure(struct skv_server *); /* ceilings and times anew */
void skv_device_close_all(struct skv_server *);   /* workers end, and make nothing any more */
void skv_device_free_all(struct skv_server *);

/* policy.c */
void skv_policy_load_request(struct skv_server *, struct skv_conn *, const struct skv_msg_header *,
                             const void *body, int *fds);
void skv_policy_swap_request(struct skv_server *, struct skv_conn *, const struct skv_msg_header *,
                             const void *body, int *fds);
bool skv_policy_in_use(void *server, uint32_t plugin);

/* report.c */
void skv_report_query(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body,
                      int *fds);
/* Answer with a JSON value (consumed). */
void skv_report_send(struct skv_conn *, uint16_t type, uint32_t serial, json_t *value);
void skv_report_status_line(struct skv_server *, char *to, size_t len);

#endif
