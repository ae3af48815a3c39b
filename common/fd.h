/* SPDX-License-Identifier: Apache-2.0 */
/* common/fd.h - file descriptors and anonymous memory. Functions return a negative errno on failure and do not log. */
#ifndef SKV_FD_H
#define SKV_FD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

/*
 * Closes fd without changing errno, and returns -1, so that callers write fd = skv_close_fd(fd). A negative fd is
 * ignored.
 */
int skv_close_fd(int fd);
static inline void skv_close_fdp(int *fd)
{
	*fd = skv_close_fd(*fd);
}
/*
 * Returns whether a negative errno means that memory, disk space or descriptors are short, so that a later attempt may
 * succeed.
 */
bool skv_is_shortage(int error);

#define SKV_FD_CLEANUP __attribute__((cleanup(skv_close_fdp)))

/*
 * Raises the process's soft limit of file descriptors (RLIMIT_NOFILE) to its hard limit. Returns the resulting soft
 * limit.
 */
uint64_t skv_fd_raise_limit(void);
/* Error text of a client that receives a message of the daemon without its descriptors (MSG_CTRUNC). */
#define SKV_FD_CUT_OFF "descriptors of the daemon do not come through: this process may have no more, raise RLIMIT_NOFILE"

/*
 * Opens a file with a secret for reading; the caller owns the descriptor. Returns -EPERM unless the file is regular and
 * gives no permission to users other than its owner and group. On failure *ret_why is an error text, static or from
 * strerror().
 */
int skv_open_secret(const char *file, const char **ret_why);

/*
 * Creates a zeroed memfd of `bytes` bytes, sealed against shrinking, growing and further seals. The caller owns the
 * descriptor.
 */
int skv_memfd_new(const char *name, size_t bytes);

/*
 * Creates a memfd with a copy of `bytes` bytes at `data`, sealed against all changes. The memfd is marked as
 * executable, because policies are loaded from such files. The caller owns the descriptor.
 */
int skv_memfd_new_sealed(const char *name, const void *data, size_t bytes);

/*
 * Copies the regular file `fd` (borrowed), of 1 to `most` bytes, to a memfd as skv_memfd_new_sealed() creates it.
 * Returns -EINVAL for another kind or size of file, -ENODATA if the file is truncated while it is copied.
 */
int skv_memfd_copy_sealed(const char *name, int fd, size_t most);

/*
 * Returns whether fd is a memfd that is sealed against writing, shrinking and growing. Reading such a file never waits
 * for another process.
 */
bool skv_fd_is_sealed(int fd);

/*
 * Maps the first `bytes` bytes (at least 1) of fd (borrowed) with MAP_SHARED; the caller unmaps *ret with munmap.
 * Returns -EBADMSG if fd is not a regular file, if the file is shorter than `bytes`, or if need_seals is set and the
 * file could still be shortened: access beyond the end of a file raises SIGBUS, and a peer must not be able to cause
 * that. Returns mmap's error otherwise, such as -EACCES if fd does not allow PROT_WRITE.
 */
int skv_map_fd(int fd, size_t bytes, int prot, int need_seals, void **ret);

#endif
