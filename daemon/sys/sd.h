/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/sys/sd.h - the service manager: socket activation, what it keeps for us, readiness, status, watchdog.
 *
 * Without a manager ($NOTIFY_SOCKET, $LISTEN_FDS unset) all of it does nothing.
 */
#ifndef SKV_SD_H
#define SKV_SD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SKV_SD_NAME 8u /* bytes of a name that we give: SKV_FDSTORE_NAME, and no padding */
/* A descriptor that the manager has kept for us, by the name that we gave it. */
struct skv_sd_kept {
	char name[SKV_SD_NAME];
	int fd;
};
/* The sockets that it listens on for us, the one named "operators" and the other, or -1; and what it has kept. */
struct skv_sd_passed {
	int clients, operators;
	struct skv_sd_kept *kept;
	size_t n_kept;
};
#define SKV_SD_PASSED_NULL {.clients = -1, .operators = -1}

/*
 * What the manager passes, the caller's: listening AF_UNIX SOCK_SEQPACKET sockets, one for each purpose, and what was kept by names of ours.
 * Anything else is named in the log, closed, and removed from what the manager keeps. -EINVAL with a text: the manager says what makes no
 * sense, or listens on sockets, but on none for clients.
 */
int skv_sd_take_fds(struct skv_sd_passed *ret, char *err, size_t err_len);
void skv_sd_passed_free(struct skv_sd_passed *); /* the list */

bool skv_sd_is_there(void);
/* Keep a descriptor, of our file of that name, and pass it to the next of us; and keep it no more. */
bool skv_sd_fdstore_add(const char *name, int fd);
bool skv_sd_fdstore_remove(const char *name);

void skv_sd_ready(const char *status);
void skv_sd_reloading(void);
void skv_sd_stopping(const char *status);
void skv_sd_status(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void skv_sd_watchdog(void);
/* How often skv_sd_watchdog() is to be called, in nanoseconds; 0: no watchdog. */
uint64_t skv_sd_watchdog_interval(void);

#endif
