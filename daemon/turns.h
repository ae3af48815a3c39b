/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/turns.h - requests that take more than a turn of the loop. See turns.c. */
#ifndef SKV_TURNS_H
#define SKV_TURNS_H

#include <stdbool.h>
#include "common/wire.h"

struct skv_conn;
struct skv_server;

/* The core has said E_TURNS to this request, whose reply is empty: it comes when the core is through. */
void skv_turns_wait(struct skv_server *, struct skv_conn *, const struct skv_msg_header *);
/* The connection is gone: nobody waits for the reply. */
void skv_turns_forget(struct skv_server *, const struct skv_conn *);
/* A turn. True: there is more to do. */
bool skv_turns_work(struct skv_server *);
void skv_turns_free_all(struct skv_server *);

#endif
