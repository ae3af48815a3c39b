/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/restart/handover.h - a new daemon takes everything over from a running one, without a service manager. See
 * handover.c.
 *
 * The new process calls skv_handover_take() and starts with the result (struct skv_server_options). In the old
 * process skv_server_run() returns with everything in its struct skv_handover. It then calls skv_handover_give(), and
 * starts again with the same struct if that fails.
 */
#ifndef SKV_HANDOVER_H
#define SKV_HANDOVER_H

#include <stdbool.h>
#include "common/wire.h"
#include "daemon/sys/sd.h"
#include "daemon/sys/socket.h"

struct skv_conn;
struct skv_server;

struct skv_handover {
	int peer;  /* socket to the other daemon; -1: none */
	int pidfd; /* in the old daemon: of the process that takes over; else -1 */
	pid_t pid;
	struct skv_sd_passed passed; /* listening sockets, and the descriptors that the state refers to */
	size_t cap;                  /* capacity of passed.kept */
	struct skv_sockets sockets;  /* paths and locks of the sockets */
};
#define SKV_HANDOVER_NULL {.peer = -1, .pidfd = -1, .passed = SKV_SD_PASSED_NULL, .sockets = SKV_SOCKETS_NULL}

/*
 * Receives everything from the daemon that serves at `socket`. Do not use it before skv_handover_confirm(). Negative
 * errno, logged.
 */
int skv_handover_take(const char *socket, struct skv_handover *ret);
/*
 * Sends everything to the new process. 0: that process has confirmed that it can go on. Negative errno, logged: that
 * process has ended, and this daemon must go on.
 */
int skv_handover_give(struct skv_handover *);
/* Is a process connected and everything collected, so that skv_handover_give() can be called? */
bool skv_handover_is_ready(const struct skv_handover *);
void skv_handover_free(struct skv_handover *);

/* ---- within a server ---- */
/* Is another daemon connected? NULL is fine, here and below. */
bool skv_handover_is_open(const struct skv_handover *);
/* Moves what was handed over to *ret, the caller's. False: nothing was. */
bool skv_handover_get(struct skv_handover *, struct skv_sd_passed *ret);
/*
 * Tells the old daemon that this process can go on, and waits for GO. Then everything belongs to this process alone;
 * *ret gets the socket paths, which this process removes at its end. No-op without a handover. Negative errno,
 * logged.
 */
int skv_handover_confirm(struct skv_handover *, struct skv_sockets *ret);

/* HANDOVER (request.c): stops the server and sets `handing`. */
void skv_handover_request(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body, int *fds);
/* While the server ends: adds a client's process (consumed). */
void skv_handover_client(struct skv_server *, uint32_t client, int pidfd);
/* At the end of the server: adds all descriptors of the core, and the sockets. */
void skv_handover_leave(struct skv_server *);

#endif
