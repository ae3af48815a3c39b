/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/mem/mem.h - interface to the memory that segments consist of.
 *
 * Host memory is available immediately: a pool is one sparse memfd, which the kernel zeroes, and a segment is a range
 * of it. Device memory is not: a new allocation may contain data of another user, and only a process with a CUDA
 * context can zero it. So a memory without `pool_new` creates its segments asynchronously, each with a handle of its
 * own, and the core waits for them (core/memory/pending.c).
 */
#ifndef SKV_MEM_H
#define SKV_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/wire.h"

/* Handle by which a client maps a segment: a descriptor, or for SKV_HANDLE_CUDA_IPC (fd -1) the bytes of the handle. */
struct skv_mem_handle {
	int fd;
	uint8_t ipc[SKV_IPC_HANDLE_BYTES];
};
#define SKV_MEM_HANDLE_NULL {.fd = -1}

/* A range of host memory, with the core's identification of its segment. */
struct skv_mem_range {
	uint32_t pool, segment;
	uint64_t serial;
	uint64_t offset, bytes;
};

struct skv_mem_ops {
	size_t granularity;     /* segment sizes are multiples of this */
	uint32_t handle_kind;   /* enum skv_handle_kind */
	/*
	 * Returns a sealed memfd that the caller owns, or a negative errno: -ENOMEM, -EMFILE … NULL: segments are
	 * created elsewhere.
	 */
	int (*pool_new)(const struct skv_mem_ops *, uint64_t bytes);
	/*
	 * Frees the memory of a range of such a memfd; mappings then read zeros. True: done. False: in progress;
	 * skv_core_segment_discarded() will be called, and the core does not use the range before.
	 */
	bool (*discard)(const struct skv_mem_ops *, int fd, const struct skv_mem_range *);
	/* Segments created elsewhere: frees the memory of one. Consumes the handle. */
	void (*destroy)(const struct skv_mem_ops *, struct skv_mem_handle *, size_t bytes);
	/*
	 * Host memory: bytes that the process may still allocate before its cgroup kills it, less a reserve;
	 * UINT64_MAX: no limit is known.
	 */
	uint64_t (*left)(const struct skv_mem_ops *);
	/* Host memory: closes a memfd of any size (consumed), possibly its last descriptor. */
	void (*close)(const struct skv_mem_ops *, int fd);
};

extern const struct skv_mem_ops skv_mem_host;

#endif
