/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/sys/socket.h - the daemon's own listening sockets, if no service manager passes them. */
#ifndef SKV_SOCKET_H
#define SKV_SOCKET_H

#include <stddef.h>
#include <sys/types.h>
#include "daemon/sys/config.h"

/* A socket's path in the file system, which the daemon removes at its end. */
struct skv_socket {
	char *path; /* owned */
	int lock_fd;
};
#define SKV_SOCKET_NULL {.lock_fd = -1}

/*
 * Listens on `path` with permissions `mode`, owned by `gid` ((gid_t)-1: unchanged). A socket without a live listener
 * is replaced; -EADDRINUSE if one listens, or if the path is no socket. `path`.lock stays locked, so of two daemons
 * that start at once one is refused. Returns the fd, owned by the caller, and *ret; or negative errno with a text.
 */
int skv_socket_listen(const char *path, mode_t mode, gid_t gid, struct skv_socket *ret, char *err,
                      size_t err_len);
void skv_socket_remove(struct skv_socket *); /* SKV_SOCKET_NULL is fine */

/* Both sockets, for clients and for operators. */
struct skv_sockets {
	struct skv_socket clients, operators;
};
#define SKV_SOCKETS_NULL {.clients = SKV_SOCKET_NULL, .operators = SKV_SOCKET_NULL}

/* Opens both by the settings. 0, and fds (the caller's) in that order; or negative errno, logged. */
int skv_sockets_open(const struct skv_config *, struct skv_sockets *ret, int fds[2]);
void skv_sockets_remove(struct skv_sockets *);

#endif
