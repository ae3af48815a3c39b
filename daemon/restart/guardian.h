/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/restart/guardian.h - sparsekvd --private=DIRECTORY: a process between a program and a daemon of its own.
 *
 * The program has the other end of standard input, a socket. However it ends, by return, by signal or by SIGKILL, that
 * end closes. The guardian then ends the daemon and removes the directory, in which the daemon's socket and log are. If
 * the daemon ends first, the guardian hangs up on the program, and keeps the log until the program has read it. If the
 * guardian is killed, the kernel ends the daemon.
 */
#ifndef SKV_GUARDIAN_H
#define SKV_GUARDIAN_H

/* argv: the daemon's; argv[0] is replaced by this program's path. Returns the exit status. */
int skv_run_guardian(const char *directory, char **argv);

#endif
