/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/device.h - devices (GPUs): their memory, streams and kernels, behind one table of functions.
 *
 * A device backend is a separate module (shared object), loaded on demand. So nothing links against CUDA, and a machine
 * without CUDA runs everything else. The module needs only the NVIDIA driver, not the CUDA toolkit.
 *
 * Errors. Functions return 0 or a negative errno; error() then returns the text, which is per thread. Outputs are
 * written only on success. Errors of a launch, and errors of queued work that fails later, are reported by the next
 * wait() or check().
 *
 * The current device. A thread works on the device that it has entered with enter(): the thread allocates memory and
 * launches kernels (struct skv_kernels) there. Only enter() changes the thread's current CUDA context, and leave()
 * restores the previous context, even if that was another library's context or none.
 *
 * Threads. Every function may be called by any number of threads at once, each with its own current device. Work on one
 * stream runs in the order in which the work was queued. CUDA does not survive fork(2): a process that has loaded a
 * backend must not have children that use a backend.
 *
 * A stream is the driver's own handle (cudaStream_t, CUstream), so callers may pass their own streams. NULL is the
 * default stream of the device.
 */
#ifndef SKV_DEVICE_H
#define SKV_DEVICE_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SKV_BACKEND_ABI 20u
#define SKV_DEVICE_NAME_MAX 256
#define SKV_BACKEND_MAX_DEVICES 64u /* number of devices of a machine that a backend supports */

struct skv_device_info {
	char name[SKV_DEVICE_NAME_MAX];
	uint8_t uuid[16];
	uint32_t multiprocessors;
	size_t bytes; /* size of the device's memory */
};

/* A page table entry to write into the device's copy of a page table. */
struct skv_pte_update {
	skv_pte *at;
	skv_pte entry;
};

/* The data that a step copies to the device before its first layer. `from` and `entry` are in pinned host memory. */
struct skv_stage {
	const struct skv_kseq *from; /* [n]: sequences of the step */
	/* [n], in the device's memory; the counters that `attended` points to are reset to 0 */
	struct skv_kseq *to;
	uint32_t n, n_entries;
	const struct skv_pte_update *entry; /* [n_entries]: page table entries to write */
};

/*
 * The words that a step's last kernel writes into host memory for one sequence. Pointers are device addresses of
 * registered host memory. `word` is stored to `commit` last, after all other stores are visible. If `commit` is NULL,
 * nothing is written: the step does not commit this sequence.
 */
struct skv_publish {
	uint64_t *commit, word;
	uint32_t *len; /* where the lower half of `word`, the sequence's length, is stored */
	int32_t *next[2];   /* two places where the item's element of publish()'s argument `next` is stored */
	int32_t *token, id; /* where to store `id` in the sequence's token ids; NULL: the id is already stored */
	/* n_evict, the number of pages in the journal of evicted pages, is stored to journal_n if above 0 */
	uint32_t *journal_n, n_evict;
	uint32_t *about, about_is;
	uint32_t *words; /* [n_words]: place to which words_are, in pinned memory, is copied */
	const uint32_t *words_are;
	uint32_t n_words;
	const uint64_t *attended;     /* the sequence's counter of tokens attended to (skv_kseq.attended), or NULL */
	uint64_t *sum;                /* where the value of `attended` is stored */
	uint32_t item;
};

struct skv_backend {
	uint32_t size; /* sizeof(struct skv_backend); `size` and `abi` stay the first fields in all versions */
	uint32_t abi;
	const char *name; /* "cuda" */
	const struct skv_kernels *kernels;

	const char *(*error)(void);

	/* Returns the number of devices. -ENODEV: the machine has no device, or no driver that this module can use. */
	int (*count)(unsigned *ret_n);
	int (*info)(unsigned device, struct skv_device_info *ret);

	/* Makes the device current in this thread, ready for kernels. *ret_was is the argument to pass to leave(). */
	int (*enter)(unsigned device, void **ret_was);
	int (*leave)(void *was);

	/*
	 * Allocate and free memory of the device, aligned to 256 bytes, and pinned host memory, from and to which
	 * copies are asynchronous. The functions that free accept NULL.
	 */
	int (*alloc)(size_t bytes, void **ret);
	int (*free)(void *);
	int (*alloc_host)(size_t bytes, void **ret);
	int (*free_host)(void *);

	/* Registers whole pages of host memory, which the device then reaches at address *ret. */
	int (*register_host)(void *, size_t bytes, void **ret);
	int (*unregister_host)(void *);

	/*
	 * Map memory that another process allocated into an address range of this process. reserve() reserves addresses
	 * without memory. map() maps, in that range, the allocation that a POSIX file descriptor (borrowed) refers to,
	 * and unmap() unmaps the allocation. `at` and `bytes` are multiples of 2 MiB. A write to a read-only mapping
	 * faults.
	 */
	int (*reserve)(size_t bytes, void **ret);
	int (*release)(void *, size_t bytes);
	int (*map)(void *at, size_t bytes, int fd, bool writable);
	int (*unmap)(void *at, size_t bytes);
	/*
	 * Map memory of another process by the other kind of handle, the 64 bytes of a CUipcMemHandle. The driver
	 * chooses the address.
	 */
	int (*open_ipc)(const void *handle, void **ret);
	int (*close_ipc)(void *);

	/*
	 * Copy and zero memory: the work is queued on the stream. If host memory that takes part in a copy is not
	 * pinned, the call blocks until the copy is done.
	 */
	int (*copy)(void *dst, const void *src, size_t bytes, void *stream);
	int (*zero)(void *, size_t bytes, void *stream);

	int (*stream_new)(void **ret_stream);
	int (*stream_free)(void *stream);
	int (*wait)(void *stream); /* waits until all work queued on the stream is done; returns that work's errors */
	int (*check)(void);        /* returns errors of this thread's launches since the last check() or wait() */

	/*
	 * Begin and end a step: see struct skv_stage and struct skv_publish. `next` is an array that the device can
	 * read, or NULL.
	 */
	int (*stage)(const struct skv_stage *, void *stream);
	int (*publish)(const struct skv_publish *, uint32_t n, const int32_t *next, void *stream);

	/*
	 * CUDA graphs. Work queued between begin_capture() and end_capture() is recorded and does not run; launching
	 * the graph runs all of the recorded work. A launched graph uses the kernel arguments of the capture and the
	 * current contents of the device's memory.
	 */
	int (*recording)(void *stream, bool *ret); /* is a capture in progress on the stream? */
	int (*begin_capture)(void *stream);
	int (*end_capture)(void *stream, void **ret_graph);
	int (*graph_launch)(void *graph, void *stream);
	int (*graph_free)(void *graph);

	int (*event_new)(void **ret_event);
	int (*event_free)(void *event);
	int (*event_record)(void *event, void *stream);
	int (*event_done)(void *event, bool *ret_done); /* true also if the event was never recorded */
	int (*event_wait)(void *event);
	/*
	 * Work queued on the stream after this call waits for the event. If the event was recorded in a capture, the
	 * stream becomes part of that capture until the capturing stream waits for an event of this stream.
	 */
	int (*stream_wait)(void *stream, void *event);

	/*
	 * For benchmarks: the time between two events, and a kernel that reads memory as fast as possible; `bytes` is a
	 * multiple of 16.
	 */
	int (*event_elapsed)(void *from, void *to, float *ret_ms); /* waits for both events */
	int (*read)(const void *, size_t bytes, void *stream);
};

/* The only symbol that a backend's module exports. */
#define SKV_CUDA_SYMBOL "skv_cuda_backend"
typedef const struct skv_backend *skv_backend_fn(void);

/*
 * Returns the CUDA backend if a module, a driver and a device exist; else NULL, and err[size] gets a text that says
 * what is missing. The module is the installed file, or the file that $SPARSEKV_CUDA_MODULE names (ignored in setuid
 * programs). The module is loaded once and stays loaded; a failure to load is not cached.
 */
const struct skv_backend *skv_backend_cuda(char *err, size_t size);

#ifdef __cplusplus
}
#endif
#endif
