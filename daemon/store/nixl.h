/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/nixl.h - an agent of NIXL, whose library is loaded at run time, with memory that it has registered.
 *
 * Agents read each other's memory, one-sided: over RDMA, or whatever else UCX finds. Over TCP the one that is read from has to do its part,
 * which a thread of the library does; so an agent belongs into a process that stays, and every worker process has its own. It is not made
 * in the daemon: what the library does wrong, from a crash to a wait without end, costs a worker.
 *
 * Every wait is bounded. A call that has not come back, or a read that may still write to our memory, cannot be taken back; the agent is
 * then `broken`: nothing more may be done with it, and its process has to end.
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
	/* nixl.c's own */
	struct skv_nixl_library *library;
	void *handle, *backend;
	uint32_t n_known, oldest; /* agents whose metadata is loaded */
	uint8_t known[256][SKV_STORE_AGENT];
};

/* Does the library load, with all that is called of it? That is tried in a process of its own. Negative errno, with a text. */
int skv_nixl_check(const char *file, char why[SKV_STORE_TEXT]);

/* An agent with a new number and `bytes` of memory. Negative errno, with a text. */
int skv_nixl_new(const char *file, size_t bytes, struct skv_nixl **ret, char why[SKV_STORE_TEXT]);
/* The library stays loaded. NULL is fine; returns NULL. */
struct skv_nixl *skv_nixl_free(struct skv_nixl *);

/* What others need to read from this agent, to be freed; at most SKV_STORE_MAX_METADATA bytes. -EREMOTEIO, -ENOMEM. */
int skv_nixl_metadata(struct skv_nixl *, void **ret, size_t *ret_bytes);

/* Others' agents. Of the one not used lately another may take the place. -EREMOTEIO: there is no such agent; -ETIMEDOUT: broken. */
bool skv_nixl_knows(const struct skv_nixl *, const uint8_t agent[SKV_STORE_AGENT]);
int skv_nixl_load(struct skv_nixl *, const uint8_t agent[SKV_STORE_AGENT], const void *metadata, size_t bytes, uint64_t deadline_ns);
void skv_nixl_forget(struct skv_nixl *, const uint8_t agent[SKV_STORE_AGENT]);

/* What the record says is read into our memory at `to`. -EREMOTEIO; else skv_nixl_read_end() has to follow. */
int skv_nixl_read_begin(struct skv_nixl *, const struct skv_store_record *, void *to, void **ret);
/* 0: it is there. -EREMOTEIO: it failed; -ETIMEDOUT: broken. */
int skv_nixl_read_end(struct skv_nixl *, void *read, uint64_t deadline_ns);

#endif
