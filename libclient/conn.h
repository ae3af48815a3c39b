/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/conn.h - a connection to the daemon, and requests on it. */
#ifndef SKV_CLIENT_CONN_H
#define SKV_CLIENT_CONN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <sparsekv/client.h>

#include "common/wire.h"
#include "libclient/held.h"
#include "libclient/lease/pool.h"
#include "libclient/request.h"

struct plugin;

/* How the client is connected: reconnect.h. */
enum link {
	LINK_UP,
	LINK_LOST,   /* there is no socket; a daemon is looked for */
	LINK_ASKED,  /* RECONNECT was sent ... */
	LINK_READY,  /* ... and answered; threads still have to act on replies of the daemon before */
	LINK_NAMING, /* what this client has is being said */
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
	unsigned forks;           /* of the process that it is of: fence.h */
	char path[108];           /* of the socket */
	_Atomic uint32_t timeout_ms;
	_Atomic int threads;      /* that kernels on the host run on, from the next step on */
	bool polling;             /* a thread waits on the socket; it alone reads from it */
	bool debug;               /* SPARSEKV_DEBUG=wire */
	bool welcome;             /* HELLO was answered */
	bool leaving;             /* the connection is about to be closed */
	uint32_t serial;
	int broken;               /* 0, or the negative errno that all calls get from now on */
	bool unclosed;            /* a CLOSE was not answered: the daemon may believe that we use its session */
	char broken_text[SKV_TEXT_MAX];
	struct request *requests, **requests_end; /* without a reply so far, the oldest first */
	struct request *unsent;   /* the first of them that the socket did not take yet */
	enum link link;
	struct held held;         /* what the daemon has told us that we have */
	bool anew;                /* the daemon does not know us, and we have nothing: HELLO again */
	unsigned pins;            /* threads in the middle of what the daemon must be told as a whole */
	int64_t lost_ms, asked_ms, next_try_ms; /* when the connection was lost; when a daemon was asked; when to look for one again */
	char nobody[SKV_TEXT_MAX]; /* why there was none; "": there was one */
	char *packet;             /* SKV_WIRE_MAX bytes to receive into */

	const struct skv_control_page *control; /* stays where it is, whatever daemon's it is */
	size_t control_bytes;
	struct pools pools;
	struct plugin *plugins;
	struct skv_session *sessions;
};

/*
 * Send a request, or queue it when the socket is full; never blocks. *ret is the caller's until
 * request_free or conn_orphan; with ret NULL the reply is of no interest (a refusal breaks the
 * connection if it means that daemon and client disagree about pages). -ENOMEM, or why the connection ended.
 */
int conn_post(struct skv_client *c, uint16_t type, const void *body, size_t bytes, struct request **ret);

int conn_post_locked(struct skv_client *c, uint16_t type, const void *body, size_t bytes, struct request **ret);

/*
 * The same in two steps, of which the second cannot fail: what must not be done unless the daemon will hear of it comes between them. A
 * request that was prepared is the caller's.
 */
int conn_prepare(struct skv_client *c, uint16_t type, const void *body, size_t bytes, struct request **ret);
void conn_post_prepared(struct skv_client *c, struct request *r);

/* CLOSE a session of the pool; without memory to say so the connection is broken. client->lock is held. */
int conn_close_session_locked(struct skv_client *c, uint32_t session, struct pool *pool,
                              struct request **ret);

/*
 * Wait for the reply until `deadline` (now_ms). 0: it is in (see ->error); -ETIMEDOUT. The request stays
 * the caller's.
 */
int conn_wait(struct skv_client *c, struct request *r, int64_t deadline);

/* Tell the daemon that this is the end, and wait until it has settled what was ours. */
void conn_hang_up(struct skv_client *c);

/*
 * Post, wait as long as skv_set_timeout says, free on failure, with the last error set. Success leaves a
 * reply without error.
 */
int conn_call(struct skv_client *c, uint16_t type, const void *body, size_t bytes, struct request **ret);

/* The rest of it, after a post. */
int conn_answer(struct skv_client *c, struct request *r, struct request **ret);

/* Set the last error: the daemon did not answer in time, or there is none. */
int conn_late(struct skv_client *c, const char *what);

/* Send what is queued and take what has come, without waiting. */
void conn_turn(struct skv_client *c);

/* Is everything sent? Then a request may be posted without growing the queue. */
bool conn_all_sent(struct skv_client *c);

/* No thread waits for the request any more (NULL is fine). */
void conn_orphan(struct skv_client *c, struct request *r);
bool request_done(struct skv_client *c, const struct request *r);

/* For reconnect.c; client->lock is held. */
void conn_append(struct skv_client *c, struct request *r);
/* It is in the list no more, and answered: its thread is told, or it is freed. */
void conn_finish(struct skv_client *c, struct request *r);
void conn_send_queue(struct skv_client *c);
/* The connection is broken: all requests in the list are answered with that. */
void conn_fail_all(struct skv_client *c);
/* A thread has acted on a reply that gave it a sequence: what it has is what the daemon gave. */
void conn_acted(struct skv_client *c, struct request *r);

/* The daemon broke the protocol, or the two disagree: fail all that needs the daemon from now on. */
void conn_break_locked(struct skv_client *c, int error, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

int64_t now_ms(void);
int64_t conn_deadline(const struct skv_client *c);

#endif
