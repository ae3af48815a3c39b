/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for pages-cuda.c when the CUDA headers are missing at build time. */
#include "daemon/disk/pages.h"

#include <errno.h>

int skv_disk_pages_cuda_open(struct skv_disk_pages *p, void *staging, size_t bytes)
{
	(void)staging, (void)bytes;
	return skv_disk_refuse(p->work, -EOPNOTSUPP, "this sparsekvd was built without CUDA");
}
