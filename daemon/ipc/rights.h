/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/ipc/rights.h - receives or refuses file descriptors that peers send (SCM_RIGHTS).
 *
 * The kernel closes the descriptors of a message if the message is received without room for them, or if its socket is
 * closed. Closing the last descriptor of a file may block for as long as the file's owner likes (a FUSE server that
 * does not answer, a socket that lingers). So the daemon peeks at a message before it receives it. A peek never closes
 * descriptors, and sets MSG_CTRUNC if the message carries descriptors.
 */
#ifndef SKV_RIGHTS_H
#define SKV_RIGHTS_H

#include <stdbool.h>
#include <sys/socket.h>
#include "common/wire.h"
#include "daemon/loop/loop.h"

/*
 * Room for the descriptors of one message. The room is an aligned array, since in a union struct cmsghdr would be a
 * flexible member that is not at the end.
 */
struct skv_rights_room {
	_Alignas(struct cmsghdr) char space[CMSG_SPACE(SKV_WIRE_MAX_FDS * sizeof(int))];
};

/*
 * Asks the kernel to refuse messages with descriptors to this listening socket and to the sockets accepted from it.
 * Kernels before Linux 6.16 ignore the request.
 */
void skv_rights_refuse(int sock);

/* Returns whether a message carries descriptors. The message must have been peeked at without room for descriptors. */
static inline bool skv_rights_carried(const struct msghdr *peeked)
{
	return peeked->msg_flags & MSG_CTRUNC;
}

/* Returns whether the kernel refuses descriptors for this socket. If so, no descriptors wait in the socket. */
bool skv_rights_refused(int sock);

/*
 * Gets the descriptors of a received message, which the caller then owns, and returns their number. The loop closes
 * descriptors beyond SKV_WIRE_MAX_FDS.
 */
unsigned skv_rights_take(struct skv_loop *, struct msghdr *, int fds[SKV_WIRE_MAX_FDS]);

#endif
