/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/sys/child.h - starts a program of sparsekv, such as a worker, as a child process. */
#ifndef SKV_CHILD_H
#define SKV_CHILD_H

#include <sys/types.h>

#define SKV_CHILD_FIRST_FD 3 /* number of the first descriptor that is passed to a child */
#define SKV_CHILD_MAX_FDS 4u

/*
 * Returns the path of another program of the daemon: in the folder of the daemon's own program (`program`), as in a
 * build directory, otherwise in the folder where it is installed. The caller owns the string. NULL: no memory.
 */
char *skv_child_find(const char *program, const char *name);

/*
 * Runs `program` with these arguments and this environment. In the child, the n descriptors `fds` (borrowed) have the
 * numbers 3, 4 and so on. The child's standard input is /dev/null; `output` (borrowed; -1: this process's own) becomes
 * its standard output and error. The child gets no other descriptors. Its signals have their default handlers, and none
 * is blocked. The caller owns *ret_pidfd and has to wait for the child with it; *ret_pid is for messages. Returns 0, or
 * a negative errno: no child was started.
 */
int skv_child_start(const char *program, char *const *argv, char *const *envp, const int *fds, unsigned n,
                    int output, pid_t *ret_pid, int *ret_pidfd);

#endif
