/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/restart-engine.h - an engine that generates a named sequence while daemons end and start.
 *
 * It decodes at the pace of a model, and no call may fail. Committed tokens must be there, and outputs must be those of
 * an undisturbed run, bit for bit. Engines are processes that may be killed: each takes over from the one before.
 */
#ifndef SKV_TEST_RESTART_ENGINE_H
#define SKV_TEST_RESTART_ENGINE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define RESTART_ENGINE_TOKENS 2500u

/* Call before a daemon is started; `socket` (not copied) is the path that clients use. */
void restart_engine_setup(const char *socket);
/* Records the outputs to compare with, in a process of its own. */
void restart_engine_undisturbed(void);

pid_t restart_engine_start(void);
/* Returns whether the engine has ended; it must have succeeded. */
bool restart_engine_has_ended(pid_t);
/* Tokens committed by all engines. */
uint32_t restart_engine_tokens(void);
/* Duration of steps, of the undisturbed run or of all other engines. */
struct restart_engine_steps {
	/* the longest first step of an engine, in seconds: it has no leases yet, and a device has loaded nothing */
	double first;
	double longest;  /* the longest of the other steps */
	uint32_t paused; /* other steps that took longer than NO_DAEMON_S: they waited for a daemon */
};
struct restart_engine_steps restart_engine_steps(bool disturbed);

/* Checks that the daemons' log has no complaint. */
void restart_engine_check_log(const char *log);

#endif
