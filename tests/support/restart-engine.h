/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/restart-engine.h - an engine that generates a named sequence while daemons end and start.
 *
 * It decodes at the pace of a model, and no call of it may fail. Tokens that were committed must be there, and outputs must be those of a run
 * that nobody disturbed, bit by bit. Engines are processes, and may be killed: each takes over from the one before.
 */
#ifndef SKV_TEST_RESTART_ENGINE_H
#define SKV_TEST_RESTART_ENGINE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define RESTART_ENGINE_TOKENS 2500u

/* Before a daemon is started; `socket` (kept) is where clients find it. */
void restart_engine_setup(const char *socket);
/* The run to compare with, in a process of its own. */
void restart_engine_undisturbed(void);

pid_t restart_engine_start(void);
/* Is it done? It must have succeeded then. */
bool restart_engine_has_ended(pid_t);
/* Of all engines. */
uint32_t restart_engine_tokens(void);
/* The undisturbed run's, and the others'. */
struct restart_engine_steps {
	double first;    /* the longest first one of an engine, in seconds: it has no leases, and a device has loaded nothing yet */
	double longest;  /* of the rest */
	uint32_t paused; /* those of the rest that took as long as no daemon is back in */
};
struct restart_engine_steps restart_engine_steps(bool disturbed);

/* What daemons have logged has no complaint in it. */
void restart_engine_check_log(const char *log);

#endif
