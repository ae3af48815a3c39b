/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/server/server.h - a whole daemon: core, loop, connections, plugins and settings.
 *
 * main.c runs one; a test may run one in a thread of its own process.
 */
#ifndef SKV_SERVER_H
#define SKV_SERVER_H

#include "daemon/sys/config.h"

struct skv_server;

struct skv_server_options {
	struct skv_config_sources config; /* read again on reload; borrowed */
	const char *program;              /* path of sparsekvd, which is executed for workers; borrowed */
	/*
	 * The process is dedicated to the daemon: it takes SIGTERM, SIGINT, SIGHUP through the ring and talks to the
	 * service manager.
	 */
	bool service;
};

/*
 * Sets up everything except accepting connections. Returns 0, or negative errno, logged. With `service` the three
 * signals are blocked in the calling thread from then on.
 */
int skv_server_new(const struct skv_server_options *, struct skv_server **ret);

/*
 * Loads the policies, serves until stopped, disconnects all clients, closes the core. Returns 0; -EUCLEAN if the
 * state does not balance; another negative errno, logged, after a fatal error. Call it only once.
 */
int skv_server_run(struct skv_server *);

/* Makes skv_server_run() return. From any thread, or from a signal handler. */
void skv_server_stop(struct skv_server *);
/* Reads the configuration and the policy directories again, as SIGHUP does. From any thread. */
void skv_server_reload(struct skv_server *);

struct skv_server *skv_server_free(struct skv_server *); /* not while it runs; NULL is fine; returns NULL */

#endif
