/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/manager.h - a service manager: it listens for a daemon, keeps what the daemon gives it, and starts the next one with that.
 *
 * Its side of sd_notify(3) and sd_listen_fds(3), as systemd has it: what a daemon has sent before it died is read before the next one is
 * started.
 */
#ifndef SKV_TEST_MANAGER_H
#define SKV_TEST_MANAGER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

extern char manager_socket[96]; /* for clients; it stays while there is no daemon, and so does that of operators */

void manager_open(void);
/* Start a daemon (`options` as for fix_start_process()), and wait until it is ready. */
void manager_start(const char *const *options);
/* The same; false: it ended before that, with this status, or was killed since it took longer. */
bool manager_try_start(const char *const *options, double seconds, int *ret_status);
/* Has it ended by itself, and with what status? */
bool manager_has_ended(int *ret_status);
/* End it with this signal; what it exits with. */
int manager_end(int signal);
/*
 * The same at a bad moment: when requests of many clients wait, or were carried out and answered to nobody. `mute` is
 * what their proxies have (mute-proxy.h). When it died, in seconds, goes to ret_at.
 */
int manager_end_at_work(int signal, _Atomic bool *mute, double *ret_at);
pid_t manager_daemon(void);
/* Another one is kept in this one's place (consumed); -1: none. And one more. */
void manager_replace(const char *name, int fd);
void manager_add(const char *name, int fd);
/* Descriptors that are kept, but for the state. */
unsigned manager_kept(void);
/* So many are, soon: once what clients had is dealt with. */
void manager_expect_kept(unsigned n);
/* What daemons have logged, all of it, or after the first *at bytes, which then are all; the caller's. */
char *manager_log(void);
char *manager_log_since(size_t *at);
/* Where all files are. */
const char *manager_folder(void);
void manager_forget_log(void);
void manager_close(void);

#endif
