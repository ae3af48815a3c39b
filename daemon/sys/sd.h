/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/sys/sd.h - the service manager: socket activation, kept descriptors, readiness, status, watchdog.
 *
 * Without a manager ($NOTIFY_SOCKET, $LISTEN_FDS unset) all of it does nothing.
 */
#ifndef SKV_SD_H
#define SKV_SD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SKV_SD_NAME 8u /* bytes of a name that the daemon gives: SKV_FDSTORE_NAME, without padding of the struct */
/* A descriptor that the manager kept, with the name that the daemon gave it. */
struct skv_sd_kept {
	char name[SKV_SD_NAME];
	int fd;
};
/* Listening sockets, the one named "operators" and the other one, or -1; and kept descriptors. */
struct skv_sd_passed {
	int clients, operators;
	struct skv_sd_kept *kept;
	size_t n_kept;
};
#define SKV_SD_PASSED_NULL {.clients = -1, .operators = -1}

/*
 * Takes what the manager passes, the caller's: listening AF_UNIX SOCK_SEQPACKET sockets, one for each purpose, and
 * descriptors kept by names of ours. Anything else is logged, closed, and removed from the manager's store. -EINVAL
 * with a text: the manager's variables make no sense, or it passes sockets but none for clients.
 */
int skv_sd_take_fds(struct skv_sd_passed *ret, char *err, size_t err_len);
void skv_sd_passed_free(struct skv_sd_passed *); /* frees the list */

bool skv_sd_is_there(void);
/*
 * Store a descriptor, by the name of its file, to be passed to the next daemon; and forget it. False, logged: the
 * manager cannot be told now.
 */
bool skv_sd_fdstore_add(const char *name, int fd);
bool skv_sd_fdstore_remove(const char *name);

void skv_sd_ready(const char *status);
void skv_sd_reloading(void);
void skv_sd_stopping(const char *status);
void skv_sd_status(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void skv_sd_watchdog(void);
/* Interval for skv_sd_watchdog(), in nanoseconds; 0: no watchdog. */
uint64_t skv_sd_watchdog_interval(void);

#endif
