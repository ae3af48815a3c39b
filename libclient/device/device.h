/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/device/device.h - the device of a session, its memory, and the steps that are queued on it. */
#ifndef SKV_CLIENT_DEVICE_H
#define SKV_CLIENT_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/seqmem.h"
#include "kernels/batch.h"
#include "kernels/device.h"
#include "libclient/device/slab.h"
#include "libclient/step.h"

#define DEVICE_STEPS 4u /* maximum number of steps by which the host may be ahead of the device */
/* number of fp32 words that ranks exchange at a commit; each becomes the maximum over all ranks */
#define JOINT_WORDS 6u

/* A queued step: its staging buffer, and the data that the host needs when the step has run. */
struct device_step {
	bool busy;
	void *event; /* event that is recorded at the end of the step */
	void *mem;   /* pinned host memory; kseq to lay point into it */
	size_t bytes;
	struct skv_kseq *kseq;       /* [n_classes][n_kseq]: sequences as the kernels see them */
	struct skv_pte_update *entry;     /* [n_entries]: changed entries of page tables */
	struct skv_publish *publish; /* [n]: the stores of each sequence's commit */
	uint64_t *sum;               /* [n]: tokens that each sequence attended to */
	struct device_rows {
		uint32_t first, n;
	} *rows;                     /* [n]: positions of the rows that attended */
	float *told;                 /* [2][JOINT_WORDS]: this rank's message to the other ranks, and the answer */
	float *share;                /* [n_layers][RECALL_SEQS]: measured recall of the first n_recall sequences */
	uint32_t n_recall;
	struct skv_layer_set recall_layers[RECALL_SEQS];
	struct skv_lay *lay;         /* [n]: the part of each commit that describes prompt and layers */
	uint32_t n, n_decode, n_entries, cap;
	uint64_t n_evict; /* number of entries that the step's commits evict */
	bool staged;      /* the device's tables have these holes, or a queued step will store them there */
	struct skv_seq **seqs;       /* [n], cap allocated; a sequence is not freed before the step has run */
};

#define DEVICE_CLOSED 16u /* maximum number of closed sequences whose memory is still registered */
#define BRANCHES 16u /* maximum number of branches of a step; further policy batches share them: workspace.h */

struct branch {
	struct skv_workspace work; /* workspace of the branch's kernels; its stream is the branch's */
	void *end;                 /* event that is recorded at the branch's end */
};

/* Called for each step that has run, the oldest first. 0, or a negative errno: it is called for the step again. */
typedef int device_finished_fn(struct skv_session *s, struct device_step *x);

struct device {
	const struct skv_backend *backend;
	unsigned number; /* number of the device in the backend */
	device_finished_fn *finished;
	struct skv_device_info info;
	/* device memory: sequences as kernels read them; tokens that each sequence attended to */
	struct skv_kseq *kseq;
	uint64_t *attended;
	uint32_t cap_kseq, cap;
	skv_pte *holes; /* page table of empty sequences, in device memory */
	struct device_step step[DEVICE_STEPS];
	uint32_t next; /* index in `step` of the open step, or of the next one */
	struct slab slab; /* memory for the copies of sequences' page tables */
	struct branch branch[BRANCHES]; /* branches 1 and up; branch 0 is the step's stream */
	void *fork;       /* event at which the branches begin */
	/* committed entries that the device's copies of page tables do not have yet */
	struct device_stale {
		struct skv_seq *seq;
		uint32_t table, page;
	} *stale;
	uint32_t n_stale;
	uint64_t cap_stale;
	/* memory of closed sequences, which is still registered and mapped (closed.c) */
	struct device_closed {
		void *mem;
		size_t bytes;
		void *tokens; /* registered on its own; NULL: not registered */
	} closed[DEVICE_CLOSED];
	uint32_t n_closed;
};

/* Set the last error to the backend's error text, and return `error`. */
int device_failed(const struct device *d, int error, const char *what);
/* Open the device of the session's model, and choose the session's kernels. */
int device_open(struct skv_session *s, device_finished_fn *finished);
void device_close(struct skv_session *s);
/* Keep the memory of a closed sequence until device_free_closed() frees it. The session's device must be current. */
void device_keep_closed(struct device *d, struct device_closed x);
void device_free_closed(struct device *d);
/* Lock the session for a call of the engine, and make its device current. 0, or an error as of fence_enter(). */
int device_lock(struct skv_session *s, void **ret_was);
void device_unlock(struct skv_session *s, void *was);
/* Make the session's device current; make the previous one current again. Both do nothing on host memory. */
int device_enter(struct skv_session *s, void **ret_was);
void device_leave(struct skv_session *s, void *was);
/* Replace *mem by `need` bytes of zeroed device memory. After a failure *mem is NULL. */
int device_grow(struct skv_session *s, void **mem, size_t *bytes, size_t need);
/* Make room for a step of n sequences, with n_kseq entries over all classes of layers. */
int device_grow_batch(struct skv_session *s, uint32_t n, uint32_t n_kseq);
int device_check(struct skv_session *s); /* returns an error if a kernel launch has failed */
int device_wait(struct skv_session *s);  /* waits for the stream of the step */
/* Copy from the host to memory of the session, and wait until the copy is done. */
int device_put(struct skv_session *s, void *to, const void *from, size_t bytes);
/* Copy from memory of the session to the host, and wait until the copy is done. */
int device_fetch(struct skv_session *s, void *to, const void *from, size_t bytes);

#endif
