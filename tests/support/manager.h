/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/manager.h - a service manager: listens for a daemon, stores the descriptors that it gets from the
 * daemon, and passes them to the next one.
 *
 * It implements the manager's side of sd_notify(3) and sd_listen_fds(3), as systemd does: it reads all that a daemon
 * has sent before it starts the next one.
 */
#ifndef SKV_TEST_MANAGER_H
#define SKV_TEST_MANAGER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

extern char manager_socket[96]; /* for clients; this socket and the operators' stay while there is no daemon */

void manager_open(void);
/* Starts a daemon (`options` as for fix_start_process()), and waits until it is ready. */
void manager_start(const char *const *options);
/*
 * The same; returns false if the daemon ended before it was ready, or was killed after `seconds`; its wait status is in
 * *ret_status.
 */
bool manager_try_start(const char *const *options, double seconds, int *ret_status);
/* Returns whether the daemon has ended by itself, and its wait status. */
bool manager_has_ended(int *ret_status);
/* Ends the daemon with this signal; returns its wait status. */
int manager_end(int signal);
/*
 * The same while clients are at work. At random, requests of many clients are pending, or were carried out but their
 * replies are lost. `mute` is the flag of the clients' proxies (mute-proxy.h). *ret_at gets the time of the signal, in
 * seconds.
 */
int manager_end_at_work(int signal, _Atomic bool *mute, double *ret_at);
pid_t manager_daemon(void);
/*
 * manager_replace() removes the stored descriptor of this name and stores fd instead, which it takes over; fd -1: it
 * only removes. manager_add() stores one more.
 */
void manager_replace(const char *name, int fd);
void manager_add(const char *name, int fd);
/* The stored descriptor of this name (borrowed); -1: there is none. */
int manager_stored(const char *name);
/* Returns the number of stored descriptors, except the state. */
unsigned manager_kept(void);
/* Waits until n descriptors are stored (10 s at most): the daemon removes those of clients that are gone. */
void manager_expect_kept(unsigned n);
/*
 * Return the daemons' log: all of it, or what follows the first *at bytes; *at becomes the length of the log. The
 * caller frees the text.
 */
char *manager_log(void);
char *manager_log_since(size_t *at);
/* The folder of all files of the manager. */
const char *manager_folder(void);
void manager_forget_log(void);
void manager_close(void);

#endif
