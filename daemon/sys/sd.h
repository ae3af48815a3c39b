/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/sys/sd.h - the service manager: socket activation, readiness, status, watchdog.
 *
 * Without a manager ($NOTIFY_SOCKET, $LISTEN_FDS unset) all of it does nothing.
 */
#ifndef SKV_SD_H
#define SKV_SD_H

#include <stddef.h>
#include <stdint.h>

/*
 * The sockets that the manager listens on for us: the one named "operators", if any, and the other. 1 with both owned
 * by the caller, -1 for no operators' socket; 0 when nothing was passed; -EINVAL with a text when what was passed is
 * something else than listening AF_UNIX SOCK_SEQPACKET sockets.
 */
int skv_sd_listen_fds(int *ret_clients, int *ret_operators, char *err, size_t err_len);

void skv_sd_ready(const char *status);
void skv_sd_reloading(void);
void skv_sd_stopping(const char *status);
void skv_sd_status(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void skv_sd_watchdog(void);
/* How often skv_sd_watchdog() is to be called, in nanoseconds; 0: no watchdog. */
uint64_t skv_sd_watchdog_interval(void);

#endif
