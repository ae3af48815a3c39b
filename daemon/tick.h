/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/tick.h - what the daemon does once a second. */
#ifndef SKV_TICK_H
#define SKV_TICK_H

#include <stdbool.h>

struct skv_server;

/* Starts the tick. The loop must exist. */
void skv_tick_start(struct skv_server *);
/* Runs the next step of the last tick, in a turn of the loop. True: more steps are left. */
bool skv_tick_some(struct skv_server *);

#endif
