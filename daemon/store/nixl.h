/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/nixl.h - a NIXL agent with registered memory. NIXL's library is loaded at run time.
 *
 * Agents read each other's memory with one-sided operations, over RDMA or another transport of UCX. Over TCP, a thread
 * of the library takes part in the process whose memory is read, so that process must be long-lived. Each worker
 * process that uses NIXL has its own agent. The daemon itself has none: a crash or hang of the library only costs a
 * worker.
 *
 * Every wait is bounded. But a call to the library that does not return, or a read that may still write to this
 * process's memory, cannot be canceled. The agent is then `broken`: it must not be used any more, and its process has
 * to exit.
 */
#ifndef SKV_STORE_NIXL_H
#define SKV_STORE_NIXL_H

#include "daemon/store/error-text.h"
#include "daemon/store/record.h"

struct skv_nixl_library;

struct skv_nixl {
	uint8_t agent[SKV_STORE_AGENT];
	uint8_t *memory; /* page-aligned, registered */
	size_t bytes;
	bool broken;
	/* private to nixl.c */
	struct skv_nixl_library *library;
	void *handle, *backend;
	uint32_t n_known, oldest; /* number of `known` agents; index of the one to be replaced when the array is full */
	uint8_t known[256][SKV_STORE_AGENT]; /* agents of other processes whose metadata is loaded */
};

/*
 * Checks in a child process that the library can be loaded and has all functions that are used. Returns 0 or a negative
 * errno with a text.
 */
int skv_nixl_check(const char *file, char why[SKV_STORE_TEXT]);

/* Creates an agent with a random number and `bytes` of registered memory. Returns 0 or a negative errno with a text. */
int skv_nixl_new(const char *file, size_t bytes, struct skv_nixl **ret, char why[SKV_STORE_TEXT]);
/* Frees the agent and its memory; the library stays loaded. NULL is allowed; returns NULL. */
struct skv_nixl *skv_nixl_free(struct skv_nixl *);

/*
 * Returns the metadata that other agents need to read from this one, at most SKV_STORE_MAX_METADATA bytes. The caller
 * frees it. -EREMOTEIO, -ENOMEM.
 */
int skv_nixl_metadata(struct skv_nixl *, void **ret, size_t *ret_bytes);

/*
 * Metadata of other processes' agents: skv_nixl_load() loads it, skv_nixl_knows() says whether it is loaded, and
 * skv_nixl_forget() unloads it. If 256 are loaded, the next one replaces an older one. -EREMOTEIO: the metadata is not
 * of this agent, or the agent cannot be reached; -ETIMEDOUT: loading did not end, and this process's agent is now
 * `broken`.
 */
bool skv_nixl_knows(const struct skv_nixl *, const uint8_t agent[SKV_STORE_AGENT]);
int skv_nixl_load(struct skv_nixl *, const uint8_t agent[SKV_STORE_AGENT], const void *metadata, size_t bytes, uint64_t deadline_ns);
void skv_nixl_forget(struct skv_nixl *, const uint8_t agent[SKV_STORE_AGENT]);

/*
 * Starts reading the value that a record names into `to`, which is in this agent's memory. Returns 0 or -EREMOTEIO;
 * after success skv_nixl_read_end() must be called.
 */
int skv_nixl_read_begin(struct skv_nixl *, const struct skv_store_record *, void *to, void **ret);
/* Waits for a read. 0: it is complete; -EREMOTEIO: it failed; -ETIMEDOUT: it did not end, the agent is now `broken`. */
int skv_nixl_read_end(struct skv_nixl *, void *read, uint64_t deadline_ns);

#endif
