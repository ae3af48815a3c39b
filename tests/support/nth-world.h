/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/nth-world.h - a daemon that has calls fail, under a service manager, with a bystander (nth-engine.h) that must not notice.
 *
 * A daemon that had a failure may end, with a word on why; then another one is started, which has none, and everything goes on with it.
 */
#ifndef SKV_TEST_NTH_WORLD_H
#define SKV_TEST_NTH_WORLD_H

#include <sys/types.h>

#include "tests/support/nth-case.h"

/* With these options (kept), and nth_policy_path. The manager is open before `options` is read. */
void nth_world_begin(const char *const *options);
void nth_world_end(void);
/* What victims have sealed is nobody's, and stays, in memory or on disk. */
void nth_world_drop_prefixes(void);

/* A daemon takes over what the one before has left, and the Nth call fails meanwhile. */
void nth_world_next_daemon(uint32_t n);
/* If the daemon has ended, there is another one. */
void nth_world_follow_daemon(void);
/* Of a child, whatever becomes of the daemon meanwhile: its wait status. */
int nth_world_wait(pid_t);
void nth_world_must_succeed(pid_t);
void nth_world_bystander_goes_on(void);
/* struct nth_program's: the state balances, all of it is there for the next daemon, and that one is started. */
void nth_world_check(void);
void nth_world_tell(char *to, size_t size);
/* Not NULL: called by that, when nobody but the bystander has anything any more. */
extern void (*nth_world_is_quiet)(void);

#endif
