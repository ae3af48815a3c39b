/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/raw-engine.h - a raw client with sequences of many tokens. It writes page tables as the library does,
 * but touches no page: the machine needs memory for tables only.
 */
#ifndef SKV_TEST_RAW_ENGINE_H
#define SKV_TEST_RAW_ENGINE_H

#include "tests/support/daemon-fixture.h"

#define RAW_ENGINE_TOKENS (1u << 20) /* maximum of a sequence */

struct raw_engine {
	struct raw *raw;
	struct skv_msg_open_ok session;
	struct skv_model model;
	struct skv_wire_run runs[SKV_WIRE_MAX_RUNS]; /* leased pages that are not used yet */
	uint32_t n_runs;
};

/* A model with n_layers layers and pages of 1 KiB. */
struct skv_wire_model raw_engine_model(uint32_t n_layers);
/* Connects, and opens a session with that model. */
void raw_engine_open(struct raw_engine *, const char *socket, uint32_t n_layers);
/* Makes a sequence of so many tokens, with a policy's state of maximum size; returns its id. */
uint32_t raw_engine_seq(struct raw_engine *, const char *name, uint32_t tokens);

#endif
