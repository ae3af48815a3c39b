/* SPDX-License-Identifier: Apache-2.0 */
/*
 * common/process.h - what a program of sparsekv sets up at its start, whatever its parent process left open or allowed.
 */
#ifndef SKV_PROCESS_H
#define SKV_PROCESS_H

/*
 * Opens /dev/null on descriptors 0, 1 and 2 if they are closed. Otherwise the next file or socket that the process
 * opens would get one of these numbers, and receive what is printed. Must be the first call of main().
 */
void skv_process_open_standard(void);

/*
 * Protects a process that handles data of all users: other processes that run as the same user cannot access its memory
 * by ptrace or /proc, and it writes no core dump. The word "dumpable" in $SPARSEKV_DEBUG disables the protection. A
 * program must call this before it receives any data. Since exec() resets the protection, each program calls it itself.
 */
void skv_process_conceal(void);

/*
 * Ignores SIGPIPE and SIGXFSZ in a server: writing to a socket whose reader is gone, or to a file beyond its size
 * limit, then returns an error instead of ending the process.
 */
void skv_process_serve(void);

#endif
