/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/mem/mem.h - the interface by which the core gets and frees the memory of segments.
 *
 * Host memory is available immediately: a pool is one sparse memfd, which the kernel zeroes, and a segment is a range
 * of it. Device memory is not available immediately: a new allocation may contain data of another user, and only a
 * process with a CUDA context can zero it. So the segments of a device, whose `pool_new` is NULL, are created
 * asynchronously, each with a handle of its own, and the core waits for them (core/memory/pending.c).
 */
#ifndef SKV_MEM_H
#define SKV_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/wire.h"

/*
 * Handle by which a client maps a segment: a descriptor, or (fd -1, SKV_HANDLE_CUDA_IPC) the bytes of a CUDA IPC
 * handle.
 */
struct skv_mem_handle {
	int fd;
	uint8_t ipc[SKV_IPC_HANDLE_BYTES];
};
#define SKV_MEM_HANDLE_NULL {.fd = -1}

/* A range of a pool's memfd that is to be freed, with the numbers by which the core knows the segment. */
struct skv_mem_range {
	uint32_t pool, segment;
	uint64_t serial;
	uint64_t offset, bytes;
};

struct skv_mem_ops {
	size_t granularity;     /* segment sizes are multiples of this number of bytes */
	uint32_t handle_kind;   /* enum skv_handle_kind */
	/*
	 * Returns a sealed memfd for a pool, which the caller owns, or a negative errno such as -ENOMEM or -EMFILE.
	 * pool_new NULL: the memory is that of a device, whose segments are created by the device's worker and given to
	 * the core.
	 */
	int (*pool_new)(const struct skv_mem_ops *, uint64_t bytes);
	/*
	 * Frees the memory of a range of a pool's memfd; mappings then read zeros. Returns true if that is done.
	 * Returns false if it is in progress: skv_core_segment_discarded() is called later, and the core does not use
	 * the range before.
	 */
	bool (*discard)(const struct skv_mem_ops *, int fd, const struct skv_mem_range *);
	/* For a device: frees the memory of a segment. Consumes the handle. */
	void (*destroy)(const struct skv_mem_ops *, struct skv_mem_handle *, size_t bytes);
	/*
	 * For host memory: returns the bytes that the daemon may still take of its cgroup's memory limit, less a
	 * reserve; UINT64_MAX if no limit is known.
	 */
	uint64_t (*left)(const struct skv_mem_ops *);
	/*
	 * For host memory: closes the descriptor of a memfd of any size (consumed). If it is the last one, that frees
	 * the memory.
	 */
	void (*close)(const struct skv_mem_ops *, int fd);
};

extern const struct skv_mem_ops skv_mem_host;

#endif
