/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/restart/handover.c - an upgrade in place without a service manager: sparsekvd --handover.
 *
 * The new process asks on the operators' socket (HANDOVER) and sends a socket along. The old one stops as it does
 * under a service manager: connections end, clients do not count as gone, and the state is as of its last commit.
 * Then, on that socket:
 *
 *   old   packets of up to FDS_MOST descriptors with their names, a last one without any; each waits for an answer
 *   new   ACK of each; of the last one when the state is mapped and everything else that a daemon needs is there
 *   old   GO, and ends: from then on the new process serves
 *
 * Until GO the old process still has everything. If anything goes wrong it kills the new process, which may have the
 * state mapped, waits for its end, and starts again with what it has, as a daemon does after its predecessor was
 * killed. The handover has failed if the new process hangs up, gives another answer, or is silent for GIVE_S.
 */
#include "daemon/restart/handover.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "common/fd.h"
#include "daemon/core/restart/life.h"
#include "daemon/server/server-priv.h"
#include "daemon/sys/log.h"

#define FDS_MOST 250u /* per packet: the kernel's SCM_MAX_FD is 253 */
#define GIVE_S 30     /* seconds, for each answer of the new process */
#define END_MS 1000   /* milliseconds, for the end of the new process after it hung up */
#define GROW 1024u

enum { ACK = 'a', GO = 'g' };

struct packet {
	uint32_t n, reserved;
	char name[FDS_MOST][SKV_SD_NAME];
};
#define PACKET_BYTES(n) (offsetof(struct packet, name) + (n) * (size_t)SKV_SD_NAME)
union control {
	struct cmsghdr header;
	char space[CMSG_SPACE(FDS_MOST * sizeof(int))];
};

_Static_assert(SKV_FDSTORE_NAME <= SKV_SD_NAME, "names fit");

/* Descriptors besides the core's. */
#define N_SOCKETS 4u
static int *socket_of(struct skv_handover *h, unsigned i, const char **ret_name)
{
	static const char *const names[N_SOCKETS] = {"socket", "op-sock", "lock", "op-lock"};
	int *const fds[N_SOCKETS] = {&h->passed.clients, &h->passed.operators, &h->sockets.clients.lock_fd,
	                             &h->sockets.operators.lock_fd};

	*ret_name = names[i];
	return fds[i];
}

bool skv_handover_is_open(const struct skv_handover *h)
{
	return h && h->peer >= 0;
}

bool skv_handover_is_ready(const struct skv_handover *h)
{
	return h->peer >= 0 && h->sockets.clients.path;
}

static int send_byte(const struct skv_handover *h, char what)
{
	return TEMP_FAILURE_RETRY(send(h->peer, &what, 1, MSG_NOSIGNAL)) == 1 ? 0 : -errno;
}

/* -EPIPE: the other process has ended; -EPROTO: another byte came. */
static int expect_byte(const struct skv_handover *h, char what)
{
	char said = 0;
	ssize_t n = TEMP_FAILURE_RETRY(recv(h->peer, &said, 1, 0)); /* late completions of the ring interrupt recv() */

	if (n < 0)
		return errno == EAGAIN ? -ETIMEDOUT : -errno;
	return n == 0 ? -EPIPE : said == what ? 0 : -EPROTO;
}

static bool keep(struct skv_handover *h, const char *name, int fd)
{
	struct skv_sd_passed *p = &h->passed;

	if (p->n_kept == h->cap) {
		struct skv_sd_kept *more = realloc(p->kept, (h->cap + GROW) * sizeof(*more));

		if (!more)
			return false;
		p->kept = more;
		h->cap += GROW;
	}
	p->kept[p->n_kept].fd = fd;
	snprintf(p->kept[p->n_kept++].name, SKV_SD_NAME, "%s", name);
	return true;
}

/* ---- the old daemon: the request ---------------------------------------------------------------- */

static bool is_stream_of_packets(int fd)
{
	int domain = 0, type = 0;
	socklen_t len = sizeof(int);

	return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 && domain == AF_UNIX &&
	       getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0 && type == SOCK_SEQPACKET;
}

/* 0, or the errno for the new process, with a text. */
static int refuse(const struct skv_server *s, const struct skv_conn *conn, const struct skv_msg_handover *m, int fd,
                  const char **ret_why)
{
	const struct skv_peer *peer = skv_conn_peer(conn);

	*ret_why = "a daemon is handed over on the operators' socket";
	if (!skv_conn_is_operator(conn))
		return EPERM;
	*ret_why = "only the user that the daemon runs as can take it over";
	if (peer->uid != geteuid())
		return EPERM;
	*ret_why = "this daemon has a service manager, which passes everything to the next one: restart it (systemctl "
	           "restart, or SIGUSR2 to the keeper)";
	if (skv_sd_is_there())
		return EOPNOTSUPP;
	*ret_why = "this daemon has not made its sockets itself, or is a part of another program: it cannot be handed "
	           "over";
	if (!s->options.handover || !s->life.sockets.clients.path)
		return EOPNOTSUPP;
	*ret_why = "this daemon has another version of the handover: expected version 1";
	if (m->version != SKV_HANDOVER_VERSION)
		return EPROTO;
	*ret_why = "expected a socket of type SOCK_SEQPACKET to hand over on";
	if (!is_stream_of_packets(fd))
		return EINVAL;
	*ret_why = "the process that asks is in another PID namespace: it could not be ended if it fails";
	if (peer->pidfd < 0 || peer->pid <= 0)
		return EOPNOTSUPP;
	*ret_why = "the daemon is stopping already";
	return s->life.stopping ? EBUSY : 0;
}

/* Takes the memory and descriptors that the handover needs, while it can still be refused. */
static int prepare(struct skv_server *s, const struct skv_peer *peer)
{
	struct skv_handover *h = s->options.handover;
	const size_t cap = skv_core_descriptors(s->core) + GROW;
	struct skv_sd_kept *kept = realloc(h->passed.kept, cap * sizeof(*kept));

	if (!kept)
		return -ENOMEM;
	h->passed.kept = kept;
	h->passed.n_kept = 0;
	h->cap = cap;
	h->pid = peer->pid;
	h->pidfd = fcntl(peer->pidfd, F_DUPFD_CLOEXEC, 3);
	return h->pidfd < 0 ? -errno : 0;
}

void skv_handover_request(struct skv_server *s, struct skv_conn *conn, const struct skv_msg_header *header,
                          const void *body, int *fds)
{
	const struct timeval limit = {.tv_sec = GIVE_S};
	const char *why;
	int r = refuse(s, conn, body, fds[0], &why);

	if (r == 0) {
		r = -prepare(s, skv_conn_peer(conn));
		why = strerror(r);
	}
	if (r) {
		skv_conn_error(conn, header->serial, r, "%s", why);
		return;
	}
	skv_log(LOG_NOTICE, "stopping: process %d takes over", (int)s->options.handover->pid);
	(void)setsockopt(fds[0], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	(void)setsockopt(fds[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	s->options.handover->peer = fds[0];
	fds[0] = -1;
	s->restart.handing = s->life.stopping = true;
	skv_loop_quit(s->loop);
}

/* ---- the old daemon: at the end -------------------------------------------------------------- */

static void give(void *handover, const char *name, int fd)
{
	if (keep(handover, name, fd))
		return;
	skv_log(LOG_CRIT, "%s: out of memory, so it is not handed over, and what is in it is lost", name);
	skv_close_fd(fd);
}

void skv_handover_client(struct skv_server *s, uint32_t client, int pidfd)
{
	char name[SKV_FDSTORE_NAME];

	if (pidfd < 0)
		return;
	skv_core_client_name(client, name);
	give(s->options.handover, name, pidfd);
}

void skv_handover_leave(struct skv_server *s)
{
	struct skv_handover *h = s->options.handover;

	skv_core_leave(s->core, give, h);
	s->core = NULL;
	skv_ipc_take_sockets(s->ipc, &h->passed.clients, &h->passed.operators);
	h->sockets = s->life.sockets;
	s->life.sockets = (struct skv_sockets)SKV_SOCKETS_NULL;
}

static int send_packet(const struct skv_handover *h, struct packet *p, const int *fds)
{
	union control control = {0};
	struct iovec iov = {.iov_base = p, .iov_len = PACKET_BYTES(p->n)};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};

	if (p->n) {
		control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(p->n * sizeof(int)),
		                                  .cmsg_level = SOL_SOCKET,
		                                  .cmsg_type = SCM_RIGHTS};
		memcpy(CMSG_DATA(&control.header), fds, p->n * sizeof(int));
		m.msg_control = &control;
		m.msg_controllen = CMSG_SPACE(p->n * sizeof(int));
	}
	if (TEMP_FAILURE_RETRY(sendmsg(h->peer, &m, MSG_NOSIGNAL)) < 0)
		return errno == EAGAIN ? -ETIMEDOUT : -errno;
	p->n = 0;
	return expect_byte(h, ACK);
}

static int send_all(struct skv_handover *h)
{
	struct packet p = {0};
	int fds[FDS_MOST], r = 0;

	for (size_t i = 0; i < N_SOCKETS + h->passed.n_kept && r == 0; i++) {
		const char *name;

		if (i < N_SOCKETS) {
			fds[p.n] = *socket_of(h, (unsigned)i, &name);
		} else {
			name = h->passed.kept[i - N_SOCKETS].name;
			fds[p.n] = h->passed.kept[i - N_SOCKETS].fd;
		}
		memset(p.name[p.n], 0, SKV_SD_NAME);
		memcpy(p.name[p.n++], name, strlen(name));
		if (p.n == FDS_MOST)
			r = send_packet(h, &p, fds);
	}
	if (r == 0 && p.n)
		r = send_packet(h, &p, fds);
	if (r == 0)
		r = send_packet(h, &p, fds); /* end of the packets */
	return r ? r : send_byte(h, GO);
}

/*
 * Kills the new process, which may be about to write to the state. With by_itself it first gets END_MS to log its
 * error and exit.
 */
static void end_process(struct skv_handover *h, bool by_itself)
{
	struct pollfd p = {.fd = h->pidfd, .events = POLLIN};

	if (by_itself && TEMP_FAILURE_RETRY(poll(&p, 1, END_MS)) > 0)
		return;
	if (pidfd_send_signal(h->pidfd, SIGKILL, NULL, 0) < 0 && errno != ESRCH)
		skv_log(LOG_ERR, "process %d, which was to take over, cannot be ended: kill it: %s", (int)h->pid,
		        strerror(errno));
	(void)TEMP_FAILURE_RETRY(poll(&p, 1, -1));
}

int skv_handover_give(struct skv_handover *h)
{
	const int r = send_all(h);
	const bool hung_up = r == -EPIPE || r == -ECONNRESET;

	if (r == 0) {
		skv_log(LOG_NOTICE, "process %d has taken over, with %zu descriptors; bye", (int)h->pid,
		        h->passed.n_kept);
		return 0;
	}
	skv_log(LOG_ERR, "process %d has not taken over, this daemon goes on: %s", (int)h->pid,
	        hung_up ? "it has ended" : strerror(-r));
	end_process(h, hung_up);
	h->pidfd = skv_close_fd(h->pidfd);
	h->peer = skv_close_fd(h->peer);
	return r;
}

/* ---- the new daemon -------------------------------------------------------------------------- */

static int say_failed(const char *socket, int r, const char *why)
{
	skv_log(LOG_ERR, "%s: cannot be taken over: %s", socket, why ? why : strerror(-r));
	return r;
}

/* Explains an error of the request or of the transfer. */
static const char *why_of(int r)
{
	if (r == -EPIPE)
		return "the daemon has ended, or another process takes it over; its log says so";
	return r == -EMFILE ? "there are more descriptors than this process may open: raise RLIMIT_NOFILE" : NULL;
}

static int dial(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd, r;

	if (strlen(path) >= sizeof(addr.sun_path))
		return -ENAMETOOLONG;
	strcpy(addr.sun_path, path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	r = fd < 0 || connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ? -errno : fd;
	if (r < 0)
		skv_close_fd(fd);
	return r;
}

/* Sends HANDOVER with one end of a socket pair; h->peer is the other end. */
static int ask(int conn, struct skv_handover *h)
{
	struct {
		struct skv_msg_header header;
		struct skv_msg_handover body;
	} message = {{.length = sizeof(message), .type = SKV_MSG_HANDOVER, .n_fds = 1, .serial = 1},
	             {.version = SKV_HANDOVER_VERSION}};
	union control control = {
		.header = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
	struct iovec iov = {.iov_base = &message, .iov_len = sizeof(message)};
	struct msghdr m = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE(sizeof(int))};
	int pair[2], r;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	memcpy(CMSG_DATA(&control.header), &pair[1], sizeof(int));
	r = sendmsg(conn, &m, MSG_NOSIGNAL) < 0 ? -errno : 0;
	close(pair[1]);
	h->peer = pair[0];
	return r;
}

/* Waits until the daemon begins to hand over. If it refuses: its errno, with its text. */
static int await_first(int conn, const struct skv_handover *h, char why[SKV_TEXT_MAX])
{
	struct pollfd p[2] = {{.fd = h->peer, .events = POLLIN}, {.fd = conn, .events = POLLIN}};
	struct {
		struct skv_msg_header header;
		struct skv_msg_error body;
	} said;

	while (p[0].fd >= 0 || p[1].fd >= 0) {
		if (TEMP_FAILURE_RETRY(poll(p, 2, -1)) < 0)
			return -errno;
		if (p[1].revents && recv(conn, &said, sizeof(said), 0) == sizeof(said) &&
		    said.header.type == SKV_MSG_ERROR) {
			skv_wire_string(why, SKV_TEXT_MAX, said.body.text);
			return -said.body.error;
		}
		if (p[1].revents)
			p[1].fd = -1; /* the old daemon closes its connections */
		if (p[0].revents && recv(h->peer, &said, 1, MSG_PEEK) > 0)
			return 0;
		if (p[0].revents)
			p[0].fd = -1; /* refused; the text is still to come */
	}
	return -EPIPE;
}

static bool put(struct skv_handover *h, const char *name, int fd)
{
	for (unsigned i = 0; i < N_SOCKETS; i++) {
		const char *of;
		int *to = socket_of(h, i, &of);

		if (strcmp(of, name) == 0) {
			*to = fd;
			return true;
		}
	}
	return keep(h, name, fd);
}

/* Receives one packet. Returns the number of its descriptors; 0: the end. */
static int receive(struct skv_handover *h)
{
	struct packet p = {0};
	union control control;
	struct iovec iov = {.iov_base = &p, .iov_len = sizeof(p)};
	struct msghdr m = {.msg_iov = &iov,
	                   .msg_iovlen = 1,
	                   .msg_control = &control,
	                   .msg_controllen = sizeof(control)};
	ssize_t bytes = TEMP_FAILURE_RETRY(recvmsg(h->peer, &m, MSG_CMSG_CLOEXEC));
	struct cmsghdr *c = bytes > 0 ? CMSG_FIRSTHDR(&m) : NULL;
	const size_t n = c ? (c->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;

	if (bytes < 0)
		return -errno;
	if (bytes == 0)
		return -EPIPE;
	if (m.msg_flags & MSG_CTRUNC)
		return -EMFILE;
	if (bytes < (ssize_t)PACKET_BYTES(0) || p.n != n || bytes != (ssize_t)PACKET_BYTES(n))
		return -EPROTO;
	for (size_t i = 0; i < n; i++) {
		int fd;

		memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
		p.name[i][SKV_SD_NAME - 1] = 0;
		if (!put(h, p.name[i], fd))
			return -ENOMEM;
	}
	return (int)n;
}

static int receive_all(struct skv_handover *h)
{
	int r;

	while ((r = receive(h)) > 0) {
		r = send_byte(h, ACK);
		if (r < 0)
			return r;
	}
	return r;
}

int skv_handover_take(const char *socket, struct skv_handover *h)
{
	char path[sizeof(((struct sockaddr_un *)NULL)->sun_path)], why[SKV_TEXT_MAX] = "";
	SKV_FD_CLEANUP int conn = -1;
	int r = 0;

	if (skv_sd_is_there())
		return say_failed(socket, -EINVAL,
		                  "$NOTIFY_SOCKET says that there is a service manager: have it start the next daemon");
	if (!skv_operators_socket(socket, path, sizeof(path)))
		return say_failed(socket, -ENAMETOOLONG, NULL);
	(void)skv_fd_raise_limit();
	conn = dial(path);
	r = conn < 0 ? conn : ask(conn, h);
	if (r == 0)
		r = await_first(conn, h, why);
	if (r == 0)
		r = receive_all(h);
	if (r < 0)
		return say_failed(socket, r, *why ? why : why_of(r));
	h->sockets.clients.path = strdup(socket);
	h->sockets.operators.path = strdup(path);
	if (!h->sockets.clients.path || !h->sockets.operators.path)
		return say_failed(socket, -ENOMEM, NULL);
	if (!h->passed.n_kept || h->passed.clients < 0 || h->passed.operators < 0)
		return say_failed(socket, -EPROTO, "it has not handed over its sockets and its state");
	return 0;
}

bool skv_handover_get(struct skv_handover *h, struct skv_sd_passed *ret)
{
	if (!h || !h->passed.n_kept)
		return false;
	*ret = h->passed;
	h->passed = (struct skv_sd_passed)SKV_SD_PASSED_NULL;
	h->cap = 0;
	return true;
}

int skv_handover_confirm(struct skv_handover *h, struct skv_sockets *ret)
{
	int r = 0;

	if (!h || !h->sockets.clients.path)
		return 0;
	if (h->peer >= 0) {
		r = send_byte(h, ACK);
		if (r == 0)
			r = expect_byte(h, GO);
		if (r < 0)
			return say_failed(h->sockets.clients.path, r,
			                  r == -EPIPE ? "the daemon has ended, or goes on by itself; its log says why"
			                              : NULL);
		h->peer = skv_close_fd(h->peer);
	}
	*ret = h->sockets;
	h->sockets = (struct skv_sockets)SKV_SOCKETS_NULL;
	return 0;
}

void skv_handover_free(struct skv_handover *h)
{
	if (h->peer < 0) /* else the paths belong to the other daemon */
		skv_sockets_remove(&h->sockets);
	free(h->sockets.clients.path);
	free(h->sockets.operators.path);
	for (size_t i = 0; i < h->passed.n_kept; i++)
		skv_close_fd(h->passed.kept[i].fd);
	skv_sd_passed_free(&h->passed);
	skv_close_fd(h->pidfd);
	skv_close_fd(h->peer);
}
