/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/server.h - a whole daemon: core, loop, connections, plugins and settings together.
 *
 * main.c runs one; a test may run one in a thread of its own process.
 */
#ifndef SKV_SERVER_H
#define SKV_SERVER_H

#include "daemon/sys/config.h"

struct skv_server;
struct skv_handover;

struct skv_server_options {
	struct skv_config_sources config; /* read again on reload; borrowed */
	const char *program;              /* sparsekvd itself: workers run it; borrowed */
	/* The process is ours: take SIGTERM, SIGINT, SIGHUP through the ring, talk to the service manager. */
	bool service;
	/*
	 * Not NULL: the daemon may be asked to hand over (handover.h), and this has everything then, when skv_server_run() has ended. If it
	 * has everything of a daemon at the start, that is gone on with. Borrowed.
	 */
	struct skv_handover *handover;
};

/*
 * Everything up to the listening socket. 0, or negative errno; what was wrong has been logged.
 * With `service` the three signals are blocked in the calling thread from then on.
 */
int skv_server_new(const struct skv_server_options *, struct skv_server **ret);

/*
 * Load the policies, serve until stopped, disconnect all clients, close the core. 0; -EUCLEAN when its
 * state does not balance, other negative errno when the daemon could not go on (logged). Once only.
 */
int skv_server_run(struct skv_server *);

/* Make skv_server_run() return. From any thread, or a signal handler. */
void skv_server_stop(struct skv_server *);
/* Read the configuration and the policy directories again, as SIGHUP does. From any thread. */
void skv_server_reload(struct skv_server *);

struct skv_server *skv_server_free(struct skv_server *); /* not while it runs; NULL is fine; returns NULL */

#endif
