/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/ipc/rights.h - file descriptors that peers send.
 *
 * A file that nobody else has open is closed in earnest when the message that carries it is received without room
 * for it, or when the socket that it waits in is closed; and that may take as long as the file's owner likes (a FUSE
 * server that does not answer, a socket that lingers). So a message is peeked at before it is received, which never
 * is the last to close anything: with MSG_CTRUNC it carries descriptors.
 */
#ifndef SKV_RIGHTS_H
#define SKV_RIGHTS_H

#include <stdbool.h>
#include <sys/socket.h>
#include "common/wire.h"
#include "daemon/loop/loop.h"

/* Room for one message's descriptors; a union with cmsghdr would have a flexible member in its middle. */
struct skv_rights_room {
	_Alignas(struct cmsghdr) char space[CMSG_SPACE(SKV_WIRE_MAX_FDS * sizeof(int))];
};

/* The kernel is to refuse what carries descriptors, to this socket and those that it accepts. It may not know how. */
void skv_rights_refuse(int sock);

/* Does the message that was peeked at, without room for descriptors, carry any? */
static inline bool skv_rights_carried(const struct msghdr *peeked)
{
	return peeked->msg_flags & MSG_CTRUNC;
}

/* Has the kernel refused them for this socket since it was connected? Then none wait in it. */
bool skv_rights_refused(int sock);

/* The descriptors of a received message, which are the caller's; more than there may be are closed, by the loop. */
unsigned skv_rights_take(struct skv_loop *, struct msghdr *, int fds[SKV_WIRE_MAX_FDS]);

#endif
