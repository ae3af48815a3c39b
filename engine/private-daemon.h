/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/private-daemon.h - starts a private daemon for one program. The daemon needs neither root nor a system
 * service, and ends when the program ends, even if the program is killed.
 *
 * The daemon's socket and log are in a new directory of mode 0700. The program starts `sparsekvd --private`, the
 * guardian process (daemon/restart/guardian.h). The guardian starts the daemon, ends it when the program has ended, and
 * removes the directory.
 */
#ifndef ENG_PRIVATE_DAEMON_H
#define ENG_PRIVATE_DAEMON_H

#include <sparsekv/client.h>
#include "engine/error.h"

struct eng_private;

/*
 * Finds the program sparsekvd: the file named by $SPARSEKVD, or the daemon of the build tree or installation that the
 * client library is in, or sparsekvd in PATH, /usr/local/sbin or /usr/sbin. Writes its path to `to` (PATH_MAX bytes).
 * Returns 0 or -ENOENT.
 */
int eng_private_find(char *to, struct eng_error *err);

/*
 * Starts the daemon that eng_private_find() finds, with the host backend, and connects to it. pool_bytes limits the
 * memory of its pages; 0: half of the machine's memory. `more` is NULL or a NULL-terminated list of further arguments.
 * Returns 0 or a negative errno; the text contains the last line of the daemon's log.
 */
int eng_private_start(uint64_t pool_bytes, const char *const *more, struct eng_private **ret,
                      struct skv_client **ret_client, struct eng_error *err);

/*
 * Ends the daemon, and waits until the daemon and its directory are gone. The client must be disconnected before. Does
 * nothing if `p` is NULL.
 */
void eng_private_stop(struct eng_private *p);

/* Returns the path of the daemon's socket, for sparsekvctl. The path is valid until eng_private_stop(). */
const char *eng_private_socket(const struct eng_private *p);

#endif
