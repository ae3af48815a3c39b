/* SPDX-License-Identifier: Apache-2.0 */
/* common/fd.h - file descriptors and anonymous memory. Negative errno on failure, no logging. */
#ifndef SKV_FD_H
#define SKV_FD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

/* Close and return -1, keeping errno: fd = skv_close_fd(fd). Negative fds are ignored. */
int skv_close_fd(int fd);
static inline void skv_close_fdp(int *fd)
{
	*fd = skv_close_fd(*fd);
}
/* Does the system lack something (memory, descriptors), by this negative errno? Another time it may not. */
bool skv_is_shortage(int error);

#define SKV_FD_CLEANUP __attribute__((cleanup(skv_close_fdp)))

/* Let this process have as many descriptors as it may: how many that are. */
uint64_t skv_fd_raise_limit(void);
/* What is wrong where a message of the daemon's comes without its descriptors (MSG_CTRUNC). */
#define SKV_FD_CUT_OFF "descriptors of the daemon do not come through: this process may have no more, raise RLIMIT_NOFILE"

/*
 * Open a file with a secret to be read (the caller's): a regular one, which nobody but its owner and group may read or write. Negative errno
 * with a text, static or strerror()'s: -EPERM, it is another one.
 */
int skv_open_secret(const char *file, const char **ret_why);

/* A zeroed memfd of `bytes`, sealed against shrinking, growing and further seals. Owned by the caller. */
int skv_memfd_new(const char *name, size_t bytes);

/* The same, holding a copy of `bytes` bytes at `data`, sealed against writing too, and executable. */
int skv_memfd_new_sealed(const char *name, const void *data, size_t bytes);

/*
 * A copy of the regular file `fd` (borrowed), of 1 to `most` bytes, as skv_memfd_new_sealed() makes one. -EINVAL for a
 * file of another kind or size, -ENODATA when it is cut short meanwhile.
 */
int skv_memfd_copy_sealed(const char *name, int fd, size_t most);

/* Is it a memfd whose contents nobody can change any more? Reading it waits for nobody. */
bool skv_fd_is_sealed(int fd);

/*
 * Map the first `bytes` (at least 1) of fd (borrowed), shared; *ret is the caller's to munmap. -EBADMSG
 * when fd is no file, is shorter than that or (need_seals) could be made shorter: what a peer sent
 * can then not make us fault. Else what mmap says, as -EACCES for a PROT_WRITE that fd does not allow.
 */
int skv_map_fd(int fd, size_t bytes, int prot, int need_seals, void **ret);

#endif
