/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/disk/pages-cuda-none.c - replaces pages-cuda.c in a build without CUDA headers. */
#include "daemon/disk/pages.h"

#include <errno.h>

int skv_disk_pages_cuda_open(struct skv_disk_pages *p, void *staging, size_t bytes)
{
	(void)staging, (void)bytes;
	return skv_disk_refuse(p->work, -EOPNOTSUPP, "this sparsekvd was built without CUDA");
}
