/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/hostmem.c - host memory that gives back in the background.
 *
 * The kernel frees a memfd's pages one by one: 64 MiB take some milliseconds, in which the loop would serve nobody. Until
 * it is through a stale mapping still sees what was there: its own user's, as a pool is. Who touches memory takes longer
 * than the kernel to free it, so there is never much of it on the way.
 */
#include "daemon/hostmem.h"

#include <stdlib.h>

/* Memory that is being given back. */
struct giving {
	struct skv_op op; /* first */
	struct skv_loop *loop;
};

static void punched(struct skv_op *op, int res)
{
	struct giving *g = (struct giving *)op;

	(void)res; /* a loop that is being drained punches nothing: then closing has to do */
	skv_loop_close_fd(g->loop, op->fd);
	free(g);
}

static void destroy(const struct skv_mem_ops *ops, struct skv_mem_handle *handle, size_t bytes)
{
	const struct skv_hostmem *h = (const struct skv_hostmem *)ops;
	struct giving *g = h->loop ? calloc(1, sizeof(*g)) : NULL;

	if (!g) {
		skv_mem_host.destroy(&skv_mem_host, handle, bytes);
		return;
	}
	g->loop = h->loop;
	skv_op_punch(h->loop, &g->op, handle->fd, bytes, punched);
	handle->fd = -1;
}

static void close_memfd(const struct skv_mem_ops *ops, int fd)
{
	const struct skv_hostmem *h = (const struct skv_hostmem *)ops;

	if (h->loop)
		skv_loop_close_fd(h->loop, fd);
	else
		skv_mem_host.close(&skv_mem_host, fd);
}

void skv_hostmem_init(struct skv_hostmem *h, struct skv_loop *loop)
{
	h->ops = skv_mem_host;
	h->ops.destroy = destroy;
	h->ops.close = close_memfd;
	h->loop = loop;
}
