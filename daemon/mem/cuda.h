/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/mem/cuda.h - memory of CUDA devices: the daemon creates it, a worker process zeroes it.
 *
 * The daemon does not create a CUDA context. The daemon queries devices, and creates, exports and releases VMM
 * allocations, for which CUDA needs no context. So the daemon uses no device memory itself, and a fault of a device
 * does not affect it. To access the contents of an allocation needs a context, so a separate worker process does that.
 *
 * The CUDA driver is loaded when it is first used, so that the same program runs on machines with and without a device.
 * In a build without the CUDA headers (cuda-none.c), every call fails with a text.
 *
 * Functions return a negative errno with a text in `why` if they fail. -ENOMEM means that device memory is used up.
 */
#ifndef SKV_CUDA_H
#define SKV_CUDA_H

#include <stdbool.h>
#include "daemon/mem/mem.h"

#define SKV_CUDA_NAME_MAX 96u
#define SKV_CUDA_TEXT_MAX 256u /* maximum of bytes of an error text */

struct skv_cuda_info {
	char name[SKV_CUDA_NAME_MAX]; /* name of the device, printable ASCII */
	uint8_t uuid[SKV_UUID_BYTES];
	uint64_t bytes;     /* bytes of the device's memory */
	size_t granularity; /* allocations are multiples of this number of bytes */
	bool exports;       /* the device's VMM allocations can be exported as file descriptors */
};

/* Loads and initializes the CUDA driver, unless that has been done. */
int skv_cuda_load(char why[SKV_CUDA_TEXT_MAX]);
/* Gets the name, UUID, memory and capabilities of a device. Returns -ENODEV if the device does not exist. */
int skv_cuda_info(unsigned device, struct skv_cuda_info *ret, char why[SKV_CUDA_TEXT_MAX]);
/*
 * Creates a VMM allocation on a device and exports it as a file descriptor. The caller owns *ret_fd, and the memory
 * lives as long as this descriptor. The contents of the memory are undefined.
 */
int skv_cuda_create(unsigned device, size_t bytes, int *ret_fd, char why[SKV_CUDA_TEXT_MAX]);

/* ---- the worker ---- */
/*
 * `sparsekv-worker VERSION cuda DEVICE`: the worker process of a device. It keeps a CUDA context while it runs, handles
 * one job at a time, and exits when the daemon closes its end of the socket.
 */
int skv_cuda_worker_main(unsigned device);

#define SKV_CUDA_WORKER_FD 3 /* socket (SOCK_SEQPACKET) on which a worker receives jobs and sends answers */
enum skv_cuda_job_kind {
	SKV_CUDA_ZERO = 1, /* zero the VMM allocation whose descriptor is passed with the job */
	/* allocate `bytes` bytes of zeros, and keep them until FREE; the answer has the IPC handle */
	SKV_CUDA_ALLOC = 2,
	SKV_CUDA_FREE = 3,  /* free the allocation with this IPC handle */
};
struct skv_cuda_job {
	uint32_t kind;
	uint32_t reserved;
	uint64_t bytes;
	uint8_t ipc[SKV_IPC_HANDLE_BYTES];
};
struct skv_cuda_answer {
	int32_t error; /* 0, or negative errno */
	uint32_t more; /* reserved, always 0 */
	uint8_t ipc[SKV_IPC_HANDLE_BYTES];
	char why[SKV_CUDA_TEXT_MAX];
};

#endif
