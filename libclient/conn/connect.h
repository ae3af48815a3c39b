/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/conn/connect.h - opens a socket to the daemon that serves at a path. */
#ifndef SKV_CLIENT_CONN_CONNECT_H
#define SKV_CLIENT_CONN_CONNECT_H

/*
 * Connect, without waiting. Returns 0, or a negative errno with the last error set. -EAGAIN: the daemon accepts no
 * connection right now. -EPERM: the user that listens there is not trusted to send code that this process runs.
 */
int dial(const char *path, int *ret_fd);

#endif
