/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/core/memory/memory.h - pools of pages, as the rest of the daemon sees them: the segments that clients are
 * told of, the pending segments that are still being created, and the bytes of memory in use.
 */
#ifndef SKV_CORE_MEMORY_H
#define SKV_CORE_MEMORY_H

#include "daemon/core/core.h"

/* ---- segments, and what clients are told of them ---- */
/*
 * Returns the next memory that this client must be told of, and marks it as told; false: nothing is left to tell. The
 * memory is a whole pool of host memory, as segment 0 with the bytes of all segments, or one segment of a device. The
 * caller announces it (with its handle, borrowed until the next call into the core) or, if `gone`, its end.
 * Any call into the core may withdraw segments from any client. So after each call the caller tells all clients for
 * which something is left: skv_core_next_waiting().
 */
struct skv_core_segment {
	uint32_t pool, segment;
	uint64_t bytes;
	bool gone;          /* the segment has ended */
	uint32_t kind;      /* kind of the handle: enum skv_handle_kind */
	int fd;             /* of the memory, borrowed; -1: the segment is gone, or this kind of handle has no fd */
	const uint8_t *ipc; /* bytes of the handle of kind SKV_HANDLE_CUDA_IPC, borrowed */
};
bool skv_core_next_segment(struct skv_core *, uint32_t client, struct skv_core_segment *ret);
/* The next client for which skv_core_next_segment() has something; *cursor starts at 0. False after the last one. */
bool skv_core_next_waiting(const struct skv_core *, uint32_t *cursor, uint32_t *ret_client);
/* Does skv_core_next_segment() have anything for the client? */
bool skv_core_is_untold(const struct skv_core *, uint32_t client);
/* The client acknowledges a segment's end; ignored if none is expected. E_INVALID: no such pool or segment number. */
int skv_core_segment_ack(struct skv_core *, uint32_t client, uint32_t pool, uint32_t segment);
/* The memory of this range of a pool's memfd has been freed: the range reads as zeros and can be used again. */
void skv_core_segment_discarded(struct skv_core *, const struct skv_mem_range *);

/* ---- pending segments: created outside the core ---- */
struct skv_core_pending {
	uid_t uid; /* UID of the pool's user */
	uint32_t device, pool, segment;
	uint64_t serial, bytes;
};
/* Returns the next segment to be created and marks it as being created; false: there is none. */
bool skv_core_next_pending(struct skv_core *, struct skv_core_pending *ret);
/*
 * The segment was created and zeroed. The handle is consumed: if the segment is no longer pending, its memory is
 * destroyed.
 */
void skv_core_segment_made(struct skv_core *, const struct skv_core_pending *, struct skv_mem_handle *);
/* The segment could not be created. */
void skv_core_segment_failed(struct skv_core *, const struct skv_core_pending *);
/*
 * Withdraws the segments of devices that stayed empty since the last call. Each pool keeps one of them. So a pool whose
 * use goes up and down keeps its memory. A device that was full counts as having room again, until it has no memory for
 * a new segment. The daemon calls this every SKV_TRIM_SECONDS.
 */
#define SKV_TRIM_SECONDS 5u
void skv_core_trim(struct skv_core *);
/* Withdraws the pool's spare segments; call it when all leases that waited for its segments have been answered. */
void skv_core_segments_served(struct skv_core *, uint32_t pool);

/* ---- what is held ---- */
/*
 * Measures the host memory that clients take beside their pages, and charges it. A call measures sequences from row *at
 * on (0 at first) until `units` of work are used up, and sets *at to where the next call continues. The daemon calls
 * skv_core_measure() regularly.
 */
void skv_core_measure(struct skv_core *, uint32_t *at, uint32_t units);
/* Charges `bytes` for the client's connection; replaces the previous charge. */
void skv_core_client_holds(struct skv_core *, uint32_t client, uint64_t bytes);

#endif
