/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/server/hostmem.h - host memory of the core: frees ranges in the background, and knows the limit of the memory
 * cgroup.
 */
#ifndef SKV_HOSTMEM_H
#define SKV_HOSTMEM_H

#include "daemon/loop/loop.h"
#include "daemon/mem/mem.h"
#include "daemon/sys/cgroup.h"

struct skv_hostmem {
	struct skv_mem_ops ops; /* must be first: functions by which the core uses host memory */
	struct skv_loop *loop;  /* NULL: the loop has ended, and memory is freed synchronously */
	/* the core, which is told of each range that has been freed; set after the core was created */
	struct skv_core *core;
	struct skv_cgroup cgroup;
	struct skv_hostfile *files; /* list of memfds with ranges that are being freed */
};

/*
 * Initializes host memory as skv_mem_host (mem/mem.h) has it, except that worker threads of the ring free ranges, so
 * that large ranges do not block the loop.
 */
void skv_hostmem_init(struct skv_hostmem *, struct skv_loop *);
void skv_hostmem_deinit(struct skv_hostmem *);

#endif
