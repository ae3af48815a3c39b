/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/conn/connect.h"

#include <errno.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "common/fd.h"
#include "libclient/error.h"

#define SERVICE_USER "sparsekv" /* the user that the daemon's service unit runs as */

/*
 * Check that a trusted user listens on the socket, because a daemon sends code that this process runs (policies). The
 * peer's credentials are those of the process that called listen(2): with socket activation, the service manager.
 */
static int check_server(int fd, const char *path)
{
	const char *named = getenv("SPARSEKV_DAEMON_UID");
	struct passwd *service;
	struct ucred peer;
	socklen_t len = sizeof(peer);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
		return error_set(-errno, "cannot tell who listens on '%s': %s", path, strerror(errno));
	if (peer.uid == 0 || peer.uid == geteuid() || (named && *named && strtoul(named, NULL, 10) == peer.uid))
		return 0;
	service = getpwnam(SERVICE_USER);
	if (service && peer.uid == service->pw_uid)
		return 0;
	return error_set(-EPERM,
	                 "'%s' is served by user %u, expected root, user " SERVICE_USER
	                 ", this process's own, or $SPARSEKV_DAEMON_UID",
	                 path, (unsigned)peer.uid);
}

int dial(const char *path, int *ret_fd)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd, e;

	if (strlen(path) >= sizeof(a.sun_path))
		return error_set(-ENAMETOOLONG, "socket path '%s' is longer than %zu bytes", path, sizeof(a.sun_path) - 1);
	strcpy(a.sun_path, path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return error_set(-errno, "cannot make a socket: %s", strerror(errno));
	if (connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
		e = error_set(errno == EINTR ? -EAGAIN : -errno, "cannot connect to '%s': %s", path, strerror(errno));
	else
		e = check_server(fd, path);
	if (e < 0)
		skv_close_fd(fd);
	else
		*ret_fd = fd;
	return e;
}
