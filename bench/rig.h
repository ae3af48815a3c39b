/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/rig.h - the whole stack to be measured: a private daemon, the client library, sequences with
 * something in them, and steps taken apart into their times.
 *
 * Sequences hold random K and V, each its own. Their lengths differ by up to a page, so that they need new
 * pages in different steps, as sequences do in life. A rig that fails has nothing to measure: it says why
 * and ends the program.
 */
#ifndef SKV_BENCH_RIG_H
#define SKV_BENCH_RIG_H

#include <sparsekv/client.h>
#include "engine/private.h"
#include "kernels/device.h"

struct rig {
	struct eng_private *daemon;
	struct skv_client *client;
	const struct skv_backend *device; /* NULL: host memory; else entered */
	void *stream, *from, *to;         /* of the device: a stream, events */
	struct skv_model model;
	struct skv_session *session;
	uint32_t n;
	struct skv_seq **seq;       /* [n] */
	struct skv_step_item *item; /* [n]: each decodes a token of it, or of its fork */
	uint8_t *kv, *q, *out;      /* rows, where attention takes them */
	void *graph;                /* recorded under `key`; NULL: none */
	uint64_t key;
	uint64_t moved; /* steps that had their rows elsewhere */
};

/* Start a daemon, connect, and load the backend for `device` (as in struct skv_model). */
void rig_start(struct rig *, uint32_t device);
void rig_stop(struct rig *);

/* The model's device and io_dtype are the rig's business. */
void rig_open(struct rig *, const struct skv_model *, const char *spec);
void rig_close(struct rig *);

#define RIG_CHUNK 4096u /* rows of a step of prompts, and of q and out, at most */

/* `n` sequences more, empty, with room for so many tokens. */
void rig_sequences(struct rig *, uint32_t n, uint32_t room);
/* The same of about `tokens` tokens, at most as many, with room for `steps` more. */
void rig_fill(struct rig *, uint32_t n, uint32_t tokens, uint32_t steps);
void rig_empty(struct rig *);

/* The same sequences in a session with another policy: detached here, attached there. */
void rig_hand_over(struct rig *, const char *spec);

/* From here on steps are those of forks of the sequences, until they are dropped. */
void rig_fork(struct rig *);
void rig_drop_forks(struct rig *);

/* Microseconds of the host's clock, but for `device_ms`. */
struct rig_times {
	double begin;
	double attend[SKV_MAX_LAYERS]; /* of a step that is not a replay */
	double launch, replayed;       /* of one that is */
	double end;
	double whole;     /* from its begin until all of it is done */
	double device_ms; /* all layers' attention, by the device's clock; on the host by its own */
	bool recorded;    /* the launch was recorded in this very step, which is no replay then */
};

enum rig_how {
	RIG_CALLS,  /* a call for each layer, with K and V where they were in the steps before */
	RIG_MOVING, /* the same, but elsewhere in each step */
	RIG_REPLAY, /* the launch of a recording; there is none on the host */
};

/* One step, in which every sequence decodes a token. */
void rig_step(struct rig *, enum rig_how, struct rig_times *);

/* Rows where attention takes them, from host memory that was malloc'ed and is the rig's now. */
uint8_t *rig_rows_place(const struct rig *, void *host, size_t bytes);
void rig_rows_free(const struct rig *, void *rows);

void rig_wait(const struct rig *); /* until all that was queued is done */

/* End the program, saying why, if r < 0. */
void rig_need(int r);

#endif
