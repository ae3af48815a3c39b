/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/server/server.h - a whole daemon: its core, loop, connections, plugins and settings.
 *
 * daemon/main.c runs one daemon; a test may run a daemon in a thread of its own process.
 */
#ifndef SKV_SERVER_H
#define SKV_SERVER_H

#include "daemon/sys/config.h"

struct skv_server;

struct skv_server_options {
	struct skv_config_sources config; /* where the settings come from; read again on reload; borrowed */
	/* path of the program sparsekvd, by which its worker programs are found; borrowed */
	const char *program;
	/*
	 * The process does nothing but run the daemon: it handles SIGTERM, SIGINT and SIGHUP, and talks to the service
	 * manager.
	 */
	bool service;
};

/*
 * Sets up a daemon that does not accept connections yet. Returns 0, or a negative errno after logging the error. With
 * options->service, SIGTERM, SIGINT and SIGHUP are blocked in the calling thread from then on.
 */
int skv_server_new(const struct skv_server_options *, struct skv_server **ret);

/*
 * Loads the policies, serves clients until the daemon is stopped, disconnects all clients, and closes the core. Returns
 * 0; -EUCLEAN if the counts in the state do not match its contents; or another negative errno, logged, after a fatal
 * error. May be called only once.
 */
int skv_server_run(struct skv_server *);

/* Makes skv_server_run() return. May be called from any thread, and from a signal handler. */
void skv_server_stop(struct skv_server *);
/* Reads the configuration and the policy directories again, as SIGHUP does. May be called from any thread. */
void skv_server_reload(struct skv_server *);

struct skv_server *skv_server_free(struct skv_server *); /* not while the server runs; accepts NULL; returns NULL */

#endif
