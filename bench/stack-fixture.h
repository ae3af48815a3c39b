/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/stack-fixture.h - the whole stack to be measured: a private daemon, the client library, sequences with
 * something in them, and steps taken apart into their times.
 *
 * Sequences hold random K and V, each its own. Their lengths differ by up to a page, so that they need new
 * pages in different steps, as sequences do in life. A stack that fails has nothing to measure: it says why
 * and ends the program.
 */
#ifndef SKV_BENCH_STACK_FIXTURE_H
#define SKV_BENCH_STACK_FIXTURE_H

#include <sparsekv/client.h>
#include "engine/private.h"
#include "kernels/device.h"

struct stack_fixture {
	struct eng_private *daemon; /* NULL: another's */
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
void stack_start(struct stack_fixture *, uint32_t device);
/* The same with a daemon that serves there. */
void stack_connect(struct stack_fixture *, const char *socket, uint32_t device);
void stack_stop(struct stack_fixture *);

/* The model's device and io_dtype are the stack's business. */
void stack_open(struct stack_fixture *, const struct skv_model *, const char *spec);
void stack_close(struct stack_fixture *);

#define STACK_CHUNK 4096u /* rows of a step of prompts, and of q and out, at most */

/* `n` sequences more, empty, with room for so many tokens. */
void stack_sequences(struct stack_fixture *, uint32_t n, uint32_t room);
/* The same of about `tokens` tokens, at most as many, with room for `steps` more. */
void stack_fill(struct stack_fixture *, uint32_t n, uint32_t tokens, uint32_t steps);
void stack_empty(struct stack_fixture *);

/* The same sequences in a session with another policy: detached here, attached there. */
void stack_hand_over(struct stack_fixture *, const char *spec);

/* From here on steps are those of forks of the sequences, until they are dropped. */
void stack_fork(struct stack_fixture *);
void stack_drop_forks(struct stack_fixture *);

/* Microseconds of the host's clock, but for `device_ms`. */
struct stack_times {
	double begin;
	double attend[SKV_MAX_LAYERS]; /* of a step that is not a replay */
	double launch, replayed;       /* of one that is */
	double end;
	double whole;     /* from its begin until all of it is done */
	double device_ms; /* all layers' attention, by the device's clock; on the host by its own */
	bool recorded;    /* the launch was recorded in this very step, which is no replay then */
};

enum stack_how {
	STACK_CALLS,  /* a call for each layer, with K and V where they were in the steps before */
	STACK_MOVING, /* the same, but elsewhere in each step */
	STACK_REPLAY, /* the launch of a recording; there is none on the host */
};

/* One step, in which every sequence decodes a token. */
void stack_step(struct stack_fixture *, enum stack_how, struct stack_times *);

/* All layers' attention of a step that somebody else began, with K and V where they were in the steps before. */
void stack_attend(struct stack_fixture *);

/* Rows where attention takes them, from host memory that was malloc'ed and is the stack's now. */
uint8_t *stack_rows_copy(const struct stack_fixture *, void *host, size_t bytes);
void stack_rows_free(const struct stack_fixture *, void *rows);

void stack_wait(const struct stack_fixture *); /* until all that was queued is done */

/* End the program, saying why, if r < 0. */
void stack_need(int r);

#endif
