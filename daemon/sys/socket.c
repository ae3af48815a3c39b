/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "common/fd.h"
#include "common/wire.h"
#include "daemon/sys/log.h"
#include "daemon/sys/socket.h"

/*
 * Locks the file `path`.lock and returns its fd. If another process removes the file after it was opened here, its lock
 * means nothing, and the function tries again.
 */
static int take_lock(const char *path)
{
	char name[sizeof(((struct sockaddr_un *)NULL)->sun_path) + 8];
	struct stat ours, there;

	snprintf(name, sizeof(name), "%s.lock", path);
	for (;;) {
		int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600), r;

		if (fd < 0)
			return -errno;
		if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
			r = errno == EWOULDBLOCK ? -EADDRINUSE : -errno;
			close(fd);
			return r;
		}
		if (fstat(fd, &ours) == 0 && stat(name, &there) == 0 && ours.st_ino == there.st_ino)
			return fd;
		close(fd);
	}
}

/*
 * Returns whether a live process listens on the socket, or a negative errno. That a connection succeeds does not prove
 * it: the socket of a killed daemon accepts connections until the kernel has freed the daemon's ring. So the process
 * that called listen() must exist as well.
 */
static int is_served(const struct sockaddr_un *addr)
{
	SKV_FD_CLEANUP int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct ucred cred;
	socklen_t len = sizeof(cred);

	if (fd < 0)
		return -errno;
	if (connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) < 0)
		return errno !=
		       ECONNREFUSED; /* EAGAIN: the listener is busy; EPROTOTYPE: its socket has another type */
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
		return -errno;
	return !(cred.pid > 0 && kill(cred.pid, 0) < 0 && errno == ESRCH);
}

static int make_room(const struct sockaddr_un *addr)
{
	struct stat st;
	int r;

	if (lstat(addr->sun_path, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode))
		return -EADDRINUSE;
	r = is_served(addr);
	if (r)
		return r < 0 ? r : -EADDRINUSE;
	return unlink(addr->sun_path) < 0 && errno != ENOENT ? -errno : 0;
}

static int bind_and_listen(const struct sockaddr_un *addr, mode_t mode, gid_t gid)
{
	SKV_FD_CLEANUP int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	mode_t mask;
	int r;

	if (fd < 0)
		return -errno;
	mask = umask(0777); /* so that nobody can connect before mode and owner are set */
	r = bind(fd, (const struct sockaddr *)addr, sizeof(*addr)) < 0 ? -errno : 0;
	umask(mask);
	if (r < 0)
		return r;
	if ((gid != (gid_t)-1 && chown(addr->sun_path, (uid_t)-1, gid) < 0) ||
	    chmod(addr->sun_path, mode) < 0 || listen(fd, SOMAXCONN) < 0) {
		r = -errno;
		unlink(addr->sun_path);
		return r;
	}
	r = fd;
	fd = -1;
	return r;
}

int skv_socket_listen(const char *path, mode_t mode, gid_t gid, struct skv_socket *ret, char *err,
                      size_t err_len)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct skv_socket s = SKV_SOCKET_NULL;
	int fd = -ENAMETOOLONG, r;

	if (strlen(path) < sizeof(addr.sun_path)) {
		strcpy(addr.sun_path, path);
		fd = s.lock_fd = take_lock(path);
	}
	if (fd >= 0) {
		s.path = strdup(path);
		r = s.path ? make_room(&addr) : -ENOMEM;
		fd = r < 0 ? r : bind_and_listen(&addr, mode, gid);
	}
	if (fd >= 0) {
		*ret = s;
		return fd;
	}
	snprintf(err, err_len, "%s: cannot be listened on: %s", path,
	         fd == -EADDRINUSE ? "another daemon listens there, or the path is not a socket" : strerror(-fd));
	free(s.path);
	skv_close_fd(s.lock_fd);
	return fd;
}

void skv_socket_remove(struct skv_socket *s)
{
	char name[sizeof(((struct sockaddr_un *)NULL)->sun_path) + 8];

	if (!s->path)
		return;
	unlink(s->path);
	snprintf(name, sizeof(name), "%s.lock", s->path);
	unlink(name);
	free(s->path);
	skv_close_fd(s->lock_fd); /* last, since another daemon can listen on the path as soon as the lock is free */
	*s = (struct skv_socket)SKV_SOCKET_NULL;
}

static int listen_on(const char *path, mode_t mode, const char *group, struct skv_socket *ret)
{
	char err[512];
	gid_t gid = (gid_t)-1;
	int r;

	if (*group)
		/* this cannot fail: the group was checked when the settings were read */
		(void)skv_config_group(group, &gid);
	r = skv_socket_listen(path, mode, gid, ret, err, sizeof(err));
	if (r < 0)
		skv_log(LOG_ERR, "a socket: %s", err);
	return r;
}

int skv_sockets_open(const struct skv_config *c, struct skv_sockets *ret, int fds[2])
{
	char path[SKV_CONFIG_TEXT];

	if (!skv_operators_socket(c->socket, path, sizeof(path))) {
		skv_log(LOG_ERR, "%s: the path of the socket is too long", c->socket);
		return -ENAMETOOLONG;
	}
	fds[0] = listen_on(c->socket, (mode_t)c->socket_mode, c->socket_group, &ret->clients);
	if (fds[0] < 0)
		return fds[0];
	fds[1] = listen_on(path, *c->operator_group ? 0660 : 0600, c->operator_group, &ret->operators);
	if (fds[1] >= 0)
		return 0;
	skv_close_fd(fds[0]);
	return fds[1];
}

void skv_sockets_remove(struct skv_sockets *s)
{
	skv_socket_remove(&s->clients);
	skv_socket_remove(&s->operators);
}
