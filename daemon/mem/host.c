/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/mem/host.c - host memory: a pool is a sealed memfd. */
#include "daemon/mem/mem.h"

#include <errno.h>
#include <fcntl.h>
#include "common/fd.h"
#include "common/wire.h"

/* Segments are multiples of the largest page size of Linux machines, 64 KiB. */
#define GRANULARITY 65536u

static int host_pool_new(const struct skv_mem_ops *ops, uint64_t bytes)
{
	(void)ops;
	return skv_memfd_new("skv-pool", bytes);
}

static bool host_discard(const struct skv_mem_ops *ops, int fd, const struct skv_mem_range *range)
{
	(void)ops;
	while (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)range->offset, (off_t)range->bytes) < 0 &&
	       errno == EINTR)
		;
	return true;
}

static void host_close(const struct skv_mem_ops *ops, int fd)
{
	(void)ops;
	skv_close_fd(fd);
}

static uint64_t host_left(const struct skv_mem_ops *ops)
{
	(void)ops;
	return UINT64_MAX;
}

const struct skv_mem_ops skv_mem_host = {
	.granularity = GRANULARITY,
	.handle_kind = SKV_HANDLE_MEMFD,
	.pool_new = host_pool_new,
	.discard = host_discard,
	.left = host_left,
	.close = host_close,
};
