/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/stack-fixture.h - a fixture with the whole stack: a private daemon, the client library, filled sequences, and
 * steps with the times of their parts.
 *
 * Each sequence has its own random K and V. Their lengths differ by up to a page, so that they need new pages in
 * different steps, as in practice. All functions print errors and end the program, because after an error nothing can
 * be measured.
 */
#ifndef SKV_BENCH_STACK_FIXTURE_H
#define SKV_BENCH_STACK_FIXTURE_H

#include <sparsekv/client.h>
#include "engine/private.h"
#include "kernels/device.h"

struct stack_fixture {
	struct eng_private *daemon; /* NULL: an external daemon */
	struct skv_client *client;
	const struct skv_backend *device; /* NULL: host memory; otherwise its context is current */
	void *stream, *from, *to;         /* a stream and events of the device */
	struct skv_model model;
	struct skv_session *session;
	uint32_t n;
	struct skv_seq **seq;       /* [n] */
	struct skv_step_item *item; /* [n]: decodes one token of the sequence, or of its fork */
	uint8_t *kv, *q, *out;      /* rows, in the memory that attention uses */
	void *graph;                /* recorded with `key`; NULL: none */
	uint64_t key;
	uint64_t moved; /* steps whose rows were at new positions */
};

/* Starts a daemon, connects, and loads the backend of `device` (as in struct skv_model). */
void stack_start(struct stack_fixture *, uint32_t device);
/* The same with a running daemon at `socket`. */
void stack_connect(struct stack_fixture *, const char *socket, uint32_t device);
void stack_stop(struct stack_fixture *);

/* The stack sets the model's device and io_dtype itself. */
void stack_open(struct stack_fixture *, const struct skv_model *, const char *spec);
void stack_close(struct stack_fixture *);

#define STACK_CHUNK 4096u /* most rows of a prompt step, and of q and out */

/* Adds `n` empty sequences with room for `room` tokens. */
void stack_sequences(struct stack_fixture *, uint32_t n, uint32_t room);
/* Adds `n` sequences with up to `tokens` tokens (up to 15 fewer) and room for `steps` more. */
void stack_fill(struct stack_fixture *, uint32_t n, uint32_t tokens, uint32_t steps);
void stack_empty(struct stack_fixture *);

/* Moves the sequences to a session with another policy, by detaching and attaching them. */
void stack_hand_over(struct stack_fixture *, const char *spec);

/* Until the forks are dropped, steps use forks of the sequences. */
void stack_fork(struct stack_fixture *);
void stack_drop_forks(struct stack_fixture *);

/* Microseconds of the host's clock, except for `device_ms`. */
struct stack_times {
	double begin;
	double attend[SKV_MAX_LAYERS]; /* of a step without replay */
	double launch, replayed;       /* of a replayed step */
	double end;
	double whole;     /* from the begin until all work is done */
	double device_ms; /* attention of all layers, by the device's clock, or by the host's if there is no device */
	bool recorded;    /* this step made the recording, so it is no replay */
};

enum stack_how {
	STACK_CALLS,  /* a call for each layer, with K and V at the same position in each step */
	STACK_MOVING, /* the same, with K and V at another position in each step */
	STACK_REPLAY, /* launches a recording; not on the host */
};

/* Runs one step, in which every sequence decodes a token. */
void stack_step(struct stack_fixture *, enum stack_how, struct stack_times *);

/* Runs attention of all layers in a step that the caller has begun, with K and V at a fixed position. */
void stack_attend(struct stack_fixture *);

/*
 * Moves rows to the memory that attention uses. Takes ownership of `host`, which must come from malloc(), and frees
 * or returns it.
 */
uint8_t *stack_rows_copy(const struct stack_fixture *, void *host, size_t bytes);
void stack_rows_free(const struct stack_fixture *, void *rows);

void stack_wait(const struct stack_fixture *); /* until all queued work is done */

/* If r < 0, prints the error and ends the program. */
void stack_need(int r);

#endif
