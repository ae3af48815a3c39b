/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/past.h - what the daemon that was here before has left with the service manager, or hands over. See past.c. */
#ifndef SKV_PAST_H
#define SKV_PAST_H

#include "daemon/server-priv.h"

/*
 * The core: the one that was, if the manager has it, else a new one; from then on the manager keeps its descriptors. Negative errno,
 * which has been logged: there is none.
 */
int skv_past_start(struct skv_server *, const struct skv_core_config *);
/* Once the loop and the core are there: clients that were are watched, and what is theirs is kept until they end. */
void skv_past_watch_clients(struct skv_server *);
/* The daemon ends and keeps what it has: what is open here is closed. Only if the manager keeps it, or it is handed over. */
void skv_past_leave(struct skv_server *);
void skv_past_free(struct skv_server *);

#endif
