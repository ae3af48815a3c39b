/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/hung-files.h - files whose close(2) takes forever: files of a FUSE server that does not answer, and
 * sockets.
 */
#ifndef SKV_TEST_HUNG_FILES_H
#define SKV_TEST_HUNG_FILES_H

#include <stdbool.h>
#include <sys/types.h>

struct hung_fs {
	char dir[64];
	pid_t server;
};

/*
 * Mounts the file system in a mount namespace of this process. Returns false if that is not permitted, or the kernel
 * has no FUSE.
 */
bool hung_fs_start(struct hung_fs *);
/* Opens a file there; the caller owns the descriptor. Closing it blocks until hung_fs_stop(). */
int hung_fs_open(const struct hung_fs *);
void hung_fs_stop(struct hung_fs *);

/* Returns a socket whose last close(2) blocks for ten minutes: its peer never reads. The caller owns it. */
int hung_socket(void);

#endif
