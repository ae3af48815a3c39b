/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/plugin/sandbox.h - confines the process that tries a plugin to its descriptors, its own memory, and reading
 * the files of shared libraries.
 *
 *   capabilities   none, not even for root, and no way to get any (no_new_privs)
 *   seccomp        only system calls needed to load and call a plugin, with arguments that affect this process: no
 *                  signal to another process, no new process, no socket, no file opened for writing. All others:
 *                  EPERM
 *   Landlock       no files except those of shared libraries; no signal and no abstract socket outside of the sandbox
 *   limits         CPU time, address space, open files, processes, size of written files
 *
 * The daemon protects itself by not being dumpable (skv_process_conceal()): other processes of its user cannot reach
 * it through /proc or ptrace.
 */
#ifndef SKV_SANDBOX_H
#define SKV_SANDBOX_H

#include <stddef.h>

/*
 * Enters the sandbox for good. Features that the kernel lacks are skipped and named in `lacks` ("": none). Negative
 * errno: a limit could not be set, or the capabilities could not be dropped.
 */
int skv_sandbox_enter(unsigned cpu_seconds, size_t file_bytes, char *lacks, size_t len);

#endif
