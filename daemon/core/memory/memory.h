/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/memory/memory.h - pools of pages, as the rest of the daemon sees them: the segments that clients are
 * told of, those that are still being created, and bytes in use.
 */
#ifndef SKV_CORE_MEMORY_H
#define SKV_CORE_MEMORY_H

#include "daemon/core/core.h"

/* ---- segments, and what clients are told of them ---- */
/*
 * Returns the next memory that this client must be told of, until it returns false: a pool of host memory, as its
 * segment 0 with all bytes; or a segment of a device. It is to be announced (with the handle, borrowed until the next
 * call into the core) or withdrawn (gone). Marks it as told.
 * Any call may withdraw segments from any client, so after each call the caller serves all waiting clients:
 * skv_core_next_waiting().
 */
struct skv_core_segment {
	uint32_t pool, segment;
	uint64_t bytes;
	bool gone;
	uint32_t kind;      /* of the handle: enum skv_handle_kind */
	int fd;             /* -1: gone, or a kind without fd */
	const uint8_t *ipc; /* SKV_HANDLE_CUDA_IPC */
};
bool skv_core_next_segment(struct skv_core *, uint32_t client, struct skv_core_segment *ret);
/* The next client for which skv_core_next_segment() has something; *cursor starts at 0. False after the last one. */
bool skv_core_next_waiting(const struct skv_core *, uint32_t *cursor, uint32_t *ret_client);
/* Does skv_core_next_segment() have anything for the client? */
bool skv_core_is_untold(const struct skv_core *, uint32_t client);
/* E_INVALID: no such pool or segment number. An unexpected acknowledgement is ignored. */
int skv_core_segment_ack(struct skv_core *, uint32_t client, uint32_t pool, uint32_t segment);
/* A range of host memory was discarded: it reads as zeros and can be used again. */
void skv_core_segment_discarded(struct skv_core *, const struct skv_mem_range *);

/* ---- pending segments: created outside the core ---- */
struct skv_core_pending {
	uid_t uid; /* of the pool's user */
	uint32_t device, pool, segment;
	uint64_t serial, bytes;
};
/* The next segment to be created, one a call, until it returns false. Marks it as being created. */
bool skv_core_next_pending(struct skv_core *, struct skv_core_pending *ret);
/*
 * The segment was created and zeroed (the handle is consumed), or it cannot be had. A segment that is no longer pending
 * is destroyed.
 */
void skv_core_segment_made(struct skv_core *, const struct skv_core_pending *, struct skv_mem_handle *);
void skv_core_segment_failed(struct skv_core *, const struct skv_core_pending *);
/* The leases that waited for the pool's segments have been served: withdraws spare segments. */
void skv_core_segments_served(struct skv_core *, uint32_t pool);

/* ---- what is held ---- */
/*
 * Measures the host memory that clients take beside their pages, and charges it: sequences from *at on (0 at first), as
 * far as `units` go. Call again and again.
 */
void skv_core_measure(struct skv_core *, uint32_t *at, uint32_t units);
/* Charges `bytes` for the client's connection, in place of the previous charge; 0: nothing. */
void skv_core_client_holds(struct skv_core *, uint32_t client, uint64_t bytes);
/* Bytes of host memory that the core's files hold now: in all, or for one user (then `state` is 0). */
struct skv_core_held {
	uint64_t pools, sequences, sessions, state;
};
void skv_core_held(const struct skv_core *, bool all, uid_t uid, struct skv_core_held *ret);

#endif
