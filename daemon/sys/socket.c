/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "common/fd.h"
#include "daemon/sys/socket.h"

/* Does a socket lie there that nobody listens on? Only such a one is removed. */
static int remove_stale(const struct sockaddr_un *addr)
{
	SKV_FD_CLEANUP int fd = -1;
	struct stat st;

	if (lstat(addr->sun_path, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode))
		return -EADDRINUSE;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) == 0 || errno != ECONNREFUSED)
		return -EADDRINUSE;
	return unlink(addr->sun_path) < 0 && errno != ENOENT ? -errno : 0;
}

int skv_socket_listen(const char *path, mode_t mode, gid_t gid, char *err, size_t err_len)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	SKV_FD_CLEANUP int fd = -1;
	int r = -ENAMETOOLONG;
	mode_t mask;

	if (strlen(path) < sizeof(addr.sun_path)) {
		strcpy(addr.sun_path, path);
		r = remove_stale(&addr);
	}
	if (r == 0) {
		fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
		r = fd < 0 ? -errno : 0;
	}
	if (r == 0) {
		mask = umask(0777); /* nobody gets in before mode and owner are right */
		r = bind(fd, (const struct sockaddr *)&addr, sizeof(addr)) < 0 ? -errno : 0;
		umask(mask);
	}
	if (r < 0) {
		snprintf(err, err_len, "%s: cannot be listened on: %s", path,
		         r == -EADDRINUSE ? "another daemon does, or it is no socket" : strerror(-r));
		return r;
	}
	if ((gid != (gid_t)-1 && chown(path, (uid_t)-1, gid) < 0) || chmod(path, mode) < 0 || listen(fd, SOMAXCONN) < 0) {
		r = -errno;
		snprintf(err, err_len, "%s: cannot be given its owner and permissions: %s", path, strerror(errno));
		unlink(path);
		return r;
	}
	r = fd;
	fd = -1;
	return r;
}
