/* SPDX-License-Identifier: Apache-2.0 */
/* common/process.h - process setup that does not rely on the parent. */
#ifndef SKV_PROCESS_H
#define SKV_PROCESS_H

/*
 * Opens closed descriptors among 0, 1 and 2 as /dev/null: otherwise the next file or socket would get such a number,
 * and receive output. Must be the first call of main().
 */
void skv_process_open_standard(void);

/*
 * Protects a process that has data of all users: other processes of its user cannot access it by ptrace or /proc, and
 * it dumps no core. $SPARSEKV_DEBUG may disable this ("dumpable"). Must be called first; exec resets it, so each
 * program calls it.
 */
void skv_process_conceal(void);

/*
 * Ignores SIGPIPE and SIGXFSZ in a server: a reader that is gone and a file above its size limit are errors instead of
 * signals.
 */
void skv_process_serve(void);

#endif
