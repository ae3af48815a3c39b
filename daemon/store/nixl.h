/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/nixl.h - a NIXL agent with registered memory; its library is loaded at run time.
 *
 * Agents read each other's memory with one-sided operations, over RDMA or another transport of UCX. Over TCP, a library
 * thread of the agent being read has to take part, so an agent belongs in a long-lived process, and every worker
 * process has its own. The daemon has none: a crash or hang of the library only costs a worker.
 *
 * Every wait is bounded. A call that has not returned, or a read that may still write to this memory, cannot be
 * canceled. The agent is then `broken`: it must not be used any more, and its process has to exit.
 */
#ifndef SKV_STORE_NIXL_H
#define SKV_STORE_NIXL_H

#include "daemon/store/record.h"
#include "daemon/store/text.h"

struct skv_nixl_library;

struct skv_nixl {
	uint8_t agent[SKV_STORE_AGENT];
	uint8_t *memory; /* page-aligned, registered */
	size_t bytes;
	bool broken;
	/* private to nixl.c */
	struct skv_nixl_library *library;
	void *handle, *backend;
	uint32_t n_known, oldest; /* agents whose metadata is loaded, next one to replace */
	uint8_t known[256][SKV_STORE_AGENT];
};

/*
 * Checks in a child process that the library loads and has all functions used. Returns 0 or a negative errno with a
 * text.
 */
int skv_nixl_check(const char *file, char why[SKV_STORE_TEXT]);

/* Creates an agent with a new random number and `bytes` of memory. Returns 0 or a negative errno with a text. */
int skv_nixl_new(const char *file, size_t bytes, struct skv_nixl **ret, char why[SKV_STORE_TEXT]);
/* The library stays loaded. NULL is allowed; returns NULL. */
struct skv_nixl *skv_nixl_free(struct skv_nixl *);

/*
 * Returns the metadata that others need to read from this agent, at most SKV_STORE_MAX_METADATA bytes. The caller frees
 * it. -EREMOTEIO, -ENOMEM.
 */
int skv_nixl_metadata(struct skv_nixl *, void **ret, size_t *ret_bytes);

/*
 * Agents of other processes. Loading one may replace another one. -EREMOTEIO: there is no such agent; -ETIMEDOUT:
 * broken.
 */
bool skv_nixl_knows(const struct skv_nixl *, const uint8_t agent[SKV_STORE_AGENT]);
int skv_nixl_load(struct skv_nixl *, const uint8_t agent[SKV_STORE_AGENT], const void *metadata, size_t bytes, uint64_t deadline_ns);
void skv_nixl_forget(struct skv_nixl *, const uint8_t agent[SKV_STORE_AGENT]);

/*
 * Starts reading a record's value to `to` in this agent's memory. -EREMOTEIO; after success skv_nixl_read_end() must
 * follow.
 */
int skv_nixl_read_begin(struct skv_nixl *, const struct skv_store_record *, void *to, void **ret);
/* Waits for a read. 0: complete; -EREMOTEIO: failed; -ETIMEDOUT: broken. */
int skv_nixl_read_end(struct skv_nixl *, void *read, uint64_t deadline_ns);

#endif
