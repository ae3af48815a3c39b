/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/restart/previous.h - continues with the state that the previous daemon left with the service manager. See
 * previous.c.
 */
#ifndef SKV_PAST_H
#define SKV_PAST_H

#include "daemon/server/server-priv.h"

/*
 * Creates the core, with the state of the previous daemon if the service manager has it, otherwise with a new state.
 * From then on the manager keeps the core's descriptors. Returns 0, or a negative errno, logged: there is no core.
 */
int skv_past_start(struct skv_server *, const struct skv_core_config *);
/*
 * Begins to watch the processes of the previous daemon's clients, for which loop and core must exist. The memory of
 * these clients is kept until their process ends. `watch`: skv_fence_resume().
 */
void skv_past_watch_clients(struct skv_server *,
                            void (*watch)(struct skv_server *, uint32_t client, struct skv_peer *));
/* Closes the core without dropping anything, for the next daemon. Only if the service manager keeps the descriptors. */
void skv_past_leave(struct skv_server *);
void skv_past_free(struct skv_server *);

#endif
