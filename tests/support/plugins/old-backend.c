/* SPDX-License-Identifier: Apache-2.0 */
/* A device backend of another version, whose struct is shorter than expected. */
#include "kernels/device.h"

__attribute__((visibility("default"))) skv_backend_fn skv_cuda_backend;

const struct skv_backend *skv_cuda_backend(void)
{
	static const struct {
		uint32_t size, abi;
	} words = {sizeof words, SKV_BACKEND_ABI + 1};

	return (const struct skv_backend *)&words;
}
