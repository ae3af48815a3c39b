/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/conn/dial.h - a socket to the daemon that serves at a path. */
#ifndef SKV_CLIENT_CONN_DIAL_H
#define SKV_CLIENT_CONN_DIAL_H

/*
 * Connect, without waiting. -EAGAIN: the daemon does not accept right now. -EPERM: the user that listens there is not
 * trusted to send code that this process runs. Else a negative errno. Sets the last error.
 */
int dial(const char *path, int *ret_fd);

#endif
