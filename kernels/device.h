/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/device.h - devices: their memory, their streams and their kernels, behind one table of functions.
 *
 * A backend for devices is a module of its own, loaded by whoever wants one. So nothing links CUDA, and a
 * machine without it runs everything else. The module needs the driver and nothing besides.
 *
 * Errors. Functions return 0 or a negative errno; error() then has the text, the calling thread's own.
 * Outputs are written on success only. A launch that fails, and work that fails later, show at the next
 * wait() or check().
 *
 * The current device. A thread works on the device that it has entered: what it allocates is there, kernels
 * (struct skv_kernels) are launched there. enter() alone changes what CUDA calls current in a thread, and
 * leave() puts back what was there, also when that was another library's context or none at all.
 *
 * Threads. Every function may be called by any number of threads at once, each with its own device entered.
 * Work on one stream is in the order in which it was queued. CUDA does not survive a fork: a process that has
 * loaded a backend has no children that use one.
 *
 * A stream is the driver's own (cudaStream_t, CUstream), so it may be one that the caller has from elsewhere;
 * NULL is the default stream of the device.
 */
#ifndef SKV_DEVICE_H
#define SKV_DEVICE_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SKV_BACKEND_ABI 1u
#define SKV_DEVICE_NAME_MAX 256
#define SKV_DEVICES_MOST 64u /* of a machine, that a backend knows */

struct skv_device_info {
	char name[SKV_DEVICE_NAME_MAX];
	uint8_t uuid[16];
	uint32_t multiprocessors;
	size_t bytes; /* of memory */
};

struct skv_backend {
	uint32_t size; /* of this struct; then the version: both first, whatever becomes of the rest */
	uint32_t abi;
	const char *name; /* "cuda" */
	const struct skv_kernels *kernels;

	const char *(*error)(void);

	/* How many devices there are. -ENODEV: none, or no driver that this module can use. */
	int (*count)(unsigned *ret_n);
	int (*info)(unsigned device, struct skv_device_info *ret);

	/* Make the device current in this thread, ready for kernels. *ret_was is for leave(). */
	int (*enter)(unsigned device, void **ret_was);
	int (*leave)(void *was);

	/* Memory of the device, 256-byte aligned; of the host, pinned: copies need not wait. NULL may be freed. */
	int (*alloc)(size_t bytes, void **ret);
	int (*free)(void *);
	int (*alloc_host)(size_t bytes, void **ret);
	int (*free_host)(void *);

	/* Queued. From or to host memory that is not pinned, the caller waits. */
	int (*copy)(void *dst, const void *src, size_t bytes, void *stream);
	int (*zero)(void *, size_t bytes, void *stream);

	int (*stream_new)(void **ret_stream);
	int (*stream_free)(void *stream);
	int (*wait)(void *stream); /* until all that was queued is done; its errors */
	int (*check)(void);        /* errors of launching, in this thread since the last check or wait */

	/*
	 * What is queued between the two is recorded and not run; a launch runs all of it. The arguments are
	 * those of the recording, what lies in the device's memory is as it is at the time.
	 */
	int (*begin_capture)(void *stream);
	int (*end_capture)(void *stream, void **ret_graph);
	int (*graph_launch)(void *graph, void *stream);
	int (*graph_free)(void *graph);

	/* For benchmarks: times, and a kernel that reads memory as fast as it can be; `bytes`: whole 16s. */
	int (*event_new)(void **ret_event);
	int (*event_free)(void *event);
	int (*event_record)(void *event, void *stream);
	int (*event_elapsed)(void *from, void *to, float *ret_ms); /* waits for both */
	int (*read)(const void *, size_t bytes, void *stream);
};

/* The one symbol of a module. */
#define SKV_CUDA_SYMBOL "skv_cuda_backend"
typedef const struct skv_backend *skv_backend_fn(void);

/*
 * The CUDA backend, where there is a module, a driver and a device; else NULL and, in err[size], what is
 * missing. The module is the installed one, or the file that $SPARSEKV_CUDA_MODULE names (not for programs
 * that run with more rights than their caller has). It is loaded once and stays; a failure is not remembered.
 */
const struct skv_backend *skv_backend_cuda(char *err, size_t size);

#ifdef __cplusplus
}
#endif
#endif
