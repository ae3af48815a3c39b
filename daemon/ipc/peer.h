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

/*
 * Has the peer's user a number in our user namespace? All users that have none are one and the same to us, and which
 * number they share may be a user's.
 */
bool skv_peer_is_mapped(const struct skv_peer *);

/* Is the peer known to be in another user namespace than we are? Who may not look does not know. */
bool skv_peer_other_userns(const struct skv_peer *);

#endif
