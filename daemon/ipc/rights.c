/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/ipc/rights.c - see rights.h. */
#include <errno.h>
#include <string.h>
#include "daemon/ipc/rights.h"

#ifndef SO_PASSRIGHTS /* Linux 6.16 */
#define SO_PASSRIGHTS 83
#endif

void skv_rights_refuse(int sock)
{
	int off = 0;

	(void)setsockopt(sock, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof(off));
}

/*
 * A message without bytes looks like the end of all messages. With credentials to every message, and room for them,
 * the end is the one that has none.
 */
bool skv_rights_left(int sock)
{
	_Alignas(struct cmsghdr) char room[CMSG_SPACE(sizeof(struct ucred))];
	int on = 1;

	if (setsockopt(sock, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) < 0)
		return true;
	for (;;) {
		struct msghdr msg = {.msg_control = room, .msg_controllen = sizeof(room)};

		ssize_t n = recvmsg(sock, &msg, MSG_PEEK | MSG_DONTWAIT);

		if (n < 0 && errno == ECONNRESET) /* told once: the peer did not read all. What it sent is still there */
			continue;
		if (n < 0 || skv_rights_carried(&msg))
			return true;
		if (!CMSG_FIRSTHDR(&msg))
			return false;
		(void)recv(sock, NULL, 0, MSG_DONTWAIT);
	}
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
