/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/requests/tasks.h - requests that take more than a turn of the loop. See tasks.c. */
#ifndef SKV_TURNS_H
#define SKV_TURNS_H

#include <stdbool.h>
#include "common/wire.h"

struct skv_conn;
struct skv_core_seq_info;
struct skv_server;

/*
 * Answers a request by the core's result r, with the sequence in `info`, if it has one. E_TURNS: the reply is sent
 * when the core has finished the request, with the result that the core has then.
 */
void skv_tasks_answer(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, int r,
                      const struct skv_core_seq_info *info);
/*
 * The same for a caller that must see the result first: `settle` gets the core's result, unless that is negative or
 * E_TURNS, and returns the result for the client.
 */
typedef int (*skv_tasks_settle)(struct skv_server *, const struct skv_conn *, const struct skv_msg_header *, int r);
void skv_tasks_answer_settled(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, int r, skv_tasks_settle settle);
/* Runs a turn. True: there is more to do. */
bool skv_tasks_work(struct skv_server *);
void skv_tasks_free_all(struct skv_server *);

#endif
