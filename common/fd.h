/* SPDX-License-Identifier: Apache-2.0 */
/* common/fd.h - file descriptors and anonymous memory. Functions return a negative errno on failure and do not log. */
#ifndef SKV_FD_H
#define SKV_FD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

/* Closes fd and returns -1, preserving errno: fd = skv_close_fd(fd). Negative fds are ignored. */
int skv_close_fd(int fd);
static inline void skv_close_fdp(int *fd)
{
	*fd = skv_close_fd(*fd);
}
/*
 * Returns whether this negative errno means a shortage (of memory or descriptors), so that a later attempt may succeed.
 */
bool skv_is_shortage(int error);

#define SKV_FD_CLEANUP __attribute__((cleanup(skv_close_fdp)))

/* Raises the soft limit of descriptors to the hard limit. Returns the resulting limit. */
uint64_t skv_fd_raise_limit(void);
/* Error text for a message of the daemon that arrives without its descriptors (MSG_CTRUNC). */
#define SKV_FD_CUT_OFF "descriptors of the daemon do not come through: this process may have no more, raise RLIMIT_NOFILE"

/*
 * Opens a file with a secret for reading; the caller owns the descriptor. The file must be regular, and readable and
 * writable at most by its owner and group; otherwise -EPERM. Errors have a text, static or from strerror().
 */
int skv_open_secret(const char *file, const char **ret_why);

/* Creates a zeroed memfd of `bytes`, sealed against shrinking, growing and further seals. Owned by the caller. */
int skv_memfd_new(const char *name, size_t bytes);

/* The same with a copy of `bytes` bytes at `data`, also sealed against writing, and executable. */
int skv_memfd_new_sealed(const char *name, const void *data, size_t bytes);

/*
 * Copies the regular file `fd` (borrowed), of 1 to `most` bytes, to a memfd as skv_memfd_new_sealed() creates it.
 * -EINVAL for another kind or size of file, -ENODATA if it is truncated meanwhile.
 */
int skv_memfd_copy_sealed(const char *name, int fd, size_t most);

/* Returns whether fd is a memfd with immutable contents. Reading such a file never blocks on another process. */
bool skv_fd_is_sealed(int fd);

/*
 * Maps the first `bytes` (at least 1) of fd (borrowed), shared; the caller unmaps *ret with munmap. -EBADMSG if fd is
 * no regular file, is shorter, or (need_seals) could be shortened: so a file from a peer cannot cause a fault.
 * Otherwise mmap's error, such as -EACCES for a PROT_WRITE that fd does not allow.
 */
int skv_map_fd(int fd, size_t bytes, int prot, int need_seals, void **ret);

#endif
