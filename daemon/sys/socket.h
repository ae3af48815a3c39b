/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/sys/socket.h - the daemon's own listening sockets, when no service manager passes them. */
#ifndef SKV_SOCKET_H
#define SKV_SOCKET_H

#include <stddef.h>
#include <sys/types.h>
#include "daemon/sys/config.h"

/* The socket's path in the file system, ours to remove. */
struct skv_socket {
	char *path; /* owned */
	int lock_fd;
};
#define SKV_SOCKET_NULL {.lock_fd = -1}

/*
 * Listen on `path` with permissions `mode`, owned by `gid` ((gid_t)-1: leave it). A socket without a
 * live listener is replaced; -EADDRINUSE when one listens, or when the path is no socket.
 * `path`.lock is locked meanwhile, so of two daemons that start at once one is refused.
 * The fd, owned by the caller, and *ret; or negative errno with a text.
 */
int skv_socket_listen(const char *path, mode_t mode, gid_t gid, struct skv_socket *ret, char *err,
                      size_t err_len);
void skv_socket_remove(struct skv_socket *); /* SKV_SOCKET_NULL is fine */

/* Both sockets, of clients and of operators. */
struct skv_sockets {
	struct skv_socket clients, operators;
};
#define SKV_SOCKETS_NULL {.clients = SKV_SOCKET_NULL, .operators = SKV_SOCKET_NULL}

/* By the settings: 0, and fds (the caller's) in that order; or negative errno, which has been logged. */
int skv_sockets_open(const struct skv_config *, struct skv_sockets *ret, int fds[2]);
void skv_sockets_remove(struct skv_sockets *);

#endif
