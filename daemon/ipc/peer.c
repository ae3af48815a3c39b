/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
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
		/* ESRCH, or in some kernel versions ENODATA or EINVAL, means that the peer is gone */
		return errno == EMFILE || errno == ENFILE || errno == ENOMEM ? -errno : -ESRCH;
	fd = pidfd_open(pid, 0); /* fails for a process outside the daemon's PID namespace, whose `pid` is 0 */
	return fd < 0 ? -errno : fd;
}

int skv_peer_get(int sock, struct skv_peer *ret)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);
	int pidfd;

	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
		return -errno;
	pidfd = peer_pidfd(sock, cred.pid);
	if (pidfd < 0 && cred.pid > 0)
		return pidfd;
	if (pidfd < 0)
		pidfd = -1;
	*ret = (struct skv_peer){.uid = cred.uid, .gid = cred.gid, .pid = cred.pid, .pidfd = pidfd};
	return 0;
}

static bool read_numbers(const char *path, const char *format, unsigned long to[3], int n)
{
	FILE *f = fopen(path, "re");
	bool all = f && fscanf(f, format, &to[0], &to[1], &to[2]) == n;

	if (f)
		fclose(f);
	return all;
}

bool skv_peer_is_mapped(const struct skv_peer *peer)
{
	unsigned long map[3], overflow[3];

	if (!read_numbers("/proc/sys/kernel/overflowuid", "%lu", overflow, 1) || peer->uid != overflow[0])
		return true;
	/* in the initial user namespace, whose map has all UIDs, the overflow UID is a UID like others */
	return read_numbers("/proc/self/uid_map", "%lu %lu %lu", map, 3) && map[0] == 0 && map[1] == 0 &&
	       map[2] == UINT32_MAX;
}

bool skv_peer_other_userns(const struct skv_peer *peer)
{
	struct stat ours, theirs;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)peer->pid);
	return peer->pid > 0 && stat(path, &theirs) == 0 && stat("/proc/self/ns/user", &ours) == 0 &&
	       (ours.st_dev != theirs.st_dev || ours.st_ino != theirs.st_ino);
}
