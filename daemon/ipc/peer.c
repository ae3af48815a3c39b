/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include "daemon/ipc/peer.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

static int peer_pidfd(int sock, pid_t pid)
{
	int fd;
	socklen_t len = sizeof(fd);

	if (getsockopt(sock, SOL_SOCKET, SO_PEERPIDFD, &fd, &len) == 0)
		return fd;
	if (errno != ENOPROTOOPT)
		/* ESRCH, or ENODATA and EINVAL in some versions, for a peer that is gone */
		return errno == EMFILE || errno == ENFILE || errno == ENOMEM ? -errno : -ESRCH;
	fd = pidfd_open(pid, 0);
	return fd < 0 ? -errno : fd;
}

int skv_peer_get(int sock, struct skv_peer *ret)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);
	int pidfd = -1;

	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
		return -errno;
	if (cred.pid > 0) {
		pidfd = peer_pidfd(sock, cred.pid);
		if (pidfd < 0)
			return pidfd;
	}
	*ret = (struct skv_peer){.uid = cred.uid, .gid = cred.gid, .pid = cred.pid, .pidfd = pidfd};
	return 0;
}

bool skv_peer_in_group(int sock, const struct skv_peer *peer, gid_t gid)
{
	socklen_t len = 0;
	gid_t *groups;
	bool found = peer->gid == gid;

	if (found || getsockopt(sock, SOL_SOCKET, SO_PEERGROUPS, NULL, &len) == 0 || errno != ERANGE)
		return found; /* no supplementary groups at all */
	groups = malloc(len);
	if (groups && getsockopt(sock, SOL_SOCKET, SO_PEERGROUPS, groups, &len) == 0)
		for (size_t i = 0; i < len / sizeof(*groups); i++)
			found = found || groups[i] == gid;
	free(groups);
	return found;
}
