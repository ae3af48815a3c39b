/* SPDX-License-Identifier: Apache-2.0 */
/* A module of another version of the engine, with less behind it than is expected. */
#include "engine/place.h"

__attribute__((visibility("default"))) eng_ops_fn eng_cuda_ops;

const struct eng_ops *eng_cuda_ops(void)
{
	static const struct {
		uint32_t size, abi;
	} words = {sizeof(words), ENG_PLACE_ABI + 1};

	return (const struct eng_ops *)&words;
}
