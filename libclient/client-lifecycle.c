/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/client-lifecycle.c - a connection's beginning and end. */
#include <errno.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include "common/fd.h"
#include "kernels/threads.h"
#include "libclient/conn.h"
#include "libclient/device-step.h"
#include "libclient/error.h"
#include "libclient/fence.h"
#include "libclient/plugin.h"
#include "libclient/session.h"
#include "libclient/session-lifecycle.h"

#define DEFAULT_TIMEOUT_MS 5000
#define SERVICE_USER "sparsekv" /* the daemon's, in its unit */

static int dial(struct skv_client *c, const char *path)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int64_t deadline = conn_deadline(c);

	if (strlen(path) >= sizeof(a.sun_path))
		return error_set(-ENAMETOOLONG, "socket path '%s' is longer than %zu bytes", path,
		            sizeof(a.sun_path) - 1);
	strcpy(a.sun_path, path);
	strcpy(c->path, path);
	c->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (c->fd < 0)
		return error_set(-errno, "cannot make a socket: %s", strerror(errno));
	while (connect(c->fd, (struct sockaddr *)&a, sizeof(a)) < 0) {
		if (errno != EAGAIN && errno != EINTR)
			return error_set(-errno, "cannot connect to '%s': %s", path, strerror(errno));
		/* the daemon's backlog is full; there is no event for room in it */
		if (now_ms() >= deadline)
			return error_set(-ETIMEDOUT, "cannot connect to '%s': the daemon does not accept", path);
		nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
	}
	return 0;
}

/*
 * Who listens there sends code that this process runs: policies. Not anybody may. The credentials are those of who
 * began to listen, the service manager's under socket activation.
 */
static int check_server(struct skv_client *c, const char *path)
{
	const char *named = getenv("SPARSEKV_DAEMON_UID");
	struct passwd *service = getpwnam(SERVICE_USER);
	struct ucred peer;
	socklen_t len = sizeof(peer);

	if (getsockopt(c->fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
		return error_set(-errno, "cannot tell who listens on '%s': %s", path, strerror(errno));
	if (peer.uid == 0 || peer.uid == geteuid() || (service && peer.uid == service->pw_uid) ||
	    (named && *named && strtoul(named, NULL, 10) == peer.uid))
		return 0;
	return error_set(-EPERM,
	                 "'%s' is served by user %u, expected root, user " SERVICE_USER
	                 ", this process's own, or $SPARSEKV_DAEMON_UID",
	                 path, (unsigned)peer.uid);
}

static int hello(struct skv_client *c)
{
	struct skv_msg_hello m = {.version_min = SKV_PROTO_VERSION, .version_max = SKV_PROTO_VERSION};
	const struct skv_msg_hello_ok *ok;
	struct request *r;
	void *control;
	int e;

	skv_wire_string(m.program, sizeof(m.program), program_invocation_short_name);
	e = conn_call(c, SKV_MSG_HELLO, &m, sizeof(m), &r);
	if (e < 0)
		return e;
	ok = r->body;
	if (ok->version != SKV_PROTO_VERSION || ok->control_bytes < sizeof(struct skv_control_page) ||
	    (ok->control_bytes - sizeof(struct skv_control_page)) / sizeof(c->control->fence[0]) <=
	            skv_client_row_of(ok->client)) {
		e = error_set(
			-EPROTO,
			"the daemon speaks protocol version %u, control page of %llu bytes; expected %u, %zu",
			ok->version, (unsigned long long)ok->control_bytes, SKV_PROTO_VERSION,
			sizeof(struct skv_control_page));
	} else {
		c->control_bytes = ok->control_bytes;
		e = skv_map_fd(r->fds[0], c->control_bytes, PROT_READ, true, &control);
		if (e < 0)
			e = error_set(-EPROTO, "cannot map the daemon's control page: %s", strerror(-e));
		else
			c->control = control;
		if (e == 0)
			madvise(control, c->control_bytes, MADV_DONTFORK);
		c->id = ok->client;
	}
	c->welcome = e == 0;
	request_free(r);
	return e;
}

static void client_free(struct skv_client *c)
{
	plugins_free(c);
	pools_free(&c->pools);
	if (c->control)
		munmap((void *)c->control, c->control_bytes);
	skv_close_fd(c->fd);
	pthread_cond_destroy(&c->news);
	pthread_mutex_destroy(&c->lock);
	free(c->packet);
	free(c);
}

int skv_connect(struct skv_client **ret_client, const char *path)
{
	const char *debug = getenv("SPARSEKV_DEBUG");
	struct skv_client *c;
	pthread_condattr_t a;
	int e;

	if (!ret_client)
		return error_set(-EINVAL, "skv_connect: ret_client is NULL");
	if (!path)
		path = getenv("SPARSEKV_SOCKET");
	if (!path || !*path)
		path = SKV_DEFAULT_SOCKET;
	c = calloc(1, sizeof(*c));
	if (!c)
		return error_set(-ENOMEM, "out of memory");
	c->fd = -1;
	fence_watch_forks();
	c->forks = fence_forks();
	c->timeout_ms = DEFAULT_TIMEOUT_MS;
	c->threads = skv_threads_default();
	c->debug = debug && strstr(debug, "wire");
	c->out_end = &c->out;
	pthread_mutex_init(&c->lock, NULL);
	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(&c->news, &a);
	pthread_condattr_destroy(&a);

	c->packet = malloc(SKV_WIRE_MAX);
	e = c->packet ? dial(c, path) : error_set(-ENOMEM, "out of memory");
	if (e == 0)
		e = check_server(c, path);
	if (e == 0)
		e = hello(c);
	if (e < 0) {
		conn_hang_up(c);
		client_free(c);
		return e;
	}
	*ret_client = c;
	return 0;
}

void skv_disconnect(struct skv_client *c)
{
	bool broken;

	if (!c)
		return;
	if (fence_forked(c)) {
		c->fd = skv_close_fd(c->fd); /* the rest is the parent's, or as it was in the middle of another thread's call */
		return;
	}
	broken = c->broken; /* by itself; the daemon, or the one after it, keeps what this client had */
	for (struct skv_session *s = c->sessions; s; s = s->next) {
		skv_step_abort(s);
		device_settle(s); /* should it fail, nothing runs any more either */
		conn_post(c, SKV_MSG_CLOSE, &(struct skv_msg_session){.session = s->id}, sizeof(struct skv_msg_session), NULL);
	}
	conn_hang_up(c);
	broken |= c->unclosed;
	while (c->sessions) {
		struct skv_session *s = c->sessions;

		c->sessions = s->next;
		session_free(s);
	}
	pools_free(&c->pools);
	if (broken)
		fence_tell_end(c);
	client_free(c);
}

void skv_set_timeout(struct skv_client *c, uint32_t ms)
{
	atomic_store_explicit(&c->timeout_ms, ms, memory_order_relaxed);
}

int skv_set_threads(struct skv_client *c, uint32_t n)
{
	if (fence_forked(c))
		return fence_check(c);
	if (n > SKV_MAX_THREADS)
		return error_set(-EINVAL, "skv_set_threads: n is %u, expected 1 to %u, or 0 for the default", n, SKV_MAX_THREADS);
	atomic_store_explicit(&c->threads, n ? (int)n : skv_threads_default(), memory_order_relaxed);
	return 0;
}
