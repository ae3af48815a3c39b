/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/plugin/sandbox.h - what the process that tries a plugin can still reach: its descriptors, its own memory, and
 * the files of shared libraries, to read.
 *
 *   capabilities   none, also for root; and never any again (no_new_privs)
 *   seccomp        system calls that loading and calling a plugin takes, with arguments that concern this process: no
 *                  signal to another, no process, no socket, no file opened to be written. All others: EPERM
 *   Landlock       no files but those of shared libraries; no signal and no abstract socket beyond it
 *   limits         CPU time, address space, files, processes, size of what it writes
 *
 * The daemon's own part is not to be dumpable (skv_process_conceal()): nobody of its user then has a way through /proc or ptrace.
 */
#ifndef SKV_SANDBOX_H
#define SKV_SANDBOX_H

#include <stddef.h>

/*
 * Enter it, for good. What the kernel lacks is left out, and named in `lacks` ("" when all is there). Negative errno
 * when a limit or the capabilities cannot be given up.
 */
int skv_sandbox_enter(unsigned cpu_seconds, size_t file_bytes, char *lacks, size_t len);

#endif
