/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/memory-group.h - a memory cgroup, version 1 or 2, for the daemon that a test starts. Needs root. */
#ifndef SKV_TEST_MEMORY_GROUP_H
#define SKV_TEST_MEMORY_GROUP_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Makes a group with a limit of `bytes`, without swap. The next daemon in a process of its own joins it
 * (fix_before_exec is memory_group_enter). Returns false, and prints why, if that is not possible here.
 */
bool memory_group_begin(uint64_t bytes);
void memory_group_enter(void);
/* Bytes charged to the group; its limit; number of its processes that the kernel has killed for lack of memory. */
uint64_t memory_group_used(void);
uint64_t memory_group_limit(void);
uint64_t memory_group_kills(void);
/* Removes the group; its processes have ended. */
void memory_group_end(void);

#endif
