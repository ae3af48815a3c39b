/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/memory-group.h - a memory cgroup, of either version, for the daemon that a test starts. Root. */
#ifndef SKV_TEST_MEMORY_GROUP_H
#define SKV_TEST_MEMORY_GROUP_H

#include <stdbool.h>
#include <stdint.h>

/*
 * A group of so many bytes, without swap; the next daemon in a process of its own begins in it (fix_before_exec is
 * memory_group_enter). False: none can be made here, and why was printed.
 */
bool memory_group_begin(uint64_t bytes);
void memory_group_enter(void);
/* Bytes that are charged to it now; processes that the kernel has killed in it so far. */
uint64_t memory_group_used(void);
uint64_t memory_group_limit(void);
uint64_t memory_group_kills(void);
/* Its processes have ended. */
void memory_group_end(void);

#endif
