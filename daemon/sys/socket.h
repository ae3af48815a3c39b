/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/sys/socket.h - listening sockets that the daemon creates itself, if no service manager passes them. */
#ifndef SKV_SOCKET_H
#define SKV_SOCKET_H

#include <stddef.h>
#include <sys/types.h>
#include "daemon/sys/config.h"

/* The path of a listening socket, which the daemon removes when it ends, and the lock of the path. */
struct skv_socket {
	char *path; /* owned */
	int lock_fd;
};
#define SKV_SOCKET_NULL {.lock_fd = -1}

/*
 * Listens on a UNIX socket at `path` with permissions `mode` and group `gid` ((gid_t)-1: unchanged). A socket at the
 * path on which no live process listens is replaced. The file `path`.lock stays locked, so of two daemons that start at
 * once one is refused. Returns the fd, which the caller owns, and *ret; or a negative errno with a text: -EADDRINUSE if
 * a process listens on the path, or if the path is not a socket.
 */
int skv_socket_listen(const char *path, mode_t mode, gid_t gid, struct skv_socket *ret, char *err,
                      size_t err_len);
void skv_socket_remove(struct skv_socket *); /* accepts SKV_SOCKET_NULL */

/* The two listening sockets of a daemon. */
struct skv_sockets {
	struct skv_socket clients, operators;
};
#define SKV_SOCKETS_NULL {.clients = SKV_SOCKET_NULL, .operators = SKV_SOCKET_NULL}

/*
 * Opens the sockets for clients (fds[0]) and for operators (fds[1]) as the settings say. The caller owns fds. Returns 0
 * or a negative errno, logged.
 */
int skv_sockets_open(const struct skv_config *, struct skv_sockets *ret, int fds[2]);
void skv_sockets_remove(struct skv_sockets *);

#endif
