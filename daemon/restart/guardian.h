/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/restart/guardian.h - sparsekvd --private=DIRECTORY: the guardian, a process that runs a daemon for one
 * program.
 *
 * The guardian's standard input is a socket, whose other end the program has. When the program ends, even by SIGKILL,
 * the kernel closes that end. The guardian then ends the daemon and removes the directory, which has the daemon's
 * socket and log. If the daemon ends first, the guardian shuts its end of the socket down, and keeps the directory
 * until the program closes the other end, so that the program can read the log. If the guardian is killed, the kernel
 * sends the daemon SIGTERM.
 */
#ifndef SKV_GUARDIAN_H
#define SKV_GUARDIAN_H

/*
 * Runs the guardian. argv: arguments of the daemon; argv[0] is replaced by the path of sparsekvd. Returns the exit
 * status.
 */
int skv_run_guardian(const char *directory, char **argv);

#endif
