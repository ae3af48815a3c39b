/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/tick.h - what the daemon does once a second. */
#ifndef SKV_TICK_H
#define SKV_TICK_H

#include <stdbool.h>

struct skv_server;

/* From now on. The loop is there. */
void skv_tick_start(struct skv_server *);
/* The next step of the last tick, in a turn of the loop. True: there are more. */
bool skv_tick_some(struct skv_server *);

#endif
