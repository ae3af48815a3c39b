/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/requests/tasks.h - requests on which the core works for more than one turn of the loop. See tasks.c. */
#ifndef SKV_TURNS_H
#define SKV_TURNS_H

#include <stdbool.h>
#include "common/wire.h"

struct skv_conn;
struct skv_core_seq_info;
struct skv_server;

/*
 * Answers a request with the core's result r, and with the sequence in `info`, if there is one. If r is
 * SKV_CORE_E_TURNS, the reply is sent later, when the core has finished the request, with its result then.
 */
void skv_tasks_answer(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, int r,
                      const struct skv_core_seq_info *info);
/*
 * Answers a request as skv_tasks_answer() does, except that `settle` may change the result: settle() is called with the
 * core's result, unless that is negative or SKV_CORE_E_TURNS, and returns the result that the client gets.
 */
typedef int (*skv_tasks_settle)(struct skv_server *, const struct skv_conn *, const struct skv_msg_header *, int r);
void skv_tasks_answer_settled(struct skv_server *, struct skv_conn *, const struct skv_msg_header *, int r, skv_tasks_settle settle);
/* Lets the core work on its tasks for one turn. Returns true if there is more to do. */
bool skv_tasks_work(struct skv_server *);
void skv_tasks_free_all(struct skv_server *);

#endif
