/* SPDX-License-Identifier: Apache-2.0 */
/* A module of another version of the engine, whose struct is shorter than expected. */
#include "engine/backend.h"

__attribute__((visibility("default"))) eng_backend_ops_fn eng_cuda_ops;

const struct eng_backend_ops *eng_cuda_ops(void)
{
	static const struct {
		uint32_t size, abi;
	} words = {sizeof(words), ENG_BACKEND_ABI + 1};

	return (const struct eng_backend_ops *)&words;
}
