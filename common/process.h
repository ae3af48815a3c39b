/* SPDX-License-Identifier: Apache-2.0 */
/* common/process.h - what a process needs from its parent, which may not have given it. */
#ifndef SKV_PROCESS_H
#define SKV_PROCESS_H

/*
 * Descriptors 0, 1 and 2 that are closed become /dev/null: else the next file or socket would be one of them, and get what is
 * printed. The first call of main().
 */
void skv_process_open_standard(void);

/*
 * Of a process that has what is of all users, as its first act: no other process of its user looks into it, by ptrace or /proc, and it dumps no
 * core. $SPARSEKV_DEBUG may let them ("dumpable"). An executed program begins anew, so each calls it.
 */
void skv_process_conceal(void);

/*
 * Of a process that serves: a file that becomes larger than its limit, and a reader that is gone, are errors and no signals.
 */
void skv_process_serve(void);

#endif
