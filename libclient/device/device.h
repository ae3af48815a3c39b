/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/device/device.h - the device of a session, and its memory. */
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

#define DEVICE_STEPS 4u /* that the host may be ahead */
#define JOINT_WORDS 6u  /* numbers that ranks exchange when they commit; each becomes the largest of all ranks' */

/* A queued step: its staging buffer, and what must be known when it has run. */
struct device_step {
	bool busy;
	void *event; /* recorded at its end */
	void *mem;   /* pinned; the next ones point into it */
	size_t bytes;
	struct skv_kseq *kseq;       /* [n_classes][n_kseq] */
	struct skv_pte_update *entry;     /* [n_entries] */
	struct skv_publish *publish; /* [n] */
	uint64_t *sum;               /* [n]: the attended counters ... */
	struct device_rows {
		uint32_t first, n;
	} *rows;                     /* ... and positions of the rows that attended */
	float *told;                 /* [2][JOINT_WORDS]: the message to other ranks, and their answer */
	float *share;                /* [n_layers][RECALL_SEQS]: recall, of the first n_recall sequences */
	uint32_t n_recall;
	struct skv_layer_set recall_layers[RECALL_SEQS];
	struct skv_lay *lay;         /* [n]: what commits record of prompts and layers */
	uint32_t n, n_decode, n_entries, cap;
	uint64_t n_evict; /* entries that its commits evict ... */
	bool staged;      /* ... and the device's tables have these holes, or a queued step brings them */
	struct skv_seq **seqs;       /* [n], cap allocated; none of them is freed before the step has run */
};

#define BRANCHES 16u /* limit of a step; further policy batches share them: workspace.h */

struct branch {
	struct skv_workspace work; /* its stream is the branch's */
	void *end;                 /* an event */
};

/* Called for each step that has run, oldest first. 0, or a negative errno: it is called again. */
typedef int device_finished_fn(struct skv_session *s, struct device_step *x);

struct device {
	const struct skv_backend *backend;
	unsigned number; /* its number in the backend */
	device_finished_fn *finished;
	struct skv_device_info info;
	/* device memory: what the kernels of a step read, and what they count */
	struct skv_kseq *kseq;
	uint64_t *attended;
	uint32_t cap_kseq, cap;
	skv_pte *holes; /* device memory, too: the page tables of empty sequences */
	struct device_step step[DEVICE_STEPS];
	uint32_t next; /* of the open step, or of the next one */
	struct slab slab; /* memory of sequences' tables */
	struct branch branch[BRANCHES]; /* from number 1 on */
	void *fork;       /* event: where they begin */
	/* committed entries that the device's tables do not show yet */
	struct device_stale {
		struct skv_seq *seq;
		uint32_t table, page;
	} *stale;
	uint32_t n_stale;
	uint64_t cap_stale;
};

/* Set the last error from the backend's, and return `error`. */
int device_failed(const struct device *d, int error, const char *what);
/* Open the device of the session's model, and choose its kernels. */
int device_open(struct skv_session *s, device_finished_fn *finished);
void device_close(struct skv_session *s);
/* Lock the session for a call of the engine, and make its device current. Returns as fence_enter(), or an error. */
int device_lock(struct skv_session *s, void **ret_was);
void device_unlock(struct skv_session *s, void *was);
/* Make the session's device current; restore the one before. Both do nothing on host memory. */
int device_enter(struct skv_session *s, void **ret_was);
void device_leave(struct skv_session *s, void *was);
/* Replace *mem by `need` bytes of zeroed device memory; *mem is NULL after a failure. */
int device_grow(struct skv_session *s, void **mem, size_t *bytes, size_t need);
/* Room for a step of n sequences, with n_kseq entries over all classes of layers. */
int device_grow_batch(struct skv_session *s, uint32_t n, uint32_t n_kseq);
int device_check(struct skv_session *s); /* did all launches succeed? */
int device_wait(struct skv_session *s);  /* for the step's stream */
/* Copy from the host to memory of the session, and wait for it. */
int device_put(struct skv_session *s, void *to, const void *from, size_t bytes);
/* Copy memory of the session to the host, and wait for it. */
int device_fetch(struct skv_session *s, void *to, const void *from, size_t bytes);

#endif
