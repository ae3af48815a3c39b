/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/plugin/sandbox.h - the sandbox of the process that probes a plugin: the process can use its descriptors and
 * its memory, and read the files of shared libraries.
 *
 *   capabilities   the process has none, not even as root, and cannot get any (no_new_privs)
 *   seccomp        allows only system calls that loading and calling a plugin needs, with arguments that affect this
 *                  process: no signal to another process, no new process, no socket, no file opened for writing. Any
 *                  other system call fails with EPERM
 *   Landlock       allows access to no files but those of shared libraries; no signals and no abstract sockets to
 *   processes outside the sandbox
 *   limits         of CPU time, address space, open files, processes, and size of written files
 *
 * The daemon itself is protected by skv_process_conceal(): other processes of its user cannot access it through /proc
 * or ptrace.
 */
#ifndef SKV_SANDBOX_H
#define SKV_SANDBOX_H

#include <stddef.h>

/*
 * Puts the calling process into the sandbox, which it cannot leave. Features that the kernel lacks are skipped; `lacks`
 * gets their names ("": none). Returns 0, or a negative errno if a limit could not be set or the capabilities could not
 * be dropped.
 */
int skv_sandbox_enter(unsigned cpu_seconds, size_t file_bytes, char *lacks, size_t len);

#endif
