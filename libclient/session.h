/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/session.h - a session: one model and one policy on a connection. */
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

#define POLICIES_KEPT 8u /* maximum number of policies without a sequence that a session keeps */

/* The hook that is running: primitives check that they are called in a hook that allows them. */
enum phase { PHASE_NONE, PHASE_ADOPT, PHASE_BEFORE, PHASE_AFTER, PHASE_END };

/* The stock: leased pages that are in no table (pages/stock.c). */
struct stock {
	uint32_t *ids; /* stack of free page ids */
	uint32_t n, cap;
	/* number of leased pages, free or in tables; at most `cap`, so that pushing a page never allocates */
	uint64_t leased;
	uint32_t demand;     /* upper bound of the pages that one step takes; decays slowly */
	uint64_t set_aside;  /* number of pages set aside for prompts, over all sequences of the session */
	/* number of shared pages that sequences gave up and that are not yet reported to the daemon */
	uint32_t n_release;
	uint32_t pause;      /* after the daemon refused: number of steps until pages are requested again */
	/* a LEASE_GET request that waits for its reply, or whose reply has not been used yet; NULL: none */
	struct request *get;
	struct skv_msg_runs *msg; /* message buffer with room for SKV_WIRE_MAX_RUNS runs */
};

struct skv_session {
	pthread_mutex_t lock;
	struct skv_client *client;
	struct skv_session *next; /* next session of the client; protected by client->lock */
	uint32_t id;
	uint64_t serial; /* number that is unique among all sessions of this process and never reused */
	struct skv_model model;
	struct pool *pool;
	struct skv_shape shape; /* shape common to all layers; layer_shape() adds the attributes of one layer */
	const struct skv_kernels *kernels;
	float *sinks; /* [n_layers][n_heads] learned sinks, in the model's memory; NULL: no layer has sinks */
	struct device *device; /* NULL: the model is in host memory */
	struct replay *replay; /* CUDA graph recordings of layers; NULL: the model is in host memory */
	struct joint *joint; /* joint commits with other ranks; NULL: each commit counts by itself */
	struct skv_session_page *page;
	size_t page_bytes;
	struct skv_seq *seqs;
	uint32_t n_seqs;
	struct stock stock;
	struct step step;

	struct policy *policy;
	struct policy *kept[POLICIES_KEPT]; /* policies that sequences have left, the latest first; NULL: none */
	struct hook { /* hooks.c: the hook that is running */
		enum phase phase;
		uint32_t layer;             /* layer of the before() or after() that is running */
		struct policy_batch *batch; /* batch that attends, or whose hook runs; NULL in adopt() */
		const void *q;              /* q rows of the layer that attends */
		void *adopting_state;
		bool misused; /* a hook has misused a primitive in the open step */
		char misuse[256];
		const char *misuser; /* name of the policy whose hook misused it */
	} hook;
	struct { /* policy-swap.c */
		uint64_t seen_generation; /* generation in the control page when POLICY_GET was last sent */
		struct request *get;
		struct request *reply; /* answered POLICY_GET, kept until all ranks are ready to swap */
		char error[SKV_TEXT_MAX]; /* error text of the last policy swap, or "" */
	} swap;

	struct skv_stats stats;
	/* stats.c: each different sliding window, and the number of layers that have it; tokens 0: no window */
	struct {
		struct window {
			uint32_t tokens, layers;
		} *all;
		uint32_t n;
	} windows;
	int64_t recall_every; /* number of steps between recall measurements; -1: as the daemon says */
	uint32_t fp8_prompts; /* number of prompts that were checked so far for errors of fp8 keys; see fp8.c */
};

#endif
