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

/* The free list: pages on lease that no table names; lease/stock.c. */
struct stock {
	uint32_t *ids; /* free pages, a stack */
	uint32_t n, cap;
	uint64_t leased;     /* free or in tables: at most cap, so a push never allocates */
	uint32_t demand;     /* what one step may take at most, decaying */
	uint64_t set_aside;  /* the sum over its sequences */
	uint32_t n_release;  /* shared pages that sequences gave up and the daemon was not told of */
	uint32_t pause;      /* steps until the next request after a refusal */
	struct request *get; /* LEASE_GET on its way, or its reply not taken yet */
	struct skv_msg_runs *msg; /* with room for SKV_WIRE_MAX_RUNS runs */
};

struct skv_session {
	pthread_mutex_t lock;
	struct skv_client *client;
	struct skv_session *next; /* under client->lock */
	uint32_t id;
	uint64_t serial; /* of this process: no two sessions ever have the same */
	struct skv_model model;
	struct pool *pool;
	struct skv_shape shape; /* of all layers: what is a layer's own comes from layer_shape() */
	const struct skv_kernels *kernels;
	struct windows { /* of the model's layers: so many have this one; 0: none */
		uint32_t tokens, layers;
	} *windows;
	uint32_t n_windows;
	float *sinks; /* [n_layers][n_heads], in the model's memory, or NULL: no layer has any */
	struct device *device; /* NULL: host memory */
	struct replay *replay; /* the same */
	struct joint *joint; /* NULL: each commit counts by itself */
	struct skv_session_page *page;
	size_t page_bytes;
	struct skv_seq *seqs;
	uint32_t n_seqs;
	struct stock stock;
	struct step step;

	struct policy *policy;
	struct policy_batch *batch; /* whose sequences attend, or whose hook runs; NULL in adopt() */
	enum phase phase;
	uint32_t hook_layer; /* whose before() or after() it is */
	void *adopting_state;
	bool misused;
	char misuse[256];
	const char *misuser; /* the policy's name */
	uint64_t seen_generation; /* of the control page, when POLICY_GET was last asked */
	struct request *policy_get;
	struct request *swap; /* the answer to it that waits for other ranks */
	char policy_error[SKV_TEXT_MAX];

	struct skv_stats stats;
	int64_t recall_every; /* steps; -1: as the daemon says */
	uint32_t fp8_prompts; /* whose rows were compared with fp8; see fp8.c */
};

#endif
