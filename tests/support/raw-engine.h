/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/raw-engine.h - a raw client with sequences of many tokens. It writes their tables as the library does, and
 * touches no page: so a machine needs memory for tables alone.
 */
#ifndef SKV_TEST_RAW_ENGINE_H
#define SKV_TEST_RAW_ENGINE_H

#include "tests/support/daemon-fixture.h"

#define RAW_ENGINE_TOKENS (1u << 20) /* of a sequence, at most */

struct raw_engine {
	struct raw *raw;
	struct skv_msg_open_ok session;
	struct skv_model model;
	struct skv_wire_run runs[SKV_WIRE_MAX_RUNS]; /* of pages on lease that are not used yet */
	uint32_t n_runs;
};

/* Of n_layers layers whose pages are of 1 KiB. */
struct skv_wire_model raw_engine_model(uint32_t n_layers);
/* Join, and open a session with that model. */
void raw_engine_open(struct raw_engine *, const char *socket, uint32_t n_layers);
/* A sequence of so many tokens, with all of a policy's state; its id. */
uint32_t raw_engine_seq(struct raw_engine *, const char *name, uint32_t tokens);

#endif
