/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/ipc/rights.h - file descriptors that peers send.
 *
 * If a message is received without room for its descriptors, or its socket is closed, the kernel closes them. Closing
 * the last descriptor of a file may block for as long as the file's owner likes (a FUSE server that does not answer,
 * a socket that lingers). So a message is peeked at before it is received. A peek never closes anything, and
 * MSG_CTRUNC tells that the message carries descriptors.
 */
#ifndef SKV_RIGHTS_H
#define SKV_RIGHTS_H

#include <stdbool.h>
#include <sys/socket.h>
#include "common/wire.h"
#include "daemon/loop/loop.h"

/* Room for the descriptors of one message. A union with cmsghdr would have a flexible member in its middle. */
struct skv_rights_room {
	_Alignas(struct cmsghdr) char space[CMSG_SPACE(SKV_WIRE_MAX_FDS * sizeof(int))];
};

/*
 * Asks the kernel to refuse messages with descriptors to this socket and those that it accepts. Kernels before Linux
 * 6.16 cannot.
 */
void skv_rights_refuse(int sock);

/* Does the message carry descriptors? It was peeked at without room for any. */
static inline bool skv_rights_carried(const struct msghdr *peeked)
{
	return peeked->msg_flags & MSG_CTRUNC;
}

/* Has the kernel refused descriptors for this socket since it was connected? Then none wait in it. */
bool skv_rights_refused(int sock);

/*
 * Returns the descriptors of a received message, which the caller owns; the loop closes those beyond
 * SKV_WIRE_MAX_FDS.
 */
unsigned skv_rights_take(struct skv_loop *, struct msghdr *, int fds[SKV_WIRE_MAX_FDS]);

#endif
