/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/ipc/peer.h - credentials of the peer of a UNIX socket, as the kernel recorded them at connect(2). */
#ifndef SKV_PEER_H
#define SKV_PEER_H

#include <stdbool.h>
#include <sys/types.h>

struct skv_peer {
	uid_t uid;
	gid_t gid;
	pid_t pid; /* 0: the process is outside of our PID namespace */
	int pidfd; /* owned; -1: there is no process to open */
};

/*
 * 0; -ESRCH if the process that connected is gone already; another negative errno. The pidfd comes from SO_PEERPIDFD
 * (Linux 6.5), on older kernels from pidfd_open(2).
 */
int skv_peer_get(int sock, struct skv_peer *ret);

/*
 * Does the peer's UID have a number in our user namespace? All UIDs without one appear as the overflow UID, which may
 * also belong to a real user.
 */
bool skv_peer_is_mapped(const struct skv_peer *);

/* Is the peer known to be in another user namespace? False also if /proc does not tell. */
bool skv_peer_other_userns(const struct skv_peer *);

#endif
