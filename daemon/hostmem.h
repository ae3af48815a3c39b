/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/hostmem.h - host memory that gives back in the background, and knows the limit of the cgroup. */
#ifndef SKV_HOSTMEM_H
#define SKV_HOSTMEM_H

#include "daemon/loop/loop.h"
#include "daemon/mem/mem.h"
#include "daemon/sys/cgroup.h"

struct skv_hostmem {
	struct skv_mem_ops ops; /* first: the core's view of it */
	struct skv_loop *loop;  /* NULL: at once, as the loop has ended */
	struct skv_core *core;  /* is told of what has been given back; set once it is there */
	struct skv_cgroup cgroup;
	struct skv_hostfile *files; /* of which something is being given back */
};

/* As skv_mem_host; what is given back is freed by worker threads of the ring, however large it is. */
void skv_hostmem_init(struct skv_hostmem *, struct skv_loop *);
void skv_hostmem_deinit(struct skv_hostmem *);

#endif
