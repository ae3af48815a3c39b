/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/ipc/ipc-priv.h - what ipc.c (accepting), conn.c (one connection) and send.c (its output) know of each other. */
#ifndef SKV_IPC_PRIV_H
#define SKV_IPC_PRIV_H

#include "daemon/ipc/conn.h"
#include "daemon/ipc/rights.h"

#define SKV_IPC_SLOTS 64u
#define SKV_CONN_MARK (256u << 10) /* queued bytes above which nothing is received, and no notice comes */
enum { SKV_DOOR_CLIENTS, SKV_DOOR_OPERATORS, SKV_IPC_DOORS };

/* A listening socket. */
struct skv_door {
	struct skv_ipc *ipc;
	int fd; /* -1: there is none */
	bool operators;
	bool starved;
	struct skv_op accept_op, retry_op;
};

/* Who has connections. */
struct skv_ipc_user {
	struct skv_ipc_user *next, *next_turn;
	uid_t uid;
	uint32_t n_conns;
	struct skv_conn *first, **first_end; /* connections that wait to be served */
};

struct skv_ipc {
	struct skv_loop *loop;
	struct skv_door doors[SKV_IPC_DOORS];
	const struct skv_ipc_ops *ops;
	void *ctx;
	struct skv_ipc_limits limits;
	struct skv_counts *counts;
	bool closing, dump;
	uint64_t last_number;
	uint32_t n_conns;       /* of both lists */
	struct skv_conn *conns; /* the live ones */
	struct skv_conn *ended; /* and those whose socket is not closed so far */
	struct skv_ipc_user *users;
	struct skv_ipc_user *turns, **turns_end; /* those with a connection that waits: the first has the next turn */
	/*
	 * Descriptors of our own that stand by for what is sent, so that a client may be told of a segment
	 * also when the process has run out of descriptors: dup3(2) replaces it with the one to be sent.
	 */
	int spare[SKV_IPC_SLOTS];
	unsigned n_spare;
	_Alignas(8) char packet[SKV_WIRE_MAX]; /* the message that is being served: one at a time */
};

/* A packet to be sent, and the fds that go with it (owned). */
struct skv_conn_out {
	struct skv_conn_out *next;
	size_t bytes, charge;
	unsigned n_fds;
	int fds[SKV_WIRE_MAX_FDS];
	_Alignas(8) char packet[];
};

struct skv_conn {
	struct skv_ipc *ipc;
	struct skv_conn *prev, *next;
	uint64_t number;
	int fd;
	struct skv_peer peer;
	struct skv_ipc_user *user;
	struct skv_conn *next_queued;
	bool queued;
	int seen; /* what looking for a message gave */
	uint32_t client;
	char name[SKV_NAME_MAX + 16];
	bool operators; /* it came through the operators' socket */
	bool no_rights; /* the kernel lets no descriptors in */
	bool open, hello, finishing;
	bool unheard; /* the peer hung up, and what it sent before is being received */

	struct skv_op recv_op, send_op, death_op, hello_op, end_op, close_op;
	struct skv_conn_out *sending;        /* in the kernel's hands */
	struct skv_conn_out *out, **out_end; /* behind it */
	uint64_t out_charge;                 /* of both */
	bool wants_room;                     /* drained() is due */
	bool held;
	unsigned paused; /* by so many */
	struct skv_conn_out *kept, **kept_end; /* replies, until it is not held any more */

	struct msghdr recv_msg, send_msg;
	struct iovec send_iov;
	struct skv_rights_room send_control;
};

/* Take over a connected socket (consumed in any case). */
void skv_conn_begin(struct skv_door *, int fd);
/* Wait for the next request, if one is to be served now. */
void skv_conn_receive(struct skv_conn *);
/* Nothing that waits to be sent, or will, is of use any more. */
void skv_conn_drop_output(struct skv_conn *);
/* If it has ended and nothing of it is left in the loop, close its socket, and free it. */
void skv_conn_free_when_idle(struct skv_conn *);
/* A connection more of this user. NULL: no memory. */
struct skv_ipc_user *skv_ipc_user_get(struct skv_ipc *, uid_t);
/* A connection less; the last one takes the user with it. */
void skv_ipc_user_put(struct skv_ipc *, struct skv_ipc_user *);
/* The connection waits to be served, in its user's turn. */
void skv_ipc_queue(struct skv_conn *);
/* The one to be served now, which waits no more. NULL: none waits. */
struct skv_conn *skv_ipc_next(struct skv_ipc *);
/* A line in the log for SPARSEKV_DEBUG=wire. */
void skv_conn_dump(struct skv_conn *, const char *way, const void *packet, size_t bytes, unsigned n_fds);

#endif
