/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/conn/conn.h - a client's connection to the daemon, and the requests that it sends. */
#ifndef SKV_CLIENT_CONN_H
#define SKV_CLIENT_CONN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <sparsekv/client.h>

#include "common/wire.h"
#include "libclient/conn/owned.h"
#include "libclient/conn/pool.h"
#include "libclient/conn/request.h"

struct plugin;

/* State of the connection to the daemon: see reconnect.h. */
enum link {
	LINK_UP,
	LINK_LOST,   /* there is no socket; reconnect.c tries to connect */
	LINK_ASKED,  /* RECONNECT was sent, and is not answered yet */
	LINK_READY,  /* RECONNECT was answered; threads still have to act on replies of the previous daemon */
	LINK_NAMING, /* the client is telling the daemon which sessions, sequences and pages it has */
};

/*
 * Locks. session->lock guards a session with its sequences, stock and step; client->lock guards the socket, the
 * requests, the pools and the plugin cache. A thread that takes both locks takes the session's first. No thread holds
 * client->lock while it waits for the daemon, so sessions do not wait for each other.
 */
struct skv_client {
	pthread_mutex_t lock;
	pthread_cond_t news; /* signalled when a request is completed, or the polling thread stops polling */
	int fd;
	uint32_t id;              /* the daemon's id of this client */
	unsigned forks;           /* fence_forks() of the process that opened the client: see fence.h */
	char path[108];           /* path of the daemon's socket */
	_Atomic uint32_t timeout_ms;
	_Atomic int threads;      /* number of threads for host kernels, from the next step on */
	bool polling;             /* a thread polls the socket; only this thread reads from it */
	bool debug;               /* SPARSEKV_DEBUG=wire: messages are dumped to stderr */
	bool welcome;             /* HELLO has been answered */
	bool leaving;             /* the connection is about to be closed */
	uint32_t serial;
	int broken;               /* 0, or the negative errno with which all calls fail from now on */
	bool unclosed;            /* a CLOSE was not answered, so the daemon may consider its session in use */
	char broken_text[SKV_TEXT_MAX];
	struct request *requests, **requests_end; /* unanswered requests, the oldest first */
	struct request *unsent;   /* first unanswered request that is not sent yet */
	enum link link;
	struct held held;         /* sessions and sequences that the daemon's replies gave to this client */
	bool anew;                /* the daemon does not know this client, which has nothing: send HELLO */
	unsigned pins;            /* number of pinning threads: see reconnect_pin() */
	/* times of now_ms(): the connection was lost; RECONNECT was sent; the next attempt to connect is due */
	int64_t lost_ms, asked_ms, next_try_ms;
	char nobody[SKV_TEXT_MAX]; /* why no daemon serves at the socket; "": a daemon serves */
	char *packet;             /* buffer of SKV_WIRE_MAX bytes for a received packet */

	/* the daemon's control page; a later daemon's page is mapped at the same address */
	const struct skv_control_page *control;
	size_t control_bytes;
	struct pools pools;
	struct plugin *plugins;
	struct skv_session *sessions;
};

/*
 * Send a request, or queue it if the socket is full; never blocks. The caller owns *ret until request_free() or
 * conn_orphan(). If ret is NULL, the reply is ignored, but a refusal breaks the connection if the refusal means that
 * daemon and client disagree about pages. Returns 0, -ENOMEM, or the error with which the connection ended.
 */
int conn_post(struct skv_client *c, uint16_t type, const void *body, size_t bytes, struct request **ret);

/*
 * conn_post() in two steps, of which conn_post_prepared() cannot fail: an action between the two steps is done only if
 * the daemon will certainly be told of it. The caller owns the request.
 */
int conn_prepare(struct skv_client *c, uint16_t type, const void *body, size_t bytes, struct request **ret);
void conn_post_prepared(struct skv_client *c, struct request *r);

/* Send CLOSE for a session of the pool. Without memory for the request the connection breaks. Needs client->lock. */
int conn_close_session_locked(struct skv_client *c, uint32_t session, struct pool *pool,
                              struct request **ret);

/*
 * Wait for the reply until `deadline` (now_ms()): longer while the daemon reports progress, shorter if no daemon
 * serves. Returns 0 if the reply has arrived (see r->error), else -ETIMEDOUT. The caller keeps the request.
 */
int conn_wait(struct skv_client *c, struct request *r, int64_t deadline);

/* End the connection, and wait until the daemon has released all sessions, sequences and pages of this client. */
void conn_hang_up(struct skv_client *c);

/*
 * Post a request, and wait for the reply as long as skv_set_timeout() says. On failure the request is freed and the
 * last error set. On success *ret has a reply without an error.
 */
int conn_call(struct skv_client *c, uint16_t type, const void *body, size_t bytes, struct request **ret);

/* Wait for the reply to a posted request: the second half of conn_call(). */
int conn_answer(struct skv_client *c, struct request *r, struct request **ret);

/* Set the last error and return it: no answer of the daemon in time (-ETIMEDOUT), or no daemon serves (-ECONNRESET). */
int conn_late(struct skv_client *c, const char *what);

/* Send queued requests and handle messages that have arrived, without waiting. */
void conn_turn(struct skv_client *c);

/* Is the connection up, and has every request been sent? Then posting a request does not lengthen a queue. */
bool conn_all_sent(struct skv_client *c);

/* Declare that no thread waits for the request any more: its reply is undone and freed on arrival. NULL is ignored. */
void conn_orphan(struct skv_client *c, struct request *r);
bool request_done(struct skv_client *c, const struct request *r);

/* For reconnect.c: the functions down to conn_fail_all() need client->lock. */
void conn_append(struct skv_client *c, struct request *r);
/* Finish an answered request that is in no list any more: notify its thread, or free the request. */
void conn_finish(struct skv_client *c, struct request *r);
void conn_send_queue(struct skv_client *c);
/* The connection is broken: complete all requests of the client with the connection's error. */
void conn_fail_all(struct skv_client *c);
/* Tell that the thread has acted on a reply that gave it a sequence: unpin the reply (reconnect.h). */
void conn_acted(struct skv_client *c, struct request *r);

/*
 * Break the connection, because the daemon broke the protocol or the two sides disagree: from now on every call that
 * needs the daemon fails. Needs client->lock.
 */
void conn_break_locked(struct skv_client *c, int error, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

int64_t now_ms(void);
int64_t conn_deadline(const struct skv_client *c);

#endif
