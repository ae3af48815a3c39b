/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/tick.h - the tick: work that the daemon does once a second. */
#ifndef SKV_TICK_H
#define SKV_TICK_H

#include <stdbool.h>

struct skv_server;

/* Starts the timer of the tick. The server's loop must exist. */
void skv_tick_start(struct skv_server *);
/*
 * Runs the next step of the current tick; the loop calls this function once per turn. Returns true if steps are left.
 */
bool skv_tick_some(struct skv_server *);

#endif
