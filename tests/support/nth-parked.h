/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/nth-parked.h - scenarios (nth-case.h) of a daemon that parks sequences, on a device if the engines use
 * one.
 *
 * A call that fails reports an error and has changed nothing: a sequence is complete in memory or in its file, as its
 * outputs show. The retry succeeds. No orphaned file and no leaked descriptor of the daemon is left.
 */
#ifndef SKV_TEST_NTH_PARKED_H
#define SKV_TEST_NTH_PARKED_H

#include <stdint.h>

/* As nth_world_begin(), with a folder for parked files. */
void nth_parked_begin(const char *const *options);
/* Sequences and a sealed prefix are parked and resumed; a sequence is exported, dropped and imported. */
void nth_parked_travels(uint32_t n);
/* A daemon starts while a sequence and a prefix are parked and a sequence is in memory. */
void nth_parked_next_daemon(uint32_t n);

#endif
