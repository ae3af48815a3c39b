/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/ipc/ipc-priv.h - what ipc.c (accepting), conn.c (one connection) and send.c (its output) share. */
#ifndef SKV_IPC_PRIV_H
#define SKV_IPC_PRIV_H

#include "daemon/ipc/conn.h"
#include "daemon/ipc/rights.h"

#define SKV_IPC_SLOTS 64u
#define SKV_CONN_MARK (256u << 10) /* queued bytes above which no request is received and no notice is sent */
enum { SKV_DOOR_CLIENTS, SKV_DOOR_OPERATORS, SKV_IPC_DOORS };

/* A listening socket. */
struct skv_door {
	struct skv_ipc *ipc;
	int fd; /* -1: none */
	bool operators;
	bool starved;
	struct skv_op accept_op, retry_op;
};

/* A user with connections. */
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
	struct skv_conn *conns; /* live connections */
	struct skv_conn *ended; /* ended connections whose socket is not closed yet */
	struct skv_ipc_user *users;
	struct skv_ipc_user *turns, **turns_end; /* users with a waiting connection; the first has the next turn */
	/*
	 * Spare descriptors, so that a client can be told of a segment even when the process has run out of
	 * descriptors: dup3(2) replaces one with the descriptor to be sent.
	 */
	int spare[SKV_IPC_SLOTS];
	unsigned n_spare;
	_Alignas(8) char packet[SKV_WIRE_MAX]; /* the message that is being served; one at a time */
};

/* A packet to be sent, with its fds (owned). */
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
	int seen; /* result of the peek at the next message */
	uint32_t client;
	struct skv_deferred *deferred; /* the first of its deferred requests (daemon/requests/deferred.h) */
	char name[SKV_NAME_MAX + 16];
	bool operators; /* accepted on the operators' socket */
	bool no_rights; /* the kernel refuses descriptors on this socket */
	bool open, hello, finishing;
	bool unheard; /* the peer hung up; what it sent before is still being received */

	struct skv_op recv_op, send_op, death_op, hello_op, end_op, close_op;
	struct skv_conn_out *sending;        /* submitted to the ring */
	struct skv_conn_out *out, **out_end; /* queued after `sending` */
	uint64_t out_charge;                 /* of `sending` and `out` */
	bool wants_room;                     /* drained() must be called */
	bool held;
	unsigned paused; /* number of pauses */
	struct skv_conn_out *kept, **kept_end; /* replies that wait while it is held */

	struct msghdr recv_msg, send_msg;
	struct iovec send_iov;
	struct skv_rights_room send_control;
};

/* Takes over a connected socket (consumed in any case). */
void skv_conn_begin(struct skv_door *, int fd);
/* Waits for the next request, if one may be served now. */
void skv_conn_receive(struct skv_conn *);
/* Drops everything queued, and ignores what will be sent. */
void skv_conn_drop_output(struct skv_conn *);
/* If it has ended and no operation is left in the loop: closes its socket and frees it. */
void skv_conn_free_when_idle(struct skv_conn *);
/* Counts a connection of this user. NULL: no memory. */
struct skv_ipc_user *skv_ipc_user_get(struct skv_ipc *, uid_t);
/* Uncounts a connection; the user is freed with its last one. */
void skv_ipc_user_put(struct skv_ipc *, struct skv_ipc_user *);
/* Queues the connection for its user's turn. */
void skv_ipc_queue(struct skv_conn *);
/* Takes the next connection to be served. NULL: none waits. */
struct skv_conn *skv_ipc_next(struct skv_ipc *);
/* Logs a packet, for SPARSEKV_DEBUG=wire. */
void skv_conn_dump(struct skv_conn *, const char *way, const void *packet, size_t bytes, unsigned n_fds);

#endif
