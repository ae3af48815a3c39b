/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/sys/child.h - starts a program of the daemon as a child process. */
#ifndef SKV_CHILD_H
#define SKV_CHILD_H

#include <sys/types.h>

#define SKV_CHILD_FIRST_FD 3 /* the child's first passed descriptor */
#define SKV_CHILD_MAX_FDS 4u

/*
 * Path of the daemon's program of this name: beside the daemon's own (`program`, in a build directory), else where it is installed.
 * Owned by the caller; NULL: out of memory.
 */
char *skv_child_find(const char *program, const char *name);

/*
 * Runs `program` with these arguments and this environment. In the child fds[n] (borrowed) are 3, 4 and so on,
 * /dev/null is its standard input, and `output` (borrowed; -1: this process's) its standard output and error. It gets
 * no other descriptors. Signals have their default dispositions and mask. The caller owns *ret_pidfd and has to wait
 * for the child with it; *ret_pid is for messages. Negative errno: no child was started.
 */
int skv_child_start(const char *program, char *const *argv, char *const *envp, const int *fds, unsigned n,
                    int output, pid_t *ret_pid, int *ret_pidfd);

#endif
