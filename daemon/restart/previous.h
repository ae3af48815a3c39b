/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/restart/previous.h - what the previous daemon left with the service manager. See previous.c. */
#ifndef SKV_PAST_H
#define SKV_PAST_H

#include "daemon/server/server-priv.h"

/*
 * Creates the core: from the state of the previous daemon if the manager has it, else a new one. From then on the
 * manager keeps its descriptors. Negative errno, logged: there is no core.
 */
int skv_past_start(struct skv_server *, const struct skv_core_config *);
/*
 * Has the processes of earlier clients watched, once loop and core exist; what these clients have is kept until their
 * process ends. `watch`: skv_fence_resume().
 */
void skv_past_watch_clients(struct skv_server *,
                            void (*watch)(struct skv_server *, uint32_t client, struct skv_peer *));
/* Ends this daemon without dropping anything: closes what is open here. Only if the manager keeps everything. */
void skv_past_leave(struct skv_server *);
void skv_past_free(struct skv_server *);

#endif
