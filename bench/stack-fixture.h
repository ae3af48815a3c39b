/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/stack-fixture.h - sets up the whole stack for measuring: a private daemon, the client library, and filled
 * sequences; and runs steps and measures the times of their parts.
 *
 * Each sequence has its own random K and V. The lengths of the sequences differ by up to a page, so that they need new
 * pages in different steps, as in practice. If a function fails, it prints the error and ends the program, because
 * after an error nothing can be measured.
 */
#ifndef SKV_BENCH_STACK_FIXTURE_H
#define SKV_BENCH_STACK_FIXTURE_H

#include <sparsekv/client.h>
#include "engine/private-daemon.h"
#include "kernels/device.h"

struct stack_fixture {
	struct eng_private *daemon; /* NULL: the daemon was not started here */
	struct skv_client *client;
	const struct skv_backend *device; /* NULL: host memory; otherwise the device's context is current */
	/* of the device: a stream, and events for the beginning and the end of a measurement */
	void *stream, *from, *to;
	struct skv_model model;
	struct skv_session *session;
	uint32_t n;
	struct skv_seq **seq;       /* [n] */
	struct skv_step_item *item; /* [n]: each item decodes one token of a sequence, or of its fork */
	uint8_t *kv, *q, *out;      /* rows for attention (k and v, q, output), in the memory that the kernels use */
	void *graph;                /* CUDA graph that was recorded when the step's key was `key`; NULL: none */
	uint64_t key;
	uint64_t moved; /* number of steps whose rows were at new positions */
};

/* Starts a private daemon, connects to it, and loads the kernels of `device` (as in struct skv_model). */
void stack_start(struct stack_fixture *, uint32_t device);
/* As stack_start(), but connects to a running daemon at `socket`. */
void stack_connect(struct stack_fixture *, const char *socket, uint32_t device);
void stack_stop(struct stack_fixture *);

/* Opens a session of a model under the policy `spec`. The function itself sets the model's device and io_dtype. */
void stack_open(struct stack_fixture *, const struct skv_model *, const char *spec);
void stack_close(struct stack_fixture *);

#define STACK_CHUNK 4096u /* most rows in a step of a prompt, and in the buffers of q and out */

/* Adds n empty sequences with room for `room` tokens each. */
void stack_sequences(struct stack_fixture *, uint32_t n, uint32_t room);
/* Adds n sequences with `tokens` tokens each, or up to 15 fewer, and room for `steps` more tokens. */
void stack_fill(struct stack_fixture *, uint32_t n, uint32_t tokens, uint32_t steps);
void stack_empty(struct stack_fixture *);

/* Moves the sequences to a new session with another policy, by detaching and attaching them. */
void stack_hand_over(struct stack_fixture *, const char *spec);

/* After stack_fork(), steps use forks of the sequences, until stack_drop_forks() drops the forks. */
void stack_fork(struct stack_fixture *);
void stack_drop_forks(struct stack_fixture *);

/* Times of the parts of a step, in microseconds of the host's clock, except for `device_ms`. */
struct stack_times {
	double begin;
	double attend[SKV_MAX_LAYERS]; /* [layer]: attention, in a step that is not replayed */
	double launch, replayed;       /* in a replayed step: launching the graph; calling skv_step_replayed() */
	double end;
	double whole;     /* from the beginning of the step until all its work is done */
	/*
	 * milliseconds of attention in all layers, by the device's clock, or by the host's clock if there is no device
	 */
	double device_ms;
	bool recorded;    /* this step recorded the graph, so it was not replayed */
};

enum stack_how {
	STACK_CALLS,  /* one call for each layer, with K and V at the same positions of the buffer in each step */
	STACK_MOVING, /* one call for each layer, with K and V at other positions of the buffer in each step */
	STACK_REPLAY, /* launches a recorded graph; only on a device */
};

/* Runs one step, in which every sequence decodes one token. */
void stack_step(struct stack_fixture *, enum stack_how, struct stack_times *);

/* Runs attention of all layers in a step that the caller has begun, with K and V at fixed positions of the buffer. */
void stack_attend(struct stack_fixture *);

/*
 * Moves rows to the memory that attention uses. `host` must be from malloc(); the function takes ownership of it, and
 * frees it (on a device) or returns it (on the host).
 */
uint8_t *stack_rows_copy(const struct stack_fixture *, void *host, size_t bytes);
void stack_rows_free(const struct stack_fixture *, void *rows);

void stack_wait(const struct stack_fixture *); /* waits until all queued work is done */

/* If r is negative, prints the error and ends the program. */
void stack_need(int r);

#endif
