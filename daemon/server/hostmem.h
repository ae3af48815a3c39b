/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/server/hostmem.h - host memory that is freed in the background, and the limit of the memory cgroup. */
#ifndef SKV_HOSTMEM_H
#define SKV_HOSTMEM_H

#include "daemon/loop/loop.h"
#include "daemon/mem/mem.h"
#include "daemon/sys/cgroup.h"

struct skv_hostmem {
	struct skv_mem_ops ops; /* first: the core's interface to it */
	struct skv_loop *loop;  /* NULL: the loop has ended, so memory is freed synchronously */
	struct skv_core *core;  /* told of each range that has been freed; set when it exists */
	struct skv_cgroup cgroup;
	struct skv_hostfile *files; /* memfds of which ranges are being freed */
};

/* As skv_mem_host, but worker threads of the ring free the memory, so that large ranges do not block the loop. */
void skv_hostmem_init(struct skv_hostmem *, struct skv_loop *);
void skv_hostmem_deinit(struct skv_hostmem *);

#endif
