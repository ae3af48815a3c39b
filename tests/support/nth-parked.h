/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/nth-parked.h - scenarios (nth-case.h) of a daemon that parks sequences, with the device that the engines run on, if they do.
 *
 * What fails says so, and has changed nothing: a sequence is whole in memory or in its file, as its outputs tell. Done again, it
 * succeeds. No file is left that is nobody's, and no descriptor in the daemon.
 */
#ifndef SKV_TEST_NTH_PARKED_H
#define SKV_TEST_NTH_PARKED_H

#include <stdint.h>

/* As nth_world_begin(), with a folder for files. */
void nth_parked_begin(const char *const *options);
/* Sequences and a sealed prefix go to disk, come back, are exported, dropped and imported. */
void nth_parked_travels(uint32_t n);
/* A daemon starts, with a sequence and a prefix that are parked and a sequence that is in memory. */
void nth_parked_next_daemon(uint32_t n);

#endif
