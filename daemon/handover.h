/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/handover.h - a daemon takes everything over from one that serves, where no service manager keeps it. See handover.c.
 *
 * The new process calls skv_handover_take(), and begins with what it got (struct skv_server_options). In the old one skv_server_run() ends
 * with everything in its struct skv_handover; it calls skv_handover_give(), and if that fails begins again with the same.
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
	int peer;  /* a socket to the other daemon; -1: there is none */
	int pidfd; /* of the process that takes; in that one -1 */
	pid_t pid;
	struct skv_sd_passed passed; /* listening sockets, and descriptors of what the state refers to */
	size_t cap;                  /* of passed.kept */
	struct skv_sockets sockets;  /* their paths, and locks */
};
#define SKV_HANDOVER_NULL {.peer = -1, .pidfd = -1, .passed = SKV_SD_PASSED_NULL, .sockets = SKV_SOCKETS_NULL}

/* Everything of the daemon that serves at `socket`, which is not to be used before skv_handover_confirm(). Negative errno, logged. */
int skv_handover_take(const char *socket, struct skv_handover *ret);
/*
 * The other process has everything, and said that it can go on with it; or, negative errno, logged: it has ended, by now, and this is to
 * go on.
 */
int skv_handover_give(struct skv_handover *);
/* Is there something to give? */
bool skv_handover_is_ready(const struct skv_handover *);
void skv_handover_free(struct skv_handover *);

/* ---- within a server ---- */
/* Is another daemon there, on the other side? NULL is fine, here and below. */
bool skv_handover_is_open(const struct skv_handover *);
/* What was handed over, if anything was; the caller's. */
bool skv_handover_get(struct skv_handover *, struct skv_sd_passed *ret);
/* All is there to go on: from now on it is ours alone, and the sockets' paths (*ret, if it was handed over) are ours to remove. */
int skv_handover_confirm(struct skv_handover *, struct skv_sockets *ret);

/* HANDOVER (request.c): the server ends, and `handing` is set. */
void skv_handover_request(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, const void *body, int *fds);
/* While the server ends: a client's process (consumed). */
void skv_handover_client(struct skv_server *, uint32_t client, int pidfd);
/* And at its end: the core, and all that it has; the sockets. */
void skv_handover_leave(struct skv_server *);

#endif
