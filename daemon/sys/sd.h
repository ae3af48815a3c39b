/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/sys/sd.h - talks to the service manager: socket activation, stored descriptors, readiness, status, watchdog.
 *
 * If there is no service manager ($NOTIFY_SOCKET and $LISTEN_FDS are unset), the functions do nothing.
 */
#ifndef SKV_SD_H
#define SKV_SD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* bytes of a stored descriptor's name: at least SKV_FDSTORE_NAME, and a size that leaves no padding in the struct */
#define SKV_SD_NAME 8u
/* A descriptor that the service manager kept, with the name that a daemon gave it. */
struct skv_sd_kept {
	char name[SKV_SD_NAME];
	int fd;
};
/*
 * Descriptors that the service manager passed: the listening sockets for clients and for operators (the one that is
 * named "operators"), each -1 if it was not passed, and the kept descriptors.
 */
struct skv_sd_passed {
	int clients, operators;
	struct skv_sd_kept *kept;
	size_t n_kept;
};
#define SKV_SD_PASSED_NULL {.clients = -1, .operators = -1}

/*
 * Takes the descriptors that the service manager passes, which the caller then owns: at most one listening AF_UNIX
 * SOCK_SEQPACKET socket for clients and one for operators, and kept descriptors with names that the daemon gives. Any
 * other descriptor is logged, closed, and removed from the manager's store. Returns 0; -ENOMEM; or -EINVAL with a text,
 * if the manager's variables make no sense, or it passes sockets but none for clients.
 */
int skv_sd_take_fds(struct skv_sd_passed *ret, char *err, size_t err_len);
void skv_sd_passed_free(struct skv_sd_passed *); /* frees the list of kept descriptors, and closes none */

bool skv_sd_is_there(void);
/*
 * Ask the service manager to keep a descriptor under a name, for the next daemon, and to forget the descriptors of a
 * name. Return false, after logging it, if the manager cannot be told now.
 */
bool skv_sd_fdstore_add(const char *name, int fd);
bool skv_sd_fdstore_remove(const char *name);

void skv_sd_ready(const char *status);
void skv_sd_reloading(void);
void skv_sd_stopping(const char *status);
void skv_sd_status(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void skv_sd_watchdog(void);
/* Returns the interval in nanoseconds in which skv_sd_watchdog() is to be called; 0: there is no watchdog. */
uint64_t skv_sd_watchdog_interval(void);

#endif
