/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/reclaim.h - what clients give up, in turns. See reclaim.c. */
#ifndef SKV_CORE_RECLAIM_H
#define SKV_CORE_RECLAIM_H

#include "daemon/core/core-priv.h"

/* The client's sequence is detached: 0, E_CORRUPT, or E_TURNS. Rows. */
int skv_reclaim_seq(struct skv_core *, uint32_t client, uint32_t seq);
/* The memory of a device is lost: nothing of a sequence there is read any more. */
void skv_reclaims_lose(struct skv_core *, uint32_t device);
/* Is all of the client being taken back? A row. */
bool skv_reclaims_client(const struct skv_core *, uint32_t client);
void skv_reclaims_free(struct skv_core *);

#endif
