/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/private.h - a daemon of one's own: no root, no service, gone with the program.
 *
 * Its socket and its log are in a fresh directory of mode 0700. Between the program and the daemon
 * stands a guardian process that holds one end of a socket pair: however the program ends, by
 * return, by signal or by SIGKILL, its end closes, and the guardian ends the daemon and removes the
 * directory. Should the guardian be killed, the kernel ends the daemon (PR_SET_PDEATHSIG).
 */
#ifndef ENG_PRIVATE_H
#define ENG_PRIVATE_H

#include <sparsekv/client.h>
#include "engine/error.h"

struct eng_private;

/*
 * Start a daemon with the host backend and connect to it. The program is $SPARSEKVD, else the one
 * of the build tree or the installation that this executable lies in, else sparsekvd in PATH.
 * Call it before any thread is started. Negative errno; the text has the daemon's last words.
 */
int eng_private_start(struct eng_private **ret, struct skv_client **ret_client, struct eng_error *err);

/* End it, and wait until it and its directory are gone. NULL is ignored. Disconnect the client first. */
void eng_private_stop(struct eng_private *p);

/* Path of its socket, for sparsekvctl. Valid until eng_private_stop(). */
const char *eng_private_socket(const struct eng_private *p);

#endif
