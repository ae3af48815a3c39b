/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/ipc/peer.h - credentials of the peer of a UNIX socket, as the kernel recorded them at connect(2). */
#ifndef SKV_PEER_H
#define SKV_PEER_H

#include <stdbool.h>
#include <sys/types.h>

struct skv_peer {
	uid_t uid;
	gid_t gid;
	pid_t pid; /* 0: a process outside of our PID namespace */
	int pidfd; /* owned; -1 when there is no pid to open */
};

/*
 * 0, -ESRCH when the process that connected is gone already, other negative errno. The pidfd comes
 * from SO_PEERPIDFD (Linux 6.5), before that from pidfd_open(2).
 */
int skv_peer_get(int sock, struct skv_peer *ret);

/* Is the peer a member of `gid`, by its primary or a supplementary group? */
bool skv_peer_in_group(int sock, const struct skv_peer *peer, gid_t gid);

#endif
