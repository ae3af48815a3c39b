/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/mute-proxy.h"

#include <check.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/wire.h"

#define PAIRS 8

static int listening;
static const char *to;
static const _Atomic bool *is_mute;
static struct pair {
	int client, daemon; /* -1: none */
} pairs[PAIRS];

static struct sockaddr_un address(const char *path)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};

	strcpy(a.sun_path, path);
	return a;
}

static void hang_up(struct pair *p)
{
	close(p->client);
	close(p->daemon);
	p->client = p->daemon = -1;
}

static void take_one(void)
{
	struct sockaddr_un a = address(to);
	struct pair *p = pairs;

	while (p->client >= 0)
		p++; /* there are never more than PAIRS */
	p->client = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
	p->daemon = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (connect(p->daemon, (struct sockaddr *)&a, sizeof(a)) < 0)
		hang_up(p);
}

/* Passes on one packet; returns false at the end of the connection. */
static bool pass(int from, int other, bool lose)
{
	static char packet[SKV_WIRE_MAX];
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int) * SKV_WIRE_MAX_FDS)];
	} control;
	struct iovec iov = {.iov_base = packet, .iov_len = sizeof(packet)};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf, .msg_controllen = sizeof(control.buf)};
	const ssize_t n = recvmsg(from, &m, MSG_CMSG_CLOEXEC);

	if (n <= 0)
		return false;
	iov.iov_len = (size_t)n;
	if (!lose && sendmsg(other, &m, MSG_NOSIGNAL) < 0)
		lose = true; /* the peer's end shows up in the next poll */
	for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h))
		for (size_t i = 0; i < (h->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++)
			close(((int *)(void *)CMSG_DATA(h))[i]);
	return true;
}

static void *run(void *unused)
{
	(void)unused;
	for (;;) {
		struct pollfd p[1 + 2 * PAIRS] = {{.fd = listening, .events = POLLIN}};

		for (int i = 0; i < PAIRS; i++) {
			p[1 + 2 * i] = (struct pollfd){.fd = pairs[i].client, .events = POLLIN};
			p[2 + 2 * i] = (struct pollfd){.fd = pairs[i].daemon, .events = POLLIN};
		}
		(void)poll(p, 1 + 2 * PAIRS, -1);
		for (int i = 0; i < PAIRS; i++) {
			struct pair *x = &pairs[i];
			bool more = true;

			if (p[2 + 2 * i].revents)
				more = pass(x->daemon, x->client, *is_mute);
			if (more && p[1 + 2 * i].revents)
				more = pass(x->client, x->daemon, false);
			if (!more)
				hang_up(x);
		}
		if (p[0].revents)
			take_one();
	}
	return NULL;
}

void mute_proxy_start(const char *daemon_socket, const _Atomic bool *mute, char *ret_path)
{
	struct sockaddr_un a;
	pthread_t thread;

	snprintf(ret_path, 96, "%.60s.%d", daemon_socket, (int)getpid());
	(void)unlink(ret_path);
	a = address(ret_path);
	to = daemon_socket;
	is_mute = mute;
	memset(pairs, 0xff, sizeof(pairs));
	listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(listening, (struct sockaddr *)&a, sizeof(a)), 0);
	ck_assert_int_eq(listen(listening, 64), 0);
	ck_assert_int_eq(pthread_create(&thread, NULL, run, NULL), 0);
	pthread_detach(thread);
}
