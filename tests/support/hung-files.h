/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/hung-files.h - files that take for ever to close: of a FUSE server that does not answer, and sockets. */
#ifndef SKV_TEST_HUNG_FILES_H
#define SKV_TEST_HUNG_FILES_H

#include <stdbool.h>
#include <sys/types.h>

struct hung_fs {
	char dir[64];
	pid_t server;
};

/* Mount it, in a mount namespace of this process. False: this process may not, or the kernel has no FUSE. */
bool hung_fs_start(struct hung_fs *);
/* A file there; the caller's. Closing it takes until hung_fs_stop(). */
int hung_fs_open(const struct hung_fs *);
void hung_fs_stop(struct hung_fs *);

/* A socket that waits for ten minutes when it is closed for the last time; the caller's. Its peer is never read from. */
int hung_socket(void);

#endif
