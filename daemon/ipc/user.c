/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/ipc/user.c - users take turns in being served.
 *
 * A connection whose peer has sent a message, or whose socket has to be closed, waits in the queue of its user. Users
 * are served round-robin, one connection in each turn. So a user with sixty busy connections gets no more of the
 * daemon's time than a user with one, and before a user's turn every other user has at most one.
 */
#include <stdlib.h>
#include "daemon/ipc/ipc-priv.h"

struct skv_ipc_user *skv_ipc_user_get(struct skv_ipc *ipc, uid_t uid)
{
	struct skv_ipc_user *u = ipc->users;

	while (u && u->uid != uid)
		u = u->next;
	if (!u) {
		u = calloc(1, sizeof(*u));
		if (!u)
			return NULL;
		u->uid = uid;
		u->first_end = &u->first;
		u->next = ipc->users;
		ipc->users = u;
	}
	u->n_conns++;
	return u;
}

void skv_ipc_user_put(struct skv_ipc *ipc, struct skv_ipc_user *u)
{
	struct skv_ipc_user **at = &ipc->users;

	if (--u->n_conns > 0)
		return;
	while (*at != u)
		at = &(*at)->next;
	*at = u->next;
	free(u);
}

static void append_user(struct skv_ipc *ipc, struct skv_ipc_user *u)
{
	u->next_turn = NULL;
	*ipc->turns_end = u;
	ipc->turns_end = &u->next_turn;
}

void skv_ipc_queue(struct skv_conn *conn)
{
	struct skv_ipc_user *u = conn->user;

	if (conn->queued)
		return;
	if (!u->first)
		append_user(conn->ipc, u);
	conn->queued = true;
	conn->next_queued = NULL;
	*u->first_end = conn;
	u->first_end = &conn->next_queued;
}

struct skv_conn *skv_ipc_next(struct skv_ipc *ipc)
{
	struct skv_ipc_user *u = ipc->turns;
	struct skv_conn *conn;

	if (!u)
		return NULL;
	ipc->turns = u->next_turn;
	if (!ipc->turns)
		ipc->turns_end = &ipc->turns;
	conn = u->first;
	u->first = conn->next_queued;
	if (u->first)
		append_user(ipc, u);
	else
		u->first_end = &u->first;
	conn->queued = false;
	return conn;
}
