/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory: a segment is a sealed memfd. */
#include "daemon/mem/mem.h"

#include <fcntl.h>
#include "common/fd.h"
#include "common/wire.h"

/* The largest page size of a Linux machine; a client maps a segment in one piece. */
#define GRANULARITY 65536u

static int host_create(const struct skv_mem_ops *ops, size_t bytes, struct skv_mem_handle *ret)
{
	int fd = skv_memfd_new("skv-segment", bytes);

	(void)ops;
	if (fd < 0)
		return fd;
	*ret = (struct skv_mem_handle){.fd = fd};
	return 0;
}

/* The hole takes the memory from under every mapping: a stale one reads zeros and writes for itself alone. */
static void host_destroy(const struct skv_mem_ops *ops, struct skv_mem_handle *handle, size_t bytes)
{
	(void)ops;
	fallocate(handle->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes);
	handle->fd = skv_close_fd(handle->fd);
}

static void host_close(const struct skv_mem_ops *ops, int fd)
{
	(void)ops;
	skv_close_fd(fd);
}

const struct skv_mem_ops skv_mem_host = {
	.granularity = GRANULARITY,
	.handle_kind = SKV_HANDLE_MEMFD,
	.create = host_create,
	.destroy = host_destroy,
	.close = host_close,
};
