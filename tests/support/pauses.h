/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/pauses.h - how long a processor of this machine ran nobody who was due: other programs of a higher
 * priority, or other virtual machines on the same hardware. A test that asserts times by the clock allows for it.
 */
#ifndef SKV_TEST_PAUSES_H
#define SKV_TEST_PAUSES_H

/* Starts and ends the observation: a thread on each processor that this process may use, of real-time priority if allowed. */
void pauses_begin(void);
void pauses_end(void);

/* Returns the longest pause since pauses_begin(), in ms. */
double pauses_longest_ms(void);

#endif
