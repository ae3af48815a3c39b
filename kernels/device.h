/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/device.h - devices: their memory, streams and kernels, behind one table of functions.
 *
 * A device backend is a separate module, loaded on demand. So nothing links against CUDA, and a machine without CUDA
 * runs everything else. The module needs only the driver.
 *
 * Errors. Functions return 0 or a negative errno; error() then returns the text, which is per thread. Outputs are
 * written only on success. Errors of a launch, and of work that fails later, are reported by the next wait() or
 * check().
 *
 * The current device. A thread works on the device that it has entered: it allocates memory and launches kernels
 * (struct skv_kernels) there. Only enter() changes CUDA's current context of a thread, and leave() restores the
 * previous one, even if that was another library's context or none.
 *
 * Threads. Every function may be called by any number of threads at once, each with its own current device. Work on one
 * stream runs in the order in which it was queued. CUDA does not survive fork(2): a process that has loaded a backend
 * must not have children that use one.
 *
 * A stream is the driver's own (cudaStream_t, CUstream), so callers may pass their own streams. NULL is the default
 * stream of the device.
 */
#ifndef SKV_DEVICE_H
#define SKV_DEVICE_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SKV_BACKEND_ABI 19u
#define SKV_DEVICE_NAME_MAX 256
#define SKV_BACKEND_MAX_DEVICES 64u /* devices of a machine that a backend supports */

struct skv_device_info {
	char name[SKV_DEVICE_NAME_MAX];
	uint8_t uuid[16];
	uint32_t multiprocessors;
	size_t bytes; /* of memory */
};

/* A page table entry to write into the device's memory. */
struct skv_pte_update {
	skv_pte *at;
	skv_pte entry;
};

/* What a step copies to the device before its first layer. `from` and `entry` are in pinned memory. */
struct skv_stage {
	const struct skv_kseq *from; /* [n] */
	struct skv_kseq *to;         /* [n], on the device; `attended` counters are reset to 0 */
	uint32_t n, n_entries;
	const struct skv_pte_update *entry; /* [n_entries] */
};

/*
 * What the step's last kernel publishes for one sequence. Pointers are device addresses of registered host memory.
 * `word` is stored to `commit` last, after all other stores are visible. If `commit` is NULL, nothing is published: the
 * sequence was cancelled.
 */
struct skv_publish {
	uint64_t *commit, word;
	uint32_t *len; /* gets the lower half of `word` */
	int32_t *next[2];   /* both get the item's `next` */
	int32_t *token, id; /* where to store `id` in the table of token ids; NULL: it is already stored */
	uint32_t *journal_n, n_evict; /* written when n_evict > 0 */
	uint32_t *about, about_is;
	uint32_t *words; /* [n_words]: copied from words_are, which is in pinned memory */
	const uint32_t *words_are;
	uint32_t n_words;
	const uint64_t *attended;     /* the sequence's counter, or NULL */
	uint64_t *sum;                /* where the counter's value is stored */
	uint32_t item;
};

struct skv_backend {
	uint32_t size; /* of this struct; it and `abi` stay first in all versions */
	uint32_t abi;
	const char *name; /* "cuda" */
	const struct skv_kernels *kernels;

	const char *(*error)(void);

	/* Returns the number of devices. -ENODEV: there is none, or no driver that this module can use. */
	int (*count)(unsigned *ret_n);
	int (*info)(unsigned device, struct skv_device_info *ret);

	/* Makes the device current in this thread, ready for kernels. *ret_was is the argument for leave(). */
	int (*enter)(unsigned device, void **ret_was);
	int (*leave)(void *was);

	/*
	 * Memory of the device, aligned to 256 bytes, and pinned host memory, whose copies are asynchronous. NULL may
	 * be freed.
	 */
	int (*alloc)(size_t bytes, void **ret);
	int (*free)(void *);
	int (*alloc_host)(size_t bytes, void **ret);
	int (*free_host)(void *);

	/* Registers whole pages of host memory; the device writes to them at address *ret. */
	int (*register_host)(void *, size_t bytes, void **ret);
	int (*unregister_host)(void *);

	/*
	 * Memory that another process allocated, in an address range of this process. reserve() reserves addresses
	 * without memory. map() maps the allocation behind a POSIX file descriptor (borrowed) there, and unmap() unmaps
	 * it. `at` and `bytes` are multiples of 2 MiB. A write to a read-only mapping faults.
	 */
	int (*reserve)(size_t bytes, void **ret);
	int (*release)(void *, size_t bytes);
	int (*map)(void *at, size_t bytes, int fd, bool writable);
	int (*unmap)(void *at, size_t bytes);
	/* The other kind of handle: the 64 bytes of a CUipcMemHandle. The driver chooses the address. */
	int (*open_ipc)(const void *handle, void **ret);
	int (*close_ipc)(void *);

	/* Queued. If the host memory is not pinned, the call blocks until the copy is done. */
	int (*copy)(void *dst, const void *src, size_t bytes, void *stream);
	int (*zero)(void *, size_t bytes, void *stream);

	int (*stream_new)(void **ret_stream);
	int (*stream_free)(void *stream);
	int (*wait)(void *stream); /* waits until all queued work is done; returns its errors */
	int (*check)(void);        /* returns launch errors of this thread since the last check or wait */

	/* Begin and end of a step: see skv_stage, skv_publish. `next` is memory that the device can read, or NULL. */
	int (*stage)(const struct skv_stage *, void *stream);
	int (*publish)(const struct skv_publish *, uint32_t n, const int32_t *next, void *stream);

	/*
	 * Work queued between begin_capture and end_capture is recorded and does not run; launching the graph runs all
	 * of it. A launch uses the arguments of the capture and the current contents of the device's memory.
	 */
	int (*recording)(void *stream, bool *ret); /* is a capture in progress? */
	int (*begin_capture)(void *stream);
	int (*end_capture)(void *stream, void **ret_graph);
	int (*graph_launch)(void *graph, void *stream);
	int (*graph_free)(void *graph);

	int (*event_new)(void **ret_event);
	int (*event_free)(void *event);
	int (*event_record)(void *event, void *stream);
	int (*event_done)(void *event, bool *ret_done); /* true also if never recorded */
	int (*event_wait)(void *event);
	/*
	 * Work queued on the stream from now on waits for the event. If the event is part of a capture, the stream is
	 * captured, too, until its end is joined.
	 */
	int (*stream_wait)(void *stream, void *event);

	/*
	 * For benchmarks: elapsed times, and a kernel that reads memory as fast as possible; `bytes` is a multiple of
	 * 16.
	 */
	int (*event_elapsed)(void *from, void *to, float *ret_ms); /* waits for both */
	int (*read)(const void *, size_t bytes, void *stream);
};

/* The only symbol that a module exports. */
#define SKV_CUDA_SYMBOL "skv_cuda_backend"
typedef const struct skv_backend *skv_backend_fn(void);

/*
 * Returns the CUDA backend if a module, a driver and a device exist; else NULL, and err[size] says what is missing. The
 * module is the installed one, or the file that $SPARSEKV_CUDA_MODULE names (ignored in setuid programs). It is loaded
 * once and stays loaded; a failure is not cached.
 */
const struct skv_backend *skv_backend_cuda(char *err, size_t size);

#ifdef __cplusplus
}
#endif
#endif
