/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/ipc/ipc-priv.h - structs and functions that ipc.c (accepting), conn.c (a connection), send.c (its output) and
 * user.c share.
 */
#ifndef SKV_IPC_PRIV_H
#define SKV_IPC_PRIV_H

#include "daemon/ipc/conn.h"
#include "daemon/ipc/rights.h"

#define SKV_IPC_SLOTS 64u
/* bytes queued for a peer above which no request of the peer is received and no notice is sent */
#define SKV_CONN_MARK (256u << 10)
enum { SKV_DOOR_CLIENTS, SKV_DOOR_OPERATORS, SKV_IPC_DOORS };

/* A listening socket, for clients or for operators. */
struct skv_door {
	struct skv_ipc *ipc;
	int fd; /* -1: none */
	bool operators;
	bool starved;
	struct skv_op accept_op, retry_op;
};

/* A user that has connections. */
struct skv_ipc_user {
	struct skv_ipc_user *next, *next_turn;
	uid_t uid;
	uint32_t n_conns;
	struct skv_conn *first, **first_end; /* the user's connections that wait to be served */
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
	uint32_t n_conns;       /* number of connections in the two lists below */
	struct skv_conn *conns; /* connections that have not ended */
	struct skv_conn *ended; /* connections that have ended, and whose socket is not closed yet */
	struct skv_ipc_user *users;
	/* queue of users that have a waiting connection; the first user has the next turn */
	struct skv_ipc_user *turns, **turns_end;
	/*
	 * Spare descriptors: to send a descriptor, dup3(2) duplicates it onto a spare one. So clients can be told of
	 * segments even when the process cannot open more descriptors.
	 */
	int spare[SKV_IPC_SLOTS];
	unsigned n_spare;
	_Alignas(8) char packet[SKV_WIRE_MAX]; /* the message that is being served; there is only one at a time */
};

/* A packet that waits to be sent, with its fds (owned). */
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
	int seen; /* result of peeking at the next message: its bytes, or a negative errno */
	uint32_t client;
	struct skv_deferred *deferred; /* list of the connection's deferred requests (daemon/requests/deferred.h) */
	char name[SKV_NAME_MAX + 16];
	bool operators; /* the connection was accepted on the operators' socket */
	bool no_rights; /* the kernel refuses to deliver descriptors to this socket */
	bool open, hello, finishing;
	/* the peer has closed its end, so output is dropped; messages that it sent before are still received */
	bool unheard;

	struct skv_op recv_op, send_op, death_op, hello_op, end_op, close_op;
	struct skv_conn_out *sending;        /* packet that the ring is sending */
	struct skv_conn_out *out, **out_end; /* packets that wait after `sending` */
	uint64_t out_charge;                 /* bytes that `sending` and `out` count as */
	bool wants_room;                     /* drained() must be called when the queue has room again */
	bool held;
	unsigned paused; /* number of pauses that have not ended */
	struct skv_conn_out *kept, **kept_end; /* replies that wait while the connection is held */

	struct msghdr recv_msg, send_msg;
	struct iovec send_iov;
	struct skv_rights_room send_control;
};

/* Makes a connection of an accepted socket (consumed in any case), or turns the peer away. */
void skv_conn_begin(struct skv_door *, int fd);
/* Starts to wait for the next request, unless the connection is paused, held or full. */
void skv_conn_receive(struct skv_conn *);
/* Drops all queued packets of a connection, and makes later sends do nothing. */
void skv_conn_drop_output(struct skv_conn *);
/* If the connection has ended and has no operation left in the loop, closes its socket and frees the struct. */
void skv_conn_free_when_idle(struct skv_conn *);
/*
 * Finds or creates the struct of a user, and counts a new connection of the user. Returns NULL if there is no memory.
 */
struct skv_ipc_user *skv_ipc_user_get(struct skv_ipc *, uid_t);
/* Undoes skv_ipc_user_get() for one connection. The struct of the user is freed with its last connection. */
void skv_ipc_user_put(struct skv_ipc *, struct skv_ipc_user *);
/* Puts the connection into the queue of its user, to be served in one of the user's turns. */
void skv_ipc_queue(struct skv_conn *);
/* Takes the connection that is served next out of the queues. Returns NULL if no connection waits. */
struct skv_conn *skv_ipc_next(struct skv_ipc *);
/* Logs a packet in readable form, for SPARSEKV_DEBUG=wire. */
void skv_conn_dump(struct skv_conn *, const char *way, const void *packet, size_t bytes, unsigned n_fds);

#endif
