/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/session.h - one model and one policy on a connection. */
#ifndef SKV_CLIENT_SESSION_H
#define SKV_CLIENT_SESSION_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <sparsekv/client.h>

#include "common/wire.h"
#include "kernels/kernels.h"
#include "libclient/step.h"

struct device;
struct pool;
struct joint;
struct replay;
struct request;

/* Which hook runs: primitives check that they are called where they make sense. */
enum phase { PHASE_NONE, PHASE_ADOPT, PHASE_BEFORE, PHASE_AFTER, PHASE_END };

/* The free list: leased pages that no table names; pages/stock.c. */
struct stock {
	uint32_t *ids; /* free pages, a stack */
	uint32_t n, cap;
	uint64_t leased;     /* free or in tables; at most cap, so that a push never allocates */
	uint32_t demand;     /* upper bound of the pages that one step takes, decaying */
	uint64_t set_aside;  /* the sum over the session's sequences */
	uint32_t n_release;  /* shared pages that sequences gave up, not yet reported to the daemon */
	uint32_t pause;      /* steps until the next request after a refusal */
	struct request *get; /* a pending LEASE_GET, or one whose reply is not taken yet */
	struct skv_msg_runs *msg; /* with room for SKV_WIRE_MAX_RUNS runs */
};

struct skv_session {
	pthread_mutex_t lock;
	struct skv_client *client;
	struct skv_session *next; /* under client->lock */
	uint32_t id;
	uint64_t serial; /* unique among all sessions of this process, never reused */
	struct skv_model model;
	struct pool *pool;
	struct skv_shape shape; /* common to all layers; layer_shape() adds what is a layer's own */
	const struct skv_kernels *kernels;
	float *sinks; /* [n_layers][n_heads], in the model's memory, or NULL: no layer has any */
	struct device *device; /* NULL: host memory */
	struct replay *replay; /* NULL: host memory */
	struct joint *joint; /* NULL: each commit counts by itself */
	struct skv_session_page *page;
	size_t page_bytes;
	struct skv_seq *seqs;
	uint32_t n_seqs;
	struct stock stock;
	struct step step;

	struct policy *policy;
	struct { /* hooks.c: the hook that runs */
		enum phase phase;
		uint32_t layer;             /* of before() or after() */
		struct policy_batch *batch; /* which attends, or whose hook runs; NULL in adopt() */
		const void *q;              /* of the layer that attends */
		void *adopting_state;
		bool misused; /* a primitive, in the open step */
		char misuse[256];
		const char *misuser; /* the policy's name */
	} hook;
	struct { /* policy-swap.c */
		uint64_t seen_generation; /* the control page's, when POLICY_GET was last sent */
		struct request *get;
		struct request *reply; /* to it, while it waits for the other ranks */
		char error[SKV_TEXT_MAX]; /* of the last swap, or "" */
	} swap;

	struct skv_stats stats;
	struct { /* stats.c: the different sliding windows, and how many layers have each; tokens 0: no window */
		struct window {
			uint32_t tokens, layers;
		} *all;
		uint32_t n;
	} windows;
	int64_t recall_every; /* steps between measurements; -1: as the daemon says */
	uint32_t fp8_prompts; /* prompts that were compared with fp8 so far; see fp8.c */
};

#endif
