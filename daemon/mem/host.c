/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory: a segment is a sealed memfd. */
#include "daemon/mem/mem.h"

#include <fcntl.h>
#include "common/fd.h"
#include "common/wire.h"

/* The largest page size of a Linux machine; a client maps a segment in one piece. */
#define GRANULARITY 65536u

static int host_create(const struct skv_mem_ops *ops, size_t bytes, int *ret_fd)
{
	int fd = skv_memfd_new("skv-segment", bytes);

	(void)ops;
	if (fd < 0)
		return fd;
	*ret_fd = fd;
	return 0;
}

/* The hole takes the memory from under every mapping: a stale one reads zeros and writes for itself alone. */
static void host_destroy(const struct skv_mem_ops *ops, int fd, size_t bytes)
{
	(void)ops;
	fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes);
	skv_close_fd(fd);
}

const struct skv_mem_ops skv_mem_host = {
	.name = "host",
	.granularity = GRANULARITY,
	.handle_kind = SKV_HANDLE_MEMFD,
	.create = host_create,
	.destroy = host_destroy,
};
