/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/fake-ipc.h - the fake driver's CUDA IPC handle: where to find the memory. */
#ifndef SKV_FAKE_IPC_H
#define SKV_FAKE_IPC_H

#include <stdint.h>

struct fake_ipc {
	char path[48];
	uint64_t at, bytes;
};

#endif
