/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/sys/socket.h - the daemon's own listening socket, when no service manager passes one. */
#ifndef SKV_SOCKET_H
#define SKV_SOCKET_H

#include <stddef.h>
#include <sys/types.h>

/*
 * Listen on `path` with permissions `mode`, owned by `gid` ((gid_t)-1: leave it). A socket that nobody
 * listens on any more is replaced; -EADDRINUSE when somebody does, or when something else is there.
 * The fd, or negative errno, with a text.
 */
int skv_socket_listen(const char *path, mode_t mode, gid_t gid, char *err, size_t err_len);

#endif
