/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/mem/mem.h - the device seam: where segments come from.
 *
 * Host memory is made at once: a memfd of the kernel is zeroed. Device memory is not: what the driver
 * gives may hold what another user left, and only a process with a CUDA context can zero it. So a
 * memory without `create` makes its segments elsewhere, and the core waits for them (core/pending.c).
 */
#ifndef SKV_MEM_H
#define SKV_MEM_H

#include <stddef.h>
#include <stdint.h>
#include "common/wire.h"

/* What a client maps a segment by: an fd, or for SKV_HANDLE_CUDA_IPC (fd -1) the bytes of the handle. */
struct skv_mem_handle {
	int fd;
	uint8_t ipc[SKV_IPC_HANDLE_BYTES];
};
#define SKV_MEM_HANDLE_NULL {.fd = -1}

struct skv_mem_ops {
	size_t granularity;     /* segment sizes are multiples of it */
	uint32_t handle_kind;   /* enum skv_handle_kind */
	/*
	 * A zeroed segment; the handle is owned by the caller. Negative errno: -ENOMEM, -EMFILE … NULL:
	 * segments of this memory are made elsewhere.
	 */
	int (*create)(const struct skv_mem_ops *, size_t bytes, struct skv_mem_handle *ret);
	/* Its memory goes back; host memory at once, also where a client still maps it. Consumes the handle. */
	void (*destroy)(const struct skv_mem_ops *, struct skv_mem_handle *, size_t bytes);
	/* Host memory: close a memfd of any size (consumed), of which this may be the last descriptor. */
	void (*close)(const struct skv_mem_ops *, int fd);
};

extern const struct skv_mem_ops skv_mem_host;

#endif
