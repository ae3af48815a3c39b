/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/private.h - a private daemon, which needs no root and no service, and ends with the program.
 *
 * Its socket and log are in a new directory of mode 0700. A guardian process between the program and the daemon holds
 * one end of a socket pair. However the program ends, by return, by signal or by SIGKILL, its end closes; the
 * guardian then ends the daemon and removes the directory. If the guardian is killed, the kernel ends the daemon
 * (PR_SET_PDEATHSIG).
 */
#ifndef ENG_PRIVATE_H
#define ENG_PRIVATE_H

#include <sparsekv/client.h>
#include "engine/error.h"

struct eng_private;

/*
 * Starts a daemon with the host backend and connects to it. The program is $SPARSEKVD, or the daemon of the build
 * tree or installation that this executable belongs to, or sparsekvd in PATH. Must be called before any thread is
 * started. Returns a negative errno; the text has the last line of the daemon's log.
 */
int eng_private_start(struct eng_private **ret, struct skv_client **ret_client, struct eng_error *err);

/* Ends the daemon and waits until it and its directory are gone. NULL is ignored. Disconnect the client first. */
void eng_private_stop(struct eng_private *p);

/* Path of its socket, for sparsekvctl. Valid until eng_private_stop(). */
const char *eng_private_socket(const struct eng_private *p);

#endif
