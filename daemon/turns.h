/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/turns.h - requests that take more than a turn of the loop. See turns.c. */
#ifndef SKV_TURNS_H
#define SKV_TURNS_H

#include <stdbool.h>
#include "common/wire.h"

struct skv_conn;
struct skv_core_seq_info;
struct skv_server;

/*
 * Answer a request by what the core said to it, with the sequence that it got, if `info` has one. E_TURNS: it is answered
 * when the core is through with it, and by what it says then.
 */
void skv_turns_answer(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, int r,
                      const struct skv_core_seq_info *info);
/*
 * The same for who has to know first: `settle` is given what the core said, unless that is negative or E_TURNS, and returns what the client
 * is told.
 */
typedef int (*skv_turns_settle)(struct skv_server *, const struct skv_conn *, const struct skv_msg_header *, int r);
void skv_turns_settle_answer(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, int r, skv_turns_settle settle);
/* The connection is gone: nobody waits for the reply. */
void skv_turns_forget(struct skv_server *, const struct skv_conn *);
/* A turn. True: there is more to do. */
bool skv_turns_work(struct skv_server *);
void skv_turns_free_all(struct skv_server *);

#endif
