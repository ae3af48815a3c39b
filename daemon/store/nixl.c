/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/nixl.h"

#include <errno.h>
#include <openssl/rand.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "common/clock.h"
#include "daemon/store/nixl-library.h"

#define PLUGIN "UCX"
#define POLL_NS 50000
#define PROGRESS_US 10000 /* interval at which the library's thread wakes up, also without input; 0: it would spin */
#define N_KNOWN (sizeof(((struct skv_nixl *)0)->known) / SKV_STORE_AGENT)

/* ---- creation and removal -------------------------------------------------------------------- */

/* Ends the process without running destructors of the library and its plugins, whose threads are still running. */
static void leave(int status, void *none)
{
	(void)none;
	_exit(status);
}

static int get_library(const char *file, struct skv_nixl_library **ret, char why[SKV_STORE_TEXT])
{
	static struct skv_nixl_library library;
	int r = library.dl ? 0 : skv_nixl_library_load(file, &library, why);

	*ret = &library;
	return r;
}

static int make_backend(struct skv_nixl *n, char why[SKV_STORE_TEXT])
{
	const struct skv_nixl_library *l = n->library;
	const struct skv_nixl_agent_config config = {.progress_thread = true,
	                                             .n_workers = 1,
	                                             .progress_delay_us = PROGRESS_US};
	char name[SKV_STORE_AGENT_NAME];
	void *mems = NULL, *params = NULL;
	int r;

	skv_store_agent_name(n->agent, name);
	if (l->create_configured_agent(name, &config, &n->handle) < 0)
		return skv_store_refuse(why, -ENOTRECOVERABLE, "NIXL cannot create an agent");
	if (l->get_plugin_params(n->handle, PLUGIN, &mems, &params) < 0)
		return skv_store_refuse(why, -ENOTRECOVERABLE,
		                        "NIXL does not find its plugin " PLUGIN " (NIXL_PLUGIN_DIR)");
	r = l->create_backend(n->handle, PLUGIN, params, &n->backend);
	l->destroy_mem_list(mems);
	l->destroy_params(params);
	return r < 0 ? skv_store_refuse(why, -ENOTRECOVERABLE,
	                                "NIXL's plugin " PLUGIN " finds no network that it can use (%d)", r)
	             : 0;
}

static bool register_memory(struct skv_nixl *n)
{
	const struct skv_nixl_library *l = n->library;
	void *list;
	bool done;

	if (l->create_reg_dlist(SKV_NIXL_DRAM, &list) < 0)
		return false;
	done = l->reg_dlist_add_desc(list, (uintptr_t)n->memory, n->bytes, 0, NULL, 0) >= 0 &&
	       l->register_mem(n->handle, list, NULL) >= 0;
	l->destroy_reg_dlist(list);
	return done;
}

int skv_nixl_new(const char *file, size_t bytes, struct skv_nixl **ret, char why[SKV_STORE_TEXT])
{
	static bool leaves;
	struct skv_nixl *n = calloc(1, sizeof(*n));
	int r = n ? get_library(file, &n->library, why)
	          : skv_store_refuse(why, -ENOMEM, "no memory for an agent of NIXL");

	if (r == 0) {
		n->bytes = bytes;
		n->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
		                 0);
		if (n->memory == MAP_FAILED)
			n->memory = NULL;
		if (!n->memory || RAND_bytes(n->agent, sizeof(n->agent)) != 1)
			r = skv_store_refuse(why, -ENOMEM, "no memory for %zu bytes that NIXL is to read", bytes);
	}
	if (r == 0)
		r = make_backend(n, why);
	if (r == 0 && !register_memory(n))
		r = skv_store_refuse(why, -ENOTRECOVERABLE, "NIXL cannot register %zu bytes of memory (LimitMEMLOCK= "
		                                            "may be too low)", bytes);
	if (r == 0 && !leaves)
		leaves = on_exit(leave, NULL) == 0;
	if (r < 0)
		skv_nixl_free(n);
	else
		*ret = n;
	return r;
}

struct skv_nixl *skv_nixl_free(struct skv_nixl *n)
{
	if (!n)
		return NULL;
	if (n->backend)
		n->library->destroy_backend(n->backend);
	if (n->handle)
		n->library->destroy_agent(n->handle);
	if (n->memory)
		munmap(n->memory, n->bytes);
	free(n);
	return NULL;
}

int skv_nixl_metadata(struct skv_nixl *n, void **ret, size_t *ret_bytes)
{
	void *data = NULL, *copy;
	size_t bytes = 0;
	int r = n->library->get_local_md(n->handle, &data, &bytes) < 0 || !data || bytes > SKV_STORE_MAX_METADATA
	                ? -EREMOTEIO
	                : 0;

	copy = r == 0 ? malloc(bytes + 1) : NULL;
	if (copy) {
		*ret = memcpy(copy, data, bytes);
		*ret_bytes = bytes;
	}
	if (data)
		n->library->mem_free(data);
	return r < 0 ? r : copy ? 0 : -ENOMEM;
}

/* ---- agents of other processes --------------------------------------------------------------- */

bool skv_nixl_knows(const struct skv_nixl *n, const uint8_t agent[SKV_STORE_AGENT])
{
	for (uint32_t i = 0; i < n->n_known; i++)
		if (!memcmp(n->known[i], agent, SKV_STORE_AGENT))
			return true;
	return false;
}

void skv_nixl_forget(struct skv_nixl *n, const uint8_t agent[SKV_STORE_AGENT])
{
	char name[SKV_STORE_AGENT_NAME];

	for (uint32_t i = 0; i < n->n_known && !n->broken; i++)
		if (!memcmp(n->known[i], agent, SKV_STORE_AGENT)) {
			skv_store_agent_name(agent, name);
			(void)n->library->invalidate_remote_md(n->handle, name);
			memcpy(n->known[i], n->known[--n->n_known], SKV_STORE_AGENT);
			return;
		}
}

static void know(struct skv_nixl *n, const uint8_t agent[SKV_STORE_AGENT])
{
	uint8_t old[SKV_STORE_AGENT];

	if (n->n_known == N_KNOWN) {
		memcpy(old, n->known[n->oldest++ % N_KNOWN], sizeof(old));
		skv_nixl_forget(n, old);
	}
	memcpy(n->known[n->n_known++], agent, SKV_STORE_AGENT);
}

/*
 * Arguments of the thread that loads an agent's metadata. Loading connects to the agent's host, and blocks until TCP's
 * timeout if that host is gone; so it runs in a thread of its own, which is only waited for until the deadline.
 */
struct load {
	struct skv_nixl_library *library;
	void *handle, *metadata;
	size_t bytes;
	char expected[SKV_STORE_AGENT_NAME];
	int r;
};

static void *load(void *arg)
{
	struct load *x = arg;
	char *name = NULL;

	x->r = x->library->load_remote_md(x->handle, x->metadata, x->bytes, &name) < 0 || !name ||
	                       strcmp(name, x->expected)
	               ? -EREMOTEIO
	               : 0;
	if (name)
		x->library->mem_free(name);
	return NULL;
}

static struct timespec clock_of(uint64_t ns)
{
	return (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
}

int skv_nixl_load(struct skv_nixl *n, const uint8_t agent[SKV_STORE_AGENT], const void *metadata, size_t bytes,
                  uint64_t deadline_ns)
{
	const struct timespec deadline = clock_of(deadline_ns);
	struct load *x = calloc(1, sizeof(*x) + bytes);
	pthread_t thread;
	int r = x ? 0 : -ENOMEM;

	if (r == 0) {
		*x = (struct load){.library = n->library, .handle = n->handle, .metadata = x + 1, .bytes = bytes};
		memcpy(x->metadata, metadata, bytes);
		skv_store_agent_name(agent, x->expected);
		r = -pthread_create(&thread, NULL, load, x);
	}
	if (r == 0 && pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &deadline) != 0) {
		n->broken = true;
		return -ETIMEDOUT; /* x is not freed, since the thread still uses it */
	}
	if (r == 0)
		r = x->r;
	free(x);
	if (r == 0)
		know(n, agent);
	return r;
}

/* ---- reading --------------------------------------------------------------------------------- */

static void *list_of(const struct skv_nixl_library *l, uint64_t at, uint64_t bytes, uint64_t device)
{
	void *list;

	if (l->create_xfer_dlist(SKV_NIXL_DRAM, &list) < 0)
		return NULL;
	if (l->xfer_dlist_add_desc(list, (uintptr_t)at, bytes, device) >= 0)
		return list;
	l->destroy_xfer_dlist(list);
	return NULL;
}

static void end_request(struct skv_nixl *n, void *request)
{
	(void)n->library->release_xfer_req(n->handle, request);
	(void)n->library->destroy_xfer_req(request);
}

int skv_nixl_read_begin(struct skv_nixl *n, const struct skv_store_record *r, void *to, void **ret)
{
	const struct skv_nixl_library *l = n->library;
	void *local = list_of(l, (uintptr_t)to, r->bytes, 0), *remote = list_of(l, r->at, r->bytes, r->device),
	     *request = NULL;
	char name[SKV_STORE_AGENT_NAME];
	bool begun = false;

	skv_store_agent_name(r->agent, name);
	if (local && remote && l->create_xfer_req(n->handle, SKV_NIXL_READ, local, remote, name, &request, NULL) >= 0) {
		begun = l->post_xfer_req(n->handle, request, NULL) >= 0;
		if (!begun)
			end_request(n, request);
	}
	if (local)
		l->destroy_xfer_dlist(local);
	if (remote)
		l->destroy_xfer_dlist(remote);
	if (begun)
		*ret = request;
	return begun ? 0 : -EREMOTEIO;
}

int skv_nixl_read_end(struct skv_nixl *n, void *request, uint64_t deadline_ns)
{
	const struct timespec while_ns = clock_of(POLL_NS);
	int r;

	while ((r = n->library->get_xfer_status(n->handle, request)) == SKV_NIXL_RUNNING) {
		if (skv_now_ns() >= deadline_ns) {
			n->broken = true;
			return -ETIMEDOUT;
		}
		nanosleep(&while_ns, NULL);
	}
	end_request(n, request);
	return r == SKV_NIXL_DONE ? 0 : -EREMOTEIO;
}
