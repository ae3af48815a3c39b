/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/mem/mem.h - the device seam: where segments come from.
 *
 * Two implementations: host (memfd, here) and CUDA (VMM allocations). A segment's handle is a real
 * file descriptor on both, so every protocol and policy test runs without a GPU.
 */
#ifndef SKV_MEM_H
#define SKV_MEM_H

#include <stddef.h>
#include <stdint.h>

struct skv_mem_ops {
	const char *name;       /* "host" */
	size_t granularity;     /* segment sizes are multiples of it */
	uint32_t handle_kind;   /* enum skv_handle_kind */
	/* A zeroed segment; ret_fd is owned by the caller. Negative errno: -ENOMEM, -EMFILE … */
	int (*create)(const struct skv_mem_ops *, size_t bytes, int *ret_fd);
	/* Destroy: its memory goes back at once, also where a client still maps it. Consumes fd. */
	void (*destroy)(const struct skv_mem_ops *, int fd, size_t bytes);
};

extern const struct skv_mem_ops skv_mem_host;

#endif
