/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/manager.h - a service manager: it listens for a daemon, keeps what the daemon gives it, and starts the next one with that.
 *
 * Its side of sd_notify(3) and sd_listen_fds(3), as systemd has it: what a daemon has sent before it died is read before the next one is
 * started.
 */
#ifndef SKV_TEST_MANAGER_H
#define SKV_TEST_MANAGER_H

#include <sys/types.h>

extern char manager_socket[96]; /* for clients; it stays while there is no daemon */

void manager_open(void);
/* Start a daemon (`options` as for fix_start_process()), and wait until it is ready. */
void manager_start(const char *const *options);
/* End it with this signal; what it exits with. */
int manager_end(int signal);
pid_t manager_daemon(void);
/* Another one is kept in this one's place (consumed); -1: none. */
void manager_replace(const char *name, int fd);
/* Descriptors that are kept, but for the state. */
unsigned manager_kept(void);
/* What daemons have logged; the caller's. */
char *manager_log(void);
void manager_close(void);

#endif
