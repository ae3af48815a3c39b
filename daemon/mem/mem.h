/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/mem/mem.h - the device seam: where segments come from.
 *
 * Host memory is made at once: a pool is one sparse memfd, which the kernel zeroes, and a segment a range of it. Device
 * memory is not: what the driver gives may hold what another user left, and only a process with a CUDA context can zero
 * it. So a memory without `pool_new` makes its segments elsewhere, each with a handle of its own, and the core waits for
 * them (core/pending.c).
 */
#ifndef SKV_MEM_H
#define SKV_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/wire.h"

/* What a client maps a segment by: an fd, or for SKV_HANDLE_CUDA_IPC (fd -1) the bytes of the handle. */
struct skv_mem_handle {
	int fd;
	uint8_t ipc[SKV_IPC_HANDLE_BYTES];
};
#define SKV_MEM_HANDLE_NULL {.fd = -1}

/* A segment of host memory, as the core knows it again. */
struct skv_mem_range {
	uint32_t pool, segment;
	uint64_t serial;
	uint64_t offset, bytes;
};

struct skv_mem_ops {
	size_t granularity;     /* segment sizes are multiples of it */
	uint32_t handle_kind;   /* enum skv_handle_kind */
	/* A sealed memfd, the caller's. Negative errno: -ENOMEM, -EMFILE … NULL: segments are made elsewhere. */
	int (*pool_new)(const struct skv_mem_ops *, uint64_t bytes);
	/*
	 * The memory of a range of such a memfd goes: who has it mapped reads zeros. True: it is gone; false: the core will
	 * be told by skv_core_segment_discarded(), and does not use the range before.
	 */
	bool (*discard)(const struct skv_mem_ops *, int fd, const struct skv_mem_range *);
	/* Where segments are made elsewhere: the memory of one goes back. Consumes the handle. */
	void (*destroy)(const struct skv_mem_ops *, struct skv_mem_handle *, size_t bytes);
	/*
	 * Host memory: bytes that the process may take for itself before its cgroup ends it, less a part that is never given
	 * away; UINT64_MAX: no limit is known.
	 */
	uint64_t (*left)(const struct skv_mem_ops *);
	/* Host memory: close a memfd of any size (consumed), of which this may be the last descriptor. */
	void (*close)(const struct skv_mem_ops *, int fd);
};

extern const struct skv_mem_ops skv_mem_host;

#endif
