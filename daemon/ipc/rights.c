/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/ipc/rights.c - receives or refuses descriptors that peers send; see rights.h. */
#include <string.h>
#include "daemon/ipc/rights.h"

#ifndef SO_PASSRIGHTS /* socket option of Linux 6.16 */
#define SO_PASSRIGHTS 83
#endif

void skv_rights_refuse(int sock)
{
	int off = 0;

	(void)setsockopt(sock, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof(off));
}

bool skv_rights_refused(int sock)
{
	int on = 1;
	socklen_t len = sizeof(on);

	return getsockopt(sock, SOL_SOCKET, SO_PASSRIGHTS, &on, &len) == 0 && !on;
}

unsigned skv_rights_take(struct skv_loop *loop, struct msghdr *msg, int fds[SKV_WIRE_MAX_FDS])
{
	unsigned n = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		size_t count;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			if (n < SKV_WIRE_MAX_FDS)
				fds[n++] = fd;
			else
				skv_loop_close_fd(loop, fd);
		}
	}
	return n;
}
