/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ctl/conn.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include "common/fd.h"

__attribute__((format(printf, 3, 4))) static int ctl_fail(struct skv_ctl *ctl, int error, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(ctl->err, sizeof(ctl->err), fmt, ap);
	va_end(ap);
	return error;
}

/* ---- packets ---- */

static int send_packet(struct skv_ctl *ctl, uint16_t type, const void *body, size_t bytes, int fd)
{
	struct skv_msg_header h = {.length = (uint32_t)(sizeof(h) + bytes),
	                           .type = type,
	                           .n_fds = fd >= 0,
	                           .serial = ++ctl->serial};
	struct iovec iov[2] = {{&h, sizeof(h)}, {(void *)body, bytes}};
	union {
		char space[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = {{0}};
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};

	if (fd >= 0) {
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.align), &fd, sizeof(fd));
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control.space);
	}
	if (sendmsg(ctl->fd, &msg, MSG_NOSIGNAL) < 0)
		return ctl_fail(ctl, -errno, "the daemon closed the connection: %s", strerror(errno));
	return 0;
}

/*
 * Takes the descriptors of a received message: the first one becomes *ret_fd, if ret_fd is not NULL; all others are
 * closed.
 */
static void take_received(struct msghdr *msg, int *ret_fd)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c))
		for (size_t at = CMSG_LEN(0); c->cmsg_type == SCM_RIGHTS && at < c->cmsg_len;
		     at += sizeof(int)) {
			int fd;

			memcpy(&fd, (char *)c + at, sizeof(fd));
			if (ret_fd && *ret_fd < 0)
				*ret_fd = fd;
			else
				skv_close_fd(fd);
		}
}

/*
 * Receives one packet into buf[SKV_WIRE_MAX]. *ret_fd, which must be -1 before, becomes the packet's first fd, which
 * the caller owns; ret_fd may be NULL. Returns the length of the packet, or a negative errno.
 */
static ssize_t recv_packet(struct skv_ctl *ctl, void *buf, int *ret_fd)
{
	struct pollfd p = {.fd = ctl->fd, .events = POLLIN};
	union {
		char space[CMSG_SPACE(SKV_WIRE_MAX_FDS * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {buf, SKV_WIRE_MAX};
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	unsigned n_fds = 0;
	const char *what;
	ssize_t n;
	int r;

	do
		r = poll(&p, 1, ctl->timeout_ms);
	while (r < 0 && errno == EINTR);
	if (r == 0)
		return ctl_fail(ctl, -ETIMEDOUT, "the daemon gave no answer within %.1f s",
		            ctl->timeout_ms / 1e3);
	n = recvmsg(ctl->fd, &msg, MSG_CMSG_CLOEXEC);
	if (n <= 0)
		return ctl_fail(ctl, n < 0 ? -errno : -ECONNRESET, "the daemon closed the connection");
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c))
		n_fds += c->cmsg_type == SCM_RIGHTS ? (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int))
		                                    : 0;
	take_received(&msg, ret_fd);
	if (msg.msg_flags & MSG_CTRUNC)
		return ctl_fail(ctl, -EMFILE, SKV_FD_CUT_OFF);
	what = skv_wire_check(buf, (size_t)n, n_fds, false);
	if (what)
		return ctl_fail(ctl, -EPROTO, "the daemon's answer is malformed: %s", what);
	return n;
}

/*
 * Receives the next packet of the reply to the last request, and skips notices. SKV_MSG_ERROR is returned as a failure.
 */
static ssize_t recv_answer(struct skv_ctl *ctl, uint16_t type, void *buf, int *ret_fd)
{
	struct skv_msg_header *h = buf;

	for (;;) {
		ssize_t n = recv_packet(ctl, buf, ret_fd);

		if (n < 0)
			return n;
		if (h->type == SKV_MSG_ERROR && (h->serial == ctl->serial || h->serial == 0)) {
			const struct skv_msg_error *e = (const void *)(h + 1);

			return ctl_fail(ctl, -e->error, "%s", e->text);
		}
		if (h->serial == ctl->serial && h->type == (type | SKV_REPLY))
			return n;
	}
}

/* ---- conversation ---- */

static int say_hello(struct skv_ctl *ctl, const char *program, void *buf)
{
	struct skv_msg_hello hello = {.version_min = SKV_PROTO_VERSION, .version_max = SKV_PROTO_VERSION};
	const struct skv_msg_hello_ok *ok = (const void *)((char *)buf + sizeof(struct skv_msg_header));
	int r;

	skv_wire_string(hello.program, sizeof(hello.program), program);
	r = send_packet(ctl, SKV_MSG_HELLO, &hello, sizeof(hello), -1);
	if (r == 0)
		r = (int)recv_answer(ctl, SKV_MSG_HELLO, buf, NULL);
	if (r < 0)
		return r;
	strcpy(ctl->daemon, ok->daemon);
	return 0;
}

int skv_ctl_connect(struct skv_ctl *ctl, const char *path, const char *program, int timeout_ms)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	void *buf;
	int r;

	*ctl = (struct skv_ctl)SKV_CTL_NULL;
	ctl->timeout_ms = timeout_ms;
	if (strlen(path) >= sizeof(addr.sun_path))
		return ctl_fail(ctl, -ENAMETOOLONG, "%s: a socket's path has at most %zu bytes", path,
		            sizeof(addr.sun_path) - 1);
	strcpy(addr.sun_path, path);
	ctl->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (ctl->fd < 0 || connect(ctl->fd, (const struct sockaddr *)&addr, sizeof(addr)) < 0) {
		r = -errno;
		ctl_fail(ctl, r, "%s: cannot connect: %s%s", path, strerror(-r),
		     r == -ENOENT || r == -ECONNREFUSED ? " (is sparsekvd running?)" : "");
		skv_ctl_close(ctl);
		return r;
	}
	buf = malloc(SKV_WIRE_MAX);
	r = buf ? say_hello(ctl, program, buf) : ctl_fail(ctl, -ENOMEM, "out of memory");
	free(buf);
	if (r < 0)
		skv_ctl_close(ctl);
	return r;
}

void skv_ctl_close(struct skv_ctl *ctl)
{
	ctl->fd = skv_close_fd(ctl->fd);
}

/* Receives all SKV_MSG_TEXT packets of a reply, and joins their texts. */
static int recv_text(struct skv_ctl *ctl, uint16_t type, void *buf, char **ret, size_t *ret_len)
{
	const struct skv_msg_text *t = (const void *)((char *)buf + sizeof(struct skv_msg_header));
	char *text = NULL, *grown;
	size_t len = 0;

	do {
		ssize_t n = recv_answer(ctl, type, buf, NULL);

		grown = n < 0 ? NULL : realloc(text, len + t->length + 1);
		if (!grown) {
			free(text);
			return n < 0 ? (int)n : ctl_fail(ctl, -ENOMEM, "out of memory");
		}
		text = grown;
		memcpy(text + len, t + 1, t->length);
		len += t->length;
	} while (t->more);
	*ret = text;
	*ret_len = len;
	return 0;
}

int skv_ctl_ask(struct skv_ctl *ctl, uint16_t type, const void *body, size_t bytes, int fd, json_t **ret)
{
	void *buf = malloc(SKV_WIRE_MAX);
	char *text = NULL;
	size_t len = 0;
	int r = buf ? send_packet(ctl, type, body, bytes, fd) : ctl_fail(ctl, -ENOMEM, "out of memory");

	if (r == 0)
		r = recv_text(ctl, type, buf, &text, &len);
	if (r == 0) {
		*ret = json_loadb(text, len, 0, NULL);
		if (!*ret)
			r = ctl_fail(ctl, -EPROTO, "the daemon's answer is not JSON");
	}
	free(text);
	free(buf);
	return r;
}

int skv_ctl_ask_fd(struct skv_ctl *ctl, uint16_t type, const void *body, size_t bytes, void *ret, size_t ret_bytes, int *ret_fd)
{
	void *buf = malloc(SKV_WIRE_MAX);
	int r = buf ? send_packet(ctl, type, body, bytes, -1) : ctl_fail(ctl, -ENOMEM, "out of memory"), fd = -1;

	if (r == 0) {
		ssize_t n = recv_answer(ctl, type, buf, &fd);

		r = n < 0 ? (int)n : 0;
	}
	if (r == 0) {
		memcpy(ret, (char *)buf + sizeof(struct skv_msg_header), ret_bytes);
		*ret_fd = fd;
	} else {
		skv_close_fd(fd);
	}
	free(buf);
	return r;
}

int skv_ctl_query(struct skv_ctl *ctl, enum skv_query what, json_t **ret)
{
	struct skv_msg_query q = {.what = what};

	return skv_ctl_ask(ctl, SKV_MSG_QUERY, &q, sizeof(q), -1, ret);
}
