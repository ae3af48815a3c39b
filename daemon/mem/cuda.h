/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/mem/cuda.h - memory of CUDA devices, and the worker that zeroes it.
 *
 * The daemon does not create a CUDA context. It queries devices, and creates, exports and releases VMM allocations, for
 * which no context is needed. So it uses no device memory itself, and is not affected by faults of a device. Accessing
 * the contents of an allocation needs a context and is done by a separate process.
 *
 * The driver is loaded on first use, so that one program serves machines with and without a device. If the CUDA headers
 * were missing at build time (cuda-none.c), every call fails with a text.
 *
 * Errors are negative errno with a text; -ENOMEM means device memory.
 */
#ifndef SKV_CUDA_H
#define SKV_CUDA_H

#include <stdbool.h>
#include "daemon/mem/mem.h"

#define SKV_CUDA_NAME_MAX 96u
#define SKV_CUDA_TEXT_MAX 256u /* bytes of an error text */

struct skv_cuda_info {
	char name[SKV_CUDA_NAME_MAX]; /* printable */
	uint8_t uuid[SKV_UUID_BYTES];
	uint64_t bytes;     /* of its memory */
	size_t granularity; /* of allocations */
	bool exports;       /* VMM allocations can be exported as file descriptors */
};

/* Loads the driver, unless it is loaded. */
int skv_cuda_load(char why[SKV_CUDA_TEXT_MAX]);
/* -ENODEV: the device does not exist. */
int skv_cuda_info(unsigned device, struct skv_cuda_info *ret, char why[SKV_CUDA_TEXT_MAX]);
/*
 * Creates a VMM allocation and exports it. The caller owns *ret_fd, which alone keeps the memory alive. The contents
 * are undefined.
 */
int skv_cuda_create(unsigned device, size_t bytes, int *ret_fd, char why[SKV_CUDA_TEXT_MAX]);

/* ---- the worker ---- */
/*
 * `sparsekv-worker VERSION cuda DEVICE`: keeps a context while it runs, handles one job at a time, and exits when the daemon
 * closes its end of the socket.
 */
int skv_cuda_worker_main(unsigned device);

#define SKV_CUDA_WORKER_FD 3 /* SOCK_SEQPACKET: jobs in, answers out */
enum skv_cuda_job_kind {
	SKV_CUDA_ZERO = 1, /* zero the allocation of the passed descriptor */
	SKV_CUDA_ALLOC = 2, /* allocate `bytes` of zeros, until FREE; the answer has the handle */
	SKV_CUDA_FREE = 3,  /* free the handle's allocation */
};
struct skv_cuda_job {
	uint32_t kind;
	uint32_t reserved;
	uint64_t bytes;
	uint8_t ipc[SKV_IPC_HANDLE_BYTES];
};
struct skv_cuda_answer {
	int32_t error; /* 0, or negative errno */
	uint32_t more; /* always 0 */
	uint8_t ipc[SKV_IPC_HANDLE_BYTES];
	char why[SKV_CUDA_TEXT_MAX];
};

#endif
