/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/mem/cuda.h - memory of CUDA devices, and the worker that zeroes it.
 *
 * The daemon makes no CUDA context: it asks what there is, and creates, exports and releases VMM
 * allocations, which need none. So it holds no memory of a device for itself, and nothing that goes wrong on
 * one reaches it. What needs a context, looking into an allocation, is done by a process of its own.
 *
 * The driver is loaded at run time, when it is first asked for something: one program serves machines
 * with and without a device. Where the headers of CUDA were missing at build time (cuda-none.c) every
 * call fails and says so.
 *
 * Errors are negative errno with a text for people; -ENOMEM is the device's memory.
 */
#ifndef SKV_CUDA_H
#define SKV_CUDA_H

#include <stdbool.h>
#include "daemon/mem/mem.h"

#define SKV_CUDA_NAME_MAX 96u
#define SKV_CUDA_TEXT_MAX 256u /* of what was wrong */

struct skv_cuda_info {
	char name[SKV_CUDA_NAME_MAX]; /* printable */
	uint8_t uuid[SKV_UUID_BYTES];
	uint64_t bytes;     /* of its memory */
	size_t granularity; /* of allocations */
	bool exports;       /* VMM allocations, as file descriptors */
};

/* Load the driver; once it is there, nothing happens. */
int skv_cuda_load(char why[SKV_CUDA_TEXT_MAX]);
/* -ENODEV: there is no such device. */
int skv_cuda_info(unsigned device, struct skv_cuda_info *ret, char why[SKV_CUDA_TEXT_MAX]);
/* A VMM allocation, exported: *ret_fd is the caller's, and all that keeps it. It holds anything. */
int skv_cuda_create(unsigned device, size_t bytes, int *ret_fd, char why[SKV_CUDA_TEXT_MAX]);

/* ---- the worker ---- */
/*
 * `sparsekvd --cuda-worker DEVICE`: holds a context while it lives, does one job at a time and ends when the
 * daemon closes its end of the socket.
 */
int skv_cuda_worker_main(unsigned device);

#define SKV_CUDA_WORKER_FD 3 /* SOCK_SEQPACKET: jobs in, answers out */
enum skv_cuda_job_kind {
	SKV_CUDA_ZERO = 1, /* with the fd of an allocation: fill it with zeros */
	SKV_CUDA_ALLOC = 2, /* `bytes` of zeros, kept until FREE; the answer has the handle */
	SKV_CUDA_FREE = 3,  /* those of the handle */
};
struct skv_cuda_job {
	uint32_t kind;
	uint32_t reserved;
	uint64_t bytes;
	uint8_t ipc[SKV_IPC_HANDLE_BYTES];
};
struct skv_cuda_answer {
	int32_t error; /* 0, or negative errno */
	uint32_t more; /* 0 */
	uint8_t ipc[SKV_IPC_HANDLE_BYTES];
	char why[SKV_CUDA_TEXT_MAX];
};

#endif
