/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/nixl-library.h - function pointers to NIXL's C API (libnixl_capi.so of NIXL's Python wheel, 1.x), so
 * that the daemon can be built without NIXL's headers.
 */
#ifndef SKV_STORE_NIXL_LIBRARY_H
#define SKV_STORE_NIXL_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "daemon/store/error-text.h"

enum { SKV_NIXL_DONE = 0, SKV_NIXL_RUNNING = 1 }; /* results of NIXL's functions; errors are negative */
enum { SKV_NIXL_DRAM = 0 };                       /* NIXL's number for host memory */
enum { SKV_NIXL_READ = 0 };                       /* NIXL's number for a read transfer */

struct skv_nixl_agent_config {
	bool progress_thread, listen_thread;
	uint16_t listen_port;
	int thread_sync; /* 0: calls come from one thread at a time */
	unsigned n_workers;
	uint64_t progress_delay_us, listen_delay_us;
	bool telemetry;
};

/* Names and parameters of the functions used; NIXL's handles are opaque pointers here. */
#define SKV_NIXL_CALLS(X) \
	X(create_configured_agent, const char *name, const struct skv_nixl_agent_config *, void **agent) \
	X(destroy_agent, void *agent) \
	X(get_plugin_params, void *agent, const char *plugin, void **mems, void **params) \
	X(destroy_mem_list, void *mems) \
	X(destroy_params, void *params) \
	X(create_backend, void *agent, const char *plugin, void *params, void **backend) \
	X(destroy_backend, void *backend) \
	X(create_reg_dlist, int mem, void **list) \
	X(reg_dlist_add_desc, void *list, uintptr_t at, size_t bytes, uint64_t device, const void *data, size_t n_data) \
	X(destroy_reg_dlist, void *list) \
	X(register_mem, void *agent, void *list, void *args) \
	X(get_local_md, void *agent, void **ret, size_t *bytes) \
	X(load_remote_md, void *agent, const void *data, size_t bytes, char **name) \
	X(invalidate_remote_md, void *agent, const char *name) \
	X(create_xfer_dlist, int mem, void **list) \
	X(xfer_dlist_add_desc, void *list, uintptr_t at, size_t bytes, uint64_t device) \
	X(destroy_xfer_dlist, void *list) \
	X(create_xfer_req, void *agent, int operation, void *local, void *remote, const char *name, void **request, void *args) \
	X(post_xfer_req, void *agent, void *request, void *args) \
	X(get_xfer_status, void *agent, void *request) \
	X(release_xfer_req, void *agent, void *request) \
	X(destroy_xfer_req, void *request)

struct skv_nixl_library {
	void *dl;
#define X(name, ...) int (*name)(__VA_ARGS__);
	SKV_NIXL_CALLS(X)
#undef X
	void (*mem_free)(void *); /* frees memory that the library returns; free() if it has no function for that */
};

/*
 * Loads the library. A library that was loaded is never unloaded, because its threads and hooks outlive every agent.
 * Returns 0 or -EINVAL with a text.
 */
int skv_nixl_library_load(const char *file, struct skv_nixl_library *ret, char why[SKV_STORE_TEXT]);

#endif
