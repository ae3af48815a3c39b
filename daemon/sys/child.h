/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/sys/child.h - a child process that runs a program of the daemon's. */
#ifndef SKV_CHILD_H
#define SKV_CHILD_H

#include <sys/types.h>

#define SKV_CHILD_FIRST_FD 3 /* in the child, of those it is given */
#define SKV_CHILD_MAX_FDS 4u

/*
 * Run `program` with these arguments and this environment. fds[n] (borrowed) are 3, 4 and so on in the
 * child, /dev/null its standard input, `output` (borrowed; -1: ours) its standard output and error. It has
 * no other descriptors.
 * Signals have their default dispositions and mask. *ret_pidfd is the caller's, and so is waiting
 * for the child with it; *ret_pid is for people. Negative errno when there is no child.
 */
int skv_child_start(const char *program, char *const *argv, char *const *envp, const int *fds, unsigned n,
                    int output, pid_t *ret_pid, int *ret_pidfd);

#endif
