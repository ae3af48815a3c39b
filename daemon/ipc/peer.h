/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/ipc/peer.h - credentials of the process at the other end of a UNIX socket, as the kernel recorded them at
 * connect(2).
 */
#ifndef SKV_PEER_H
#define SKV_PEER_H

#include <stdbool.h>
#include <sys/types.h>

struct skv_peer {
	uid_t uid;
	gid_t gid;
	pid_t pid; /* 0: the process is not in the daemon's PID namespace */
	int pidfd; /* owned; -1: no pidfd could be opened, since `pid` is 0 */
};

/*
 * Gets the credentials of the peer of a connected socket. Returns 0, -ESRCH if the process that connected is gone
 * already, or another negative errno. The pidfd comes from SO_PEERPIDFD (Linux 6.5), on older kernels from
 * pidfd_open(2).
 */
int skv_peer_get(int sock, struct skv_peer *ret);

/*
 * Returns whether the peer's UID has a number in the daemon's user namespace. The kernel shows all UIDs without one as
 * the overflow UID, which may also be the UID of a real user.
 */
bool skv_peer_is_mapped(const struct skv_peer *);

/*
 * Returns whether the peer is known to be in another user namespace than the daemon; false also if /proc does not tell.
 */
bool skv_peer_other_userns(const struct skv_peer *);

#endif
