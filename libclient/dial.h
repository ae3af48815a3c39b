/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/dial.h - a socket to the daemon that serves at a path. */
#ifndef SKV_CLIENT_DIAL_H
#define SKV_CLIENT_DIAL_H

/*
 * Connect, without waiting. -EAGAIN: the daemon does not accept right now; -EPERM: who listens there may not send this process code to
 * run; else a negative errno. The last error is set.
 */
int dial(const char *path, int *ret_fd);

#endif
