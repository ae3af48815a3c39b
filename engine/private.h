/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/private.h - a private daemon, which needs no root and no service, and ends with the program, however that
 * ends.
 *
 * Its socket and log are in a new directory of mode 0700. `sparsekvd --private` (daemon/restart/guardian.h) is a
 * process between the program and the daemon, which ends the daemon and removes the directory.
 */
#ifndef ENG_PRIVATE_H
#define ENG_PRIVATE_H

#include <sparsekv/client.h>
#include "engine/error.h"

struct eng_private;

/*
 * Finds $SPARSEKVD, or the daemon of the build tree or installation that the client library belongs to, or sparsekvd in
 * PATH or sbin. `to`: PATH_MAX bytes. -ENOENT.
 */
int eng_private_find(char *to, struct eng_error *err);

/*
 * Starts that daemon with the host backend and connects to it. pool_bytes: most memory for its pages; 0: half of the
 * machine's. more: further arguments, NULL at the end; or NULL. Returns a negative errno; the text has the last line of
 * the daemon's log.
 */
int eng_private_start(uint64_t pool_bytes, const char *const *more, struct eng_private **ret,
                      struct skv_client **ret_client, struct eng_error *err);

/* Ends the daemon and waits until it and its directory are gone. NULL is ignored. Disconnect the client first. */
void eng_private_stop(struct eng_private *p);

/* Path of its socket, for sparsekvctl. Valid until eng_private_stop(). */
const char *eng_private_socket(const struct eng_private *p);

#endif
