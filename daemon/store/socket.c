/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/socket.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include "common/clock.h"
#include "common/fd.h"

int skv_store_wait(struct pollfd *fds, size_t n, uint64_t deadline_ns)
{
	for (;;) {
		const struct timespec left = skv_store_time_left(deadline_ns);
		int found = ppoll(fds, n, &left, NULL);

		if (found > 0)
			return 0;
		if (left.tv_sec == 0 && left.tv_nsec == 0)
			return -ETIMEDOUT;
		if (found < 0 && errno != EINTR)
			return -errno;
	}
}

static int wait_for(int fd, short events, uint64_t deadline_ns)
{
	return skv_store_wait(&(struct pollfd){.fd = fd, .events = events}, 1, deadline_ns);
}

/* ---- connecting ---------------------------------------------------------------------------------- */

/* Returns a connected socket that the caller owns, or a negative errno. */
static int connect_to(const struct sockaddr *address, socklen_t len, uint64_t deadline_ns)
{
	int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), r = 0;
	socklen_t n = sizeof(r);

	if (fd < 0)
		return -errno;
	if (connect(fd, address, len) < 0) {
		r = -errno;
		if (r == -EINPROGRESS) {
			r = wait_for(fd, POLLOUT, deadline_ns);
			if (r == 0)
				r = getsockopt(fd, SOL_SOCKET, SO_ERROR, &r, &n) < 0 ? -errno : -r;
		}
	}
	if (r == 0)
		return fd;
	skv_close_fd(fd);
	return r;
}

/* Connects without waiting: if the server's backlog is full, connect(2) fails with EAGAIN, and poll(2) cannot wait. */
static int connect_unix(const char *path, char *why)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd;

	memcpy(a.sun_path, path, strnlen(path, sizeof(a.sun_path) - 1));
	fd = connect_to((struct sockaddr *)&a, sizeof(a), 0);
	return fd < 0 ? skv_store_refuse(why, fd, "cannot connect: %s", strerror(-fd)) : fd;
}

static int connect_tcp(const struct skv_store_address *a, struct skv_store_resolver *resolver, uint64_t deadline_ns,
                       char *why)
{
	struct addrinfo *found, *next;
	int fd = skv_store_resolve(resolver, a, deadline_ns, &found, why), n = 0;
	const int yes = 1;

	if (fd < 0)
		return fd;
	for (next = found; next; next = next->ai_next)
		n++;
	fd = -EADDRNOTAVAIL;
	/* each address gets an equal share of the remaining time */
	for (next = found; fd < 0 && next; next = next->ai_next, n--) {
		const uint64_t now = skv_now_ns();

		fd = connect_to(next->ai_addr, next->ai_addrlen,
		                now < deadline_ns ? now + (deadline_ns - now) / (uint64_t)n : now);
	}
	freeaddrinfo(found);
	if (fd < 0)
		return skv_store_refuse(why, fd, "cannot connect: %s", strerror(-fd));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
	return fd;
}

static int start_tls(struct skv_store_socket *t, struct skv_store_tls *tls, const char *name, uint64_t deadline_ns,
                     char *why)
{
	short events = 0;
	int r = skv_store_session_new(tls, t->fd, name, &t->session, why);

	while (r == 0) {
		r = skv_store_session_handshake(t->session, &events, why);
		if (r != -EAGAIN)
			break;
		r = wait_for(t->fd, events, deadline_ns);
		if (r < 0)
			return skv_store_refuse(why, r, "TLS: %s", strerror(-r));
	}
	return r;
}

int skv_store_socket_open(struct skv_store_socket *ret, const struct skv_store_address *a,
                             struct skv_store_resolver *resolver, struct skv_store_tls *tls, const char *tls_name,
                             uint64_t deadline_ns, char why[SKV_STORE_TEXT])
{
	struct skv_store_socket t = {.read_events = POLLIN, .write_events = POLLOUT};
	int r = 0;

	t.fd = a->port ? connect_tcp(a, resolver, deadline_ns, why) : connect_unix(a->host, why);
	if (t.fd < 0)
		return t.fd;
	if (tls)
		r = start_tls(&t, tls, tls_name[0] ? tls_name : a->host, deadline_ns, why);
	if (r < 0)
		skv_store_socket_close(&t);
	else
		*ret = t;
	return r;
}

void skv_store_socket_close(struct skv_store_socket *t)
{
	t->session = skv_store_session_free(t->session);
	skv_close_fd(t->fd);
	t->fd = -1;
}

/* ---- bytes ----------------------------------------------------------------------------------------- */

/* Returns the result of recv(2) or send(2): bytes, -EAGAIN, or another negative errno with a text. */
static ssize_t checked(ssize_t n, char *why)
{
	if (n > 0)
		return n;
	if (n == 0)
		return skv_store_refuse(why, -ECONNRESET, "the server closed the connection");
	if (errno == EAGAIN || errno == EINTR)
		return -EAGAIN;
	return skv_store_refuse(why, -errno, "%s", strerror(errno));
}

ssize_t skv_store_socket_read(struct skv_store_socket *t, void *to, size_t n, char why[SKV_STORE_TEXT])
{
	t->read_events = POLLIN;
	return t->session ? skv_store_session_read(t->session, to, n, &t->read_events, why)
	                  : checked(recv(t->fd, to, n, 0), why);
}

ssize_t skv_store_socket_write(struct skv_store_socket *t, const void *from, size_t n, char why[SKV_STORE_TEXT])
{
	t->write_events = POLLOUT;
	return t->session ? skv_store_session_write(t->session, from, n, &t->write_events, why)
	                  : checked(send(t->fd, from, n, MSG_NOSIGNAL), why);
}
