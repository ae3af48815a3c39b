/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/mem/cuda-none.c - replaces cuda.c in a build without the CUDA headers: every call fails. */
#include "daemon/mem/cuda.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

int skv_cuda_load(char why[SKV_CUDA_TEXT_MAX])
{
	snprintf(why, SKV_CUDA_TEXT_MAX, "this sparsekvd was built without CUDA");
	return -EOPNOTSUPP;
}

int skv_cuda_info(unsigned device, struct skv_cuda_info *ret, char why[SKV_CUDA_TEXT_MAX])
{
	(void)device, (void)ret;
	return skv_cuda_load(why);
}

int skv_cuda_create(unsigned device, size_t bytes, int *ret_fd, char why[SKV_CUDA_TEXT_MAX])
{
	(void)device, (void)bytes, (void)ret_fd;
	return skv_cuda_load(why);
}

int skv_cuda_worker_main(unsigned device)
{
	(void)device;
	return EXIT_FAILURE;
}
