/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/conn/conn.h - a connection to the daemon, and requests on it. */
#ifndef SKV_CLIENT_CONN_H
#define SKV_CLIENT_CONN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <sparsekv/client.h>

#include "common/wire.h"
#include "libclient/conn/held.h"
#include "libclient/conn/pool.h"
#include "libclient/conn/request.h"

struct plugin;

/* State of the connection: see reconnect.h. */
enum link {
	LINK_UP,
	LINK_LOST,   /* there is no socket; reconnect.c tries to connect */
	LINK_ASKED,  /* RECONNECT was sent ... */
	LINK_READY,  /* ... and answered; threads still have to act on replies of the previous daemon */
	LINK_NAMING, /* the client is telling the daemon what it has */
};

/*
 * Locks. session->lock guards a session, its sequences, stock and step; client->lock guards the socket,
 * requests, pools and the plugin cache. A session's lock is taken first. No thread waits for the daemon
 * with client->lock held, so sessions do not wait for each other.
 */
struct skv_client {
	pthread_mutex_t lock;
	pthread_cond_t news; /* a request was completed, or no thread polls the socket any more */
	int fd;
	uint32_t id;              /* as the daemon calls this client */
	unsigned forks;           /* of the process that opened it: fence.h */
	char path[108];           /* of the socket */
	_Atomic uint32_t timeout_ms;
	_Atomic int threads;      /* that host kernels run on, from the next step on */
	bool polling;             /* a thread waits on the socket; it alone reads from it */
	bool debug;               /* SPARSEKV_DEBUG=wire */
	bool welcome;             /* HELLO was answered */
	bool leaving;             /* the connection is about to be closed */
	uint32_t serial;
	int broken;               /* 0, or the negative errno that all calls get from now on */
	bool unclosed;            /* a CLOSE was not answered: the daemon may assume that its session is in use */
	char broken_text[SKV_TEXT_MAX];
	struct request *requests, **requests_end; /* not answered yet, the oldest first */
	struct request *unsent;   /* the first of them that is not sent yet */
	enum link link;
	struct held held;         /* what replies of the daemon gave to this client */
	bool anew;                /* the daemon does not know this client, which has nothing: say HELLO again */
	unsigned pins;            /* threads between two steps that the daemon must see as one: reconnect.h */
	/* when the connection was lost; when RECONNECT was sent; when to try next */
	int64_t lost_ms, asked_ms, next_try_ms;
	char nobody[SKV_TEXT_MAX]; /* why no daemon serves at the socket; "": one does */
	char *packet;             /* SKV_WIRE_MAX bytes to receive into */

	const struct skv_control_page *control; /* mapped at the same address for each daemon */
	size_t control_bytes;
	struct pools pools;
	struct plugin *plugins;
	struct skv_session *sessions;
};

/*
 * Send a request, or queue it if the socket is full; never blocks. The caller owns *ret until request_free() or
 * conn_orphan(). With ret NULL the reply is ignored, but a refusal breaks the connection if it means that daemon and
 * client disagree about pages. Returns -ENOMEM, or the error with which the connection ended.
 */
int conn_post(struct skv_client *c, uint16_t type, const void *body, size_t bytes, struct request **ret);

/*
 * The same in two steps, of which the second cannot fail: for actions in between that must only happen if the daemon
 * will be told of them. The caller owns the request.
 */
int conn_prepare(struct skv_client *c, uint16_t type, const void *body, size_t bytes, struct request **ret);
void conn_post_prepared(struct skv_client *c, struct request *r);

/* CLOSE a session of the pool; if memory for the request is missing, the connection breaks. Needs client->lock. */
int conn_close_session_locked(struct skv_client *c, uint32_t session, struct pool *pool,
                              struct request **ret);

/*
 * Wait for the reply until `deadline` (now_ms()): longer while the daemon reports progress, shorter if there is no
 * daemon. 0: the reply is in (see ->error); else -ETIMEDOUT. The caller keeps the request.
 */
int conn_wait(struct skv_client *c, struct request *r, int64_t deadline);

/* End the connection, and wait until the daemon has released what was this client's. */
void conn_hang_up(struct skv_client *c);

/*
 * Post, and wait as long as skv_set_timeout() says. A failure frees the request and sets the last error. After success
 * *ret is a reply without error.
 */
int conn_call(struct skv_client *c, uint16_t type, const void *body, size_t bytes, struct request **ret);

/* The second half of conn_call(), after a post. */
int conn_answer(struct skv_client *c, struct request *r, struct request **ret);

/* Set the last error: the daemon did not answer in time (-ETIMEDOUT), or there is none (-ECONNRESET). */
int conn_late(struct skv_client *c, const char *what);

/* Send what is queued and handle what has arrived, without waiting. */
void conn_turn(struct skv_client *c);

/* Is the connection up and everything sent? Then posting a request does not lengthen the queue. */
bool conn_all_sent(struct skv_client *c);

/* No thread waits for the request any more: undo and free its reply when it comes. NULL is fine. */
void conn_orphan(struct skv_client *c, struct request *r);
bool request_done(struct skv_client *c, const struct request *r);

/* For reconnect.c; client->lock is held. */
void conn_append(struct skv_client *c, struct request *r);
/* The request was answered and is in no list: notify its thread, or free it. */
void conn_finish(struct skv_client *c, struct request *r);
void conn_send_queue(struct skv_client *c);
/* The connection is broken: complete all requests in the list with its error. */
void conn_fail_all(struct skv_client *c);
/* The thread has acted on a reply that gave it a sequence: unpin the reply (reconnect.h). */
void conn_acted(struct skv_client *c, struct request *r);

/* The daemon broke the protocol, or the two sides disagree: from now on everything that needs the daemon fails. */
void conn_break_locked(struct skv_client *c, int error, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

int64_t now_ms(void);
int64_t conn_deadline(const struct skv_client *c);

#endif
