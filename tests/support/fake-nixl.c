/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libnixl_capi.so without UCX, with only the calls that daemon/store/nixl-library.h makes. Each agent has a thread
 * that serves its memory on a socket with an abstract name, which is part of its metadata. A reader connects, sends
 * address and length, and gets the bytes if they are registered. As with the real library, memory is gone when its
 * process ends, and a stopped process does not answer.
 *
 * FAKE_NIXL_HANG in the environment: loading metadata never returns. The real library takes nearly forever to connect
 * to a host that is down.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define NAME 64
#define ERROR (-2)
#define RUNNING 1

struct area {
	uintptr_t at;
	size_t bytes;
};
struct agent {
	char name[NAME];
	struct area memory;
	int listener;
};
/* Metadata names memory that may be read at any time. */
struct metadata {
	char name[NAME];
	struct area memory;
};
struct request {
	struct area from, to;
	char name[NAME];
	pthread_t thread;
	int status; /* atomic */
};

static struct metadata known[64];
static unsigned n_known;

/* The functions of this third-party API have no header here. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

static socklen_t address_of(const char *name, struct sockaddr_un *a)
{
	*a = (struct sockaddr_un){.sun_family = AF_UNIX};
	snprintf(a->sun_path + 1, sizeof(a->sun_path) - 1, "fake-nixl-%s", name);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(a->sun_path + 1));
}

static bool all(int fd, void *at, size_t n, bool out)
{
	for (size_t done = 0; done < n;) {
		const ssize_t r = out ? send(fd, (char *)at + done, n - done, MSG_NOSIGNAL) : recv(fd, (char *)at + done, n - done, 0);

		if (r <= 0)
			return false;
		done += (size_t)r;
	}
	return true;
}

struct served {
	struct agent *agent;
	int fd;
};

static void *serve_one(void *arg)
{
	struct served *x = arg;
	const struct area *m = &x->agent->memory;
	struct area want;

	while (all(x->fd, &want, sizeof(want), false) && want.at >= m->at && want.bytes <= m->bytes && want.at - m->at <= m->bytes - want.bytes &&
	       all(x->fd, (void *)want.at, want.bytes, true))
		;
	close(x->fd);
	free(x);
	return NULL;
}

static void *serve(void *arg)
{
	struct agent *a = arg;
	int fd;

	while ((fd = accept4(a->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
		struct served *x = malloc(sizeof(*x));
		pthread_t thread;

		x->agent = a;
		x->fd = fd;
		if (pthread_create(&thread, NULL, serve_one, x) == 0)
			pthread_detach(thread);
	}
	return NULL;
}

int nixl_capi_create_configured_agent(const char *name, const void *config, void **ret)
{
	struct agent *a = calloc(1, sizeof(*a));
	struct sockaddr_un address;
	socklen_t n = address_of(name, &address);
	pthread_t thread;

	(void)config;
	snprintf(a->name, sizeof(a->name), "%s", name);
	a->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(a->listener, (struct sockaddr *)&address, n) < 0 || listen(a->listener, 64) < 0 || pthread_create(&thread, NULL, serve, a) != 0)
		return ERROR;
	*ret = a;
	return 0;
}

int nixl_capi_destroy_agent(void *agent)
{
	struct agent *a = agent;

	shutdown(a->listener, SHUT_RDWR); /* makes its thread end some time later */
	return 0;
}

int nixl_capi_get_plugin_params(void *agent, const char *plugin, void **mems, void **params)
{
	(void)agent;
	*mems = *params = NULL;
	return strcmp(plugin, "UCX") == 0 ? 0 : ERROR;
}

int nixl_capi_destroy_mem_list(void *mems)
{
	(void)mems;
	return 0;
}

int nixl_capi_destroy_params(void *params)
{
	(void)params;
	return 0;
}

int nixl_capi_create_backend(void *agent, const char *plugin, void *params, void **ret)
{
	(void)plugin;
	(void)params;
	*ret = agent;
	return 0;
}

int nixl_capi_destroy_backend(void *backend)
{
	(void)backend;
	return 0;
}

/* ---- lists: of one area each ---- */

int nixl_capi_create_xfer_dlist(int mem, void **ret)
{
	*ret = mem == 0 ? calloc(1, sizeof(struct area)) : NULL;
	return *ret ? 0 : ERROR;
}

int nixl_capi_create_reg_dlist(int mem, void **ret)
{
	return nixl_capi_create_xfer_dlist(mem, ret);
}

int nixl_capi_xfer_dlist_add_desc(void *list, uintptr_t at, size_t bytes, uint64_t device)
{
	*(struct area *)list = (struct area){at, bytes};
	return device == 0 ? 0 : ERROR;
}

int nixl_capi_reg_dlist_add_desc(void *list, uintptr_t at, size_t bytes, uint64_t device, const void *data, size_t n_data)
{
	return data || n_data ? ERROR : nixl_capi_xfer_dlist_add_desc(list, at, bytes, device);
}

int nixl_capi_destroy_xfer_dlist(void *list)
{
	free(list);
	return 0;
}

int nixl_capi_destroy_reg_dlist(void *list)
{
	free(list);
	return 0;
}

int nixl_capi_register_mem(void *agent, void *list, void *args)
{
	struct agent *a = agent;

	if (args || a->memory.bytes)
		return ERROR;
	a->memory = *(struct area *)list;
	return 0;
}

/* ---- remote agents ---- */

int nixl_capi_get_local_md(void *agent, void **ret, size_t *ret_bytes)
{
	const struct agent *a = agent;
	struct metadata *m = calloc(1, sizeof(*m));

	memcpy(m->name, a->name, sizeof(m->name));
	m->memory = a->memory;
	*ret = m;
	*ret_bytes = sizeof(*m);
	return 0;
}

static int connect_to(const char *name)
{
	struct sockaddr_un address;
	const socklen_t n = address_of(name, &address);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd >= 0 && connect(fd, (struct sockaddr *)&address, n) < 0) {
		close(fd);
		fd = -1;
	}
	return fd;
}

static struct metadata *find(const char *name)
{
	for (unsigned i = 0; i < n_known; i++)
		if (!strcmp(known[i].name, name))
			return &known[i];
	return NULL;
}

int nixl_capi_load_remote_md(void *agent, const void *data, size_t bytes, char **ret)
{
	const struct metadata *m = data;
	int fd;

	(void)agent;
	while (getenv("FAKE_NIXL_HANG"))
		pause();
	if (bytes != sizeof(*m) || find(m->name) || n_known == sizeof(known) / sizeof(*known))
		return ERROR;
	fd = connect_to(m->name);
	if (fd < 0)
		return ERROR;
	close(fd);
	known[n_known++] = *m;
	*ret = strdup(m->name);
	return 0;
}

int nixl_capi_invalidate_remote_md(void *agent, const char *name)
{
	struct metadata *m = find(name);

	(void)agent;
	if (!m)
		return ERROR;
	*m = known[--n_known];
	return 0;
}

/* ---- reading ---- */

static void *transfer(void *arg)
{
	struct request *r = arg;
	int fd = connect_to(r->name);
	const bool done = fd >= 0 && all(fd, &r->from, sizeof(r->from), true) && all(fd, (void *)r->to.at, r->to.bytes, false);

	if (fd >= 0)
		close(fd);
	__atomic_store_n(&r->status, done ? 0 : ERROR, __ATOMIC_RELEASE);
	return NULL;
}

int nixl_capi_create_xfer_req(void *agent, int operation, void *local, void *remote, const char *name, void **ret, void *args)
{
	const struct area *to = local, *from = remote, *own = &((struct agent *)agent)->memory;
	const struct metadata *m = find(name);
	struct request *r;

	if (operation != 0 || args || !m || to->bytes != from->bytes || to->at < own->at || to->at + to->bytes > own->at + own->bytes ||
	    from->at < m->memory.at || from->at + from->bytes > m->memory.at + m->memory.bytes)
		return ERROR;
	r = calloc(1, sizeof(*r));
	*r = (struct request){.from = *from, .to = *to, .status = RUNNING};
	snprintf(r->name, sizeof(r->name), "%s", name);
	*ret = r;
	return 0;
}

int nixl_capi_post_xfer_req(void *agent, void *request, void *args)
{
	struct request *r = request;

	(void)agent;
	(void)args;
	return pthread_create(&r->thread, NULL, transfer, r) == 0 ? RUNNING : ERROR;
}

int nixl_capi_get_xfer_status(void *agent, void *request)
{
	struct request *r = request;

	(void)agent;
	return __atomic_load_n(&r->status, __ATOMIC_ACQUIRE);
}

int nixl_capi_release_xfer_req(void *agent, void *request)
{
	struct request *r = request;

	(void)agent;
	pthread_join(r->thread, NULL);
	return 0;
}

int nixl_capi_destroy_xfer_req(void *request)
{
	free(request);
	return 0;
}
