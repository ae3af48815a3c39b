/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/device.h - devices: their memory, their streams and their kernels, behind one table of functions.
 *
 * A device backend is a module of its own, loaded on demand. So nothing links CUDA, and a machine without it runs
 * everything else. The module needs the driver and nothing besides.
 *
 * Errors. Functions return 0 or a negative errno; error() then has the text, the calling thread's own.
 * Outputs are written on success only. Errors of a launch, and of work that fails later, show at the next
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

#define SKV_BACKEND_ABI 19u
#define SKV_DEVICE_NAME_MAX 256
#define SKV_BACKEND_MAX_DEVICES 64u /* devices of a machine that a backend knows */

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
	struct skv_kseq *to;         /* [n], on the device; their `attended` counters become 0 */
	uint32_t n, n_entries;
	const struct skv_pte_update *entry; /* [n_entries] */
};

/*
 * What the step's last kernel publishes of one sequence. Pointers are the device's, into registered memory of the host.
 * `word`, the commit, is stored after all the rest is visible. `commit` NULL: nothing, the sequence was cancelled.
 */
struct skv_publish {
	uint64_t *commit, word;
	uint32_t *len; /* gets the word's lower half */
	int32_t *next[2];   /* both get the item's `next` */
	int32_t *token, id; /* an id for the table of token ids; NULL: it is there already */
	uint32_t *journal_n, n_evict; /* written when n_evict > 0 */
	uint32_t *about, about_is;
	uint32_t *words; /* [n_words]: copied from words_are, in pinned memory */
	const uint32_t *words_are;
	uint32_t n_words;
	const uint64_t *attended;     /* the sequence's counter, or NULL ... */
	uint64_t *sum;                /* ... and where it is stored */
	uint32_t item;
};

struct skv_backend {
	uint32_t size; /* of this struct; it and the version stay first in all versions */
	uint32_t abi;
	const char *name; /* "cuda" */
	const struct skv_kernels *kernels;

	const char *(*error)(void);

	/* How many devices there are. -ENODEV: none, or no driver that this module can use. */
	int (*count)(unsigned *ret_n);
	int (*info)(unsigned device, struct skv_device_info *ret);

	/* Make the device current in this thread, ready for kernels. *ret_was is the argument of leave(). */
	int (*enter)(unsigned device, void **ret_was);
	int (*leave)(void *was);

	/* Memory of the device, 256-byte aligned; of the host, pinned: copies need not wait. NULL may be freed. */
	int (*alloc)(size_t bytes, void **ret);
	int (*free)(void *);
	int (*alloc_host)(size_t bytes, void **ret);
	int (*free_host)(void *);

	/* Whole pages of the host's memory, for the device to write to under the address *ret. */
	int (*register_host)(void *, size_t bytes, void **ret);
	int (*unregister_host)(void *);

	/*
	 * Memory that another process allocated, in an address range of this one: reserve() reserves addresses without
	 * memory, map() maps the allocation of a POSIX file descriptor (borrowed) there, unmap() unmaps it. `at` and
	 * `bytes` are multiples of 2 MiB. A write to what is mapped read-only faults.
	 */
	int (*reserve)(size_t bytes, void **ret);
	int (*release)(void *, size_t bytes);
	int (*map)(void *at, size_t bytes, int fd, bool writable);
	int (*unmap)(void *at, size_t bytes);
	/* The other kind of handle, 64 bytes of a CUipcMemHandle. The driver chooses the address. */
	int (*open_ipc)(const void *handle, void **ret);
	int (*close_ipc)(void *);

	/* Queued. From or to host memory that is not pinned, the caller waits. */
	int (*copy)(void *dst, const void *src, size_t bytes, void *stream);
	int (*zero)(void *, size_t bytes, void *stream);

	int (*stream_new)(void **ret_stream);
	int (*stream_free)(void *stream);
	int (*wait)(void *stream); /* until all that was queued is done; its errors */
	int (*check)(void);        /* errors of launching, in this thread since the last check or wait */

	/*
	 * Begin and end of a step: see skv_stage, skv_publish. `next`, which may be NULL, is memory that the device
	 * can read.
	 */
	int (*stage)(const struct skv_stage *, void *stream);
	int (*publish)(const struct skv_publish *, uint32_t n, const int32_t *next, void *stream);

	/*
	 * Work queued between begin_capture and end_capture is recorded and not run; a launch of the graph runs all
	 * of it. Its arguments are those of the capture, the contents of the device's memory those at the time of the
	 * launch.
	 */
	int (*recording)(void *stream, bool *ret); /* is a capture in progress? */
	int (*begin_capture)(void *stream);
	int (*end_capture)(void *stream, void **ret_graph);
	int (*graph_launch)(void *graph, void *stream);
	int (*graph_free)(void *graph);

	int (*event_new)(void **ret_event);
	int (*event_free)(void *event);
	int (*event_record)(void *event, void *stream);
	int (*event_done)(void *event, bool *ret_done); /* or never recorded */
	int (*event_wait)(void *event);
	/* What is queued on the stream from now on waits for it. In a capture: the stream, too, is captured until its end joins in. */
	int (*stream_wait)(void *stream, void *event);

	/* For benchmarks: times, and a kernel that reads memory as fast as possible; `bytes` is a multiple of 16. */
	int (*event_elapsed)(void *from, void *to, float *ret_ms); /* waits for both */
	int (*read)(const void *, size_t bytes, void *stream);
};

/* The one symbol of a module. */
#define SKV_CUDA_SYMBOL "skv_cuda_backend"
typedef const struct skv_backend *skv_backend_fn(void);

/*
 * The CUDA backend, where there is a module, a driver and a device; else NULL and, in err[size], what is
 * missing. The module is the installed one, or the file that $SPARSEKV_CUDA_MODULE names (not in setuid programs). It
 * is loaded once and stays; a failure is not remembered.
 */
const struct skv_backend *skv_backend_cuda(char *err, size_t size);

#ifdef __cplusplus
}
#endif
#endif
