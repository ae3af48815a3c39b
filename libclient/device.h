/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/device.h - what a session on a device has besides: device.c, replay.c. See internal.h. */
#ifndef SKV_CLIENT_DEVICE_H
#define SKV_CLIENT_DEVICE_H

#include "internal.h"

/* ---- device.c -------------------------------------------------------------------------------- */

#define DEVICE_SLOTS 4u /* steps that the host may be ahead */

/* A step on its way: pinned memory, and what it is to be remembered for when it has run. */
struct device_slot {
	bool busy;
	void *event; /* recorded behind its end */
	void *mem;   /* pinned, what the next ones point into */
	size_t bytes;
	struct skv_kseq *kseq;       /* [n_classes][n] */
	struct skv_entry *entry;     /* [n_entries] */
	struct skv_publish *publish; /* [n] */
	uint64_t *sum;               /* [n]: the attended counters */
	float *share;                /* [n_layers][RECALL_SEQS]: recall, of the first n_recall sequences */
	uint32_t n_recall;
	struct skv_layer_set recall_layers[RECALL_SEQS];
	struct skv_lay *lay;         /* [n]: what the commits say of their prompts and layers */
	uint32_t n, n_decode, n_entries, cap;
	uint64_t n_evict; /* entries that its commits take away ... */
	bool staged;      /* ... and the device's tables have the holes, or will have at that time */
	struct skv_seq **seqs;       /* [n] of room for cap; none of them goes before the step has run */
};

/* Recordings of the layers; see replay.c. */
struct replay {
	uint64_t key;        /* of the open step, or the last one; 0: it cannot be replayed */
	uint64_t layers_key; /* of the steps that the layers were seen in */
	struct replay_layer *layer, *behind; /* [n_layers]; the one whose hooks did not run last, or NULL */
	uint32_t cap_marks; /* of each layer */
	void *recorder; /* a stream, made when it is needed */
	bool recorded;
	uint32_t tries; /* to record, under this key */
};

struct device {
	const struct skv_backend *backend;
	unsigned number; /* of the backend */
	struct skv_device_info info;
	/* the device's: what the kernels of a step read, and what they count */
	struct skv_kseq *kseq;
	uint64_t *attended;
	uint32_t cap_kseq, cap;
	struct device_slot slot[DEVICE_SLOTS];
	uint32_t next; /* slot of the open step, or of the next one */
	/* entries within the committed length that the device's tables do not show as they are */
	struct device_stale {
		struct skv_seq *seq;
		uint32_t table, page;
	} *stale;
	uint32_t n_stale;
	uint64_t cap_stale;
	struct replay replay;
};

/* Set the last error from the backend's, and return `error`. */
int device_failed(const struct device *d, int error, const char *what);

/* The kernels and the device of the session's model. */
int device_open(struct skv_session *s);
void device_close(struct skv_session *s);
/* Work on the session's device, and put back what was current; nothing on host memory. */
int device_enter(struct skv_session *s, void **ret_was);
void device_leave(struct skv_session *s, void *was);
/* Memory of the device, zeroed, in place of what there was; *mem is NULL after a failure. */
int device_grow(struct skv_session *s, void **mem, size_t *bytes, size_t need);
/* Room for a step of n sequences in so many classes of layers. */
int device_grow_batch(struct skv_session *s, uint32_t n, uint32_t n_classes);
int device_check(struct skv_session *s); /* did all launches succeed? */
int device_wait(struct skv_session *s);  /* for the stream of the step */
/* Take note of the steps that have run; waits for one if the host is too far ahead. The device is entered. */
int device_turn(struct skv_session *s);
/* Wait for all steps, and take note; the device need not be entered. */
int device_settle(struct skv_session *s);
bool device_evicts(const struct skv_session *s); /* are there evictions whose commits were not seen? */
int device_seq_open(struct skv_seq *q);
int device_seq_refresh(struct skv_seq *q); /* its tables were changed outside of a step */
void device_seq_close(struct skv_seq *q);
/*
 * A step, from its beginning to its end. prepare() makes room for so many entries: entry() notes one of this step down,
 * stale() one that is true whatever becomes of the step. Both do nothing on host memory.
 */
int device_prepare(struct skv_session *s, uint32_t entries);
void device_entry(struct skv_seq *q, uint32_t table, uint32_t page);
void device_stale(struct skv_seq *q, uint32_t table, uint32_t page);
int device_room_stale(struct skv_session *s, uint64_t n); /* for so many more of these */
int device_stage(struct skv_session *s);
int device_not_recording(struct skv_session *s); /* -EBUSY: the step's stream is being recorded */
int device_publish(struct skv_session *s, const int32_t *next); /* on failure nothing has changed */

/* ---- replay.c -------------------------------------------------------------------------------- */

int replay_init(struct device *d, uint32_t n_layers);
void replay_free(struct device *d, uint32_t n_layers); /* the device is entered */
/* The step is laid out: its key, and recordings of its layers if it is time to make them. */
void replay_begin(struct skv_session *s);
/* 1: the layer was replayed. 0: attend as it comes. */
int replay_attend(struct skv_session *s, uint32_t layer, const struct skv_attn *a);

#endif
