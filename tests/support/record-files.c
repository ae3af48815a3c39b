/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/record-files.c - preloaded: records what a process makes, removes, syncs and opens in folders, in
 * order, as lines "PID CALL PATH" of the file $SKV_RECORD. The test derives from this order what is on disk after a
 * power cut. Also simulates a failing disk.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* Records a call on `name` in the folder `fd`, or on fd itself if name is NULL. */
static void record(const char *call, int fd, const char *name)
{
	char link[32], path[PATH_MAX] = "", line[2 * PATH_MAX + 64];
	const char *to = getenv("SKV_RECORD");
	const int saved = errno, log = to ? NEXT(open)(to, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;
	int n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (log >= 0 && fd >= 0 && readlink(link, path, sizeof(path) - 1) > 0) {
		n = snprintf(line, sizeof(line), "%d %s %s%s%s\n", (int)getpid(), call, path, name ? "/" : "", name ? name : "");
		(void)!write(log, line, (size_t)n);
	}
	if (log >= 0)
		close(log);
	errno = saved;
}

/* While the file $SKV_EIO exists, opening a parked sequence's file fails with EIO. */
static bool fails(const char *name)
{
	const char *file = getenv("SKV_EIO"), *end = strrchr(name, '.');

	return file && end && !strcmp(end, ".parked") && access(file, F_OK) == 0;
}

int mkdirat(int folder, const char *name, mode_t mode)
{
	record("mkdirat", folder, name);
	return NEXT(mkdirat)(folder, name, mode);
}

int unlinkat(int folder, const char *name, int flags)
{
	record("unlinkat", folder, name);
	return NEXT(unlinkat)(folder, name, flags);
}

int fsync(int fd)
{
	record("fsync", fd, NULL);
	return NEXT(fsync)(fd);
}

int openat(int folder, const char *name, int flags, ...)
{
	mode_t mode = 0;
	va_list ap;

	va_start(ap, flags);
	if (flags & (O_CREAT | __O_TMPFILE))
		mode = va_arg(ap, mode_t);
	va_end(ap);
	record("openat", folder, name);
	if (fails(name)) {
		errno = EIO;
		return -1;
	}
	return NEXT(openat)(folder, name, flags, mode);
}
