/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/session/client-lifecycle.c - opens and closes connections to the daemon. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "common/fd.h"
#include "kernels/threads.h"
#include "libclient/conn/conn.h"
#include "libclient/conn/connect.h"
#include "libclient/conn/fence.h"
#include "libclient/conn/reconnect.h"
#include "libclient/device/steps.h"
#include "libclient/error.h"
#include "libclient/session.h"
#include "libclient/session/lifecycle.h"
#include "libclient/session/policy-config.h"

#define DEFAULT_TIMEOUT_MS 5000
#define CONNECT_TRIES 3

/* Save the socket's path for reconnecting, as an absolute path: the working directory may change until then. */
static void set_path(struct skv_client *c, const char *path)
{
	char *whole = realpath(path, NULL);

	if (whole && strlen(whole) < sizeof(c->path))
		path = whole;
	strcpy(c->path, path); /* the path fits, because a socket address had room for it */
	free(whole);
}

/*
 * Connect. While the daemon accepts no connection, try again until the deadline: no event tells of room in its backlog.
 */
static int call(struct skv_client *c, const char *path)
{
	int64_t deadline = conn_deadline(c);
	int e;

	while ((e = dial(path, &c->fd)) == -EAGAIN) {
		if (now_ms() >= deadline)
			return error_set(-ETIMEDOUT, "cannot connect to '%s': the daemon does not accept", path);
		nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
	}
	if (e == 0)
		set_path(c, path);
	return e;
}

/* From now on the client reconnects after a loss, also if the connection was lost since the answer to HELLO. */
static void welcome(struct skv_client *c)
{
	pthread_mutex_lock(&c->lock);
	c->welcome = true;
	if (c->broken == -ECONNRESET) {
		c->broken = 0;
		reconnect_begin(c);
	}
	pthread_mutex_unlock(&c->lock);
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
			e = error_set(skv_is_shortage(e) ? e : -EPROTO, "cannot map the daemon's control page: %s", strerror(-e));
		else
			c->control = control;
		if (e == 0)
			madvise(control, c->control_bytes, MADV_DONTFORK);
		c->id = ok->client;
	}
	request_free(r);
	if (e == 0)
		welcome(c);
	return e;
}

/* Connect and say HELLO. If a daemon dies before it answers, try the next daemon, CONNECT_TRIES times in all. */
static int introduce(struct skv_client *c, const char *path)
{
	int e = 0;

	for (int tries = 0; tries < CONNECT_TRIES; tries++) {
		e = call(c, path);
		if (e == 0)
			e = hello(c);
		if (e != -ECONNRESET)
			break;
		c->fd = skv_close_fd(c->fd);
		c->broken = 0;
	}
	return e;
}

static void client_free(struct skv_client *c)
{
	plugins_free(c);
	held_free(&c->held);
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
	c->requests_end = &c->requests;
	pthread_mutex_init(&c->lock, NULL);
	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(&c->news, &a);
	pthread_condattr_destroy(&a);

	c->packet = malloc(SKV_WIRE_MAX);
	e = c->packet ? introduce(c, path) : error_set(-ENOMEM, "out of memory");
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
		/* everything else belongs to the parent, or another thread was changing it at the fork */
		c->fd = skv_close_fd(c->fd);
		return;
	}
	/*
	 * the connection ended or is lost: the daemon, or the next one, still keeps this client's pages and sequences
	 */
	broken = c->broken || c->link != LINK_UP;
	for (struct skv_session *s = c->sessions; s; s = s->next) {
		skv_step_abort(s);
		device_settle(s); /* after a failure the device runs nothing any more */
		broken |= conn_post(c, SKV_MSG_CLOSE, &(struct skv_msg_session){.session = s->id}, sizeof(struct skv_msg_session), NULL) < 0;
	}
	conn_hang_up(c);
	broken |= c->unclosed;
	while (c->sessions) {
		struct skv_session *s = c->sessions;

		c->sessions = s->next;
		session_free(s);
	}
	pools_free(&c->pools);
	c->fd = skv_close_fd(c->fd); /* before CLIENT_END says that nothing is mapped any more */
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
