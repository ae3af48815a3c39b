/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/nth-world.h - a daemon with failing calls, under a service manager, and a bystander (nth-engine.h) that
 * must not be disturbed.
 *
 * A daemon may end after a failure, if it logs why. Then another daemon without failures is started, and all processes
 * continue with it.
 */
#ifndef SKV_TEST_NTH_WORLD_H
#define SKV_TEST_NTH_WORLD_H

#include <sys/types.h>

#include "tests/support/nth-case.h"

/*
 * Starts a daemon with these options, which must stay valid, and nth_policy_path. The manager is opened before
 * `options` is read.
 */
void nth_world_begin(const char *const *options);
void nth_world_end(void);
/* Drops the prefixes that victims have sealed: no client owns them, so they stay in memory or on disk. */
void nth_world_drop_prefixes(void);

/* A new daemon takes over what the previous one left, and its Nth call fails meanwhile. */
void nth_world_next_daemon(uint32_t n);
/* Starts another daemon if the current one has ended. */
void nth_world_follow_daemon(void);
/* Waits for a child, whatever happens to the daemon meanwhile; returns the wait status. */
int nth_world_wait(pid_t);
void nth_world_must_succeed(pid_t);
void nth_world_bystander_goes_on(void);
/*
 * For struct nth_program: checks that the state balances and that the next daemon gets all of it, and starts that
 * daemon.
 */
void nth_world_check(void);
void nth_world_tell(char *to, size_t size);
/* If not NULL, called by nth_world_check() when only the bystander has any sequences left. */
extern void (*nth_world_is_quiet)(void);

#endif
