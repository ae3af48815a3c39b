/* SPDX-License-Identifier: Apache-2.0 */
#include "common/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* These memfd flags exist since Linux 6.3; the oldest supported kernel and C library do not have them. */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

int skv_close_fd(int fd)
{
	if (fd >= 0) {
		int saved = errno;

		close(fd);
		errno = saved;
	}
	return -1;
}

bool skv_is_shortage(int error)
{
	return error == -ENOMEM || error == -ENOSPC || error == -EMFILE || error == -ENFILE || error == -EAGAIN || error == -ENOBUFS;
}

uint64_t skv_fd_raise_limit(void)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r) < 0)
		return UINT64_MAX;
	if (r.rlim_cur < r.rlim_max && setrlimit(RLIMIT_NOFILE, &(struct rlimit){r.rlim_max, r.rlim_max}) == 0)
		r.rlim_cur = r.rlim_max;
	return r.rlim_cur;
}

int skv_open_secret(const char *file, const char **ret_why)
{
	/* O_NONBLOCK, because opening a named pipe would otherwise wait until another process opens it for writing */
	const int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0) {
		*ret_why = strerror(errno);
		skv_close_fd(fd);
		return -errno;
	}
	if (S_ISREG(st.st_mode) && !(st.st_mode & 07))
		return fd;
	*ret_why = "expected a file that nobody but its owner and group may read or write";
	skv_close_fd(fd);
	return -EPERM;
}

/*
 * Creates an empty memfd, marked as executable or not. MFD_EXEC and MFD_NOEXEC_SEAL override the sysctl
 * vm.memfd_noexec=1. Kernels that do not know these flags return EINVAL, and do not have the sysctl.
 */
static int memfd(const char *name, bool code)
{
	unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	int fd = memfd_create(name, flags | (code ? MFD_EXEC : MFD_NOEXEC_SEAL));

	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name, flags);
	return fd < 0 ? -errno : fd;
}

int skv_memfd_new(const char *name, size_t bytes)
{
	SKV_FD_CLEANUP int fd = memfd(name, false);
	int ret;

	if (fd < 0)
		return fd;
	if (bytes > INT64_MAX)
		return -EFBIG;
	if (ftruncate(fd, (off_t)bytes) < 0 ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		return -errno;
	ret = fd;
	fd = -1;
	return ret;
}

static int write_all(int fd, const void *data, size_t bytes)
{
	const char *p = data;

	while (bytes > 0) {
		ssize_t n = write(fd, p, bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			return -EIO;
		p += n;
		bytes -= (size_t)n;
	}
	return 0;
}

int skv_memfd_new_sealed(const char *name, const void *data, size_t bytes)
{
	SKV_FD_CLEANUP int fd = memfd(name, true);
	int ret;

	if (fd < 0)
		return fd;
	ret = write_all(fd, data, bytes);
	if (ret < 0)
		return ret;
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		return -errno;
	ret = fd;
	fd = -1;
	return ret;
}

int skv_memfd_copy_sealed(const char *name, int fd, size_t most)
{
	struct stat st;
	size_t bytes, n = 0;
	ssize_t r = 1;
	char *data;

	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode) || st.st_size <= 0 || (uint64_t)st.st_size > most)
		return -EINVAL;
	bytes = (size_t)st.st_size;
	data = malloc(bytes);
	if (!data)
		return -ENOMEM;
	while (n < bytes && r > 0) {
		r = pread(fd, data + n, bytes - n, (off_t)n);
		n += r > 0 ? (size_t)r : 0;
	}
	r = r > 0 ? skv_memfd_new_sealed(name, data, bytes) : r < 0 ? -errno : -ENODATA;
	free(data);
	return (int)r;
}

bool skv_fd_is_sealed(int fd)
{
	const int all = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
	int seals = fcntl(fd, F_GET_SEALS);

	return seals >= 0 && (seals & all) == all;
}

int skv_map_fd(int fd, size_t bytes, int prot, int need_seals, void **ret)
{
	struct stat st;
	void *p;

	if (bytes == 0)
		return -EINVAL;
	if (fstat(fd, &st) < 0)
		return -errno;
	/* Access to a page beyond the end of the file raises SIGBUS. */
	if (!S_ISREG(st.st_mode) || st.st_size < 0 || (uint64_t)st.st_size < bytes)
		return -EBADMSG;
	if (need_seals) {
		int seals = fcntl(fd, F_GET_SEALS);

		if (seals < 0 || !(seals & F_SEAL_SHRINK))
			return -EBADMSG;
	}
	p = mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return -errno;
	*ret = p;
	return 0;
}
