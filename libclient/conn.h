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
#include "libclient/lease/pool.h"

struct plugin;

/* A request that was sent, or waits to be sent, until its reply is dealt with. */
struct request {
	struct request *next;
	uint32_t serial;
	uint16_t type;
	bool done;       /* a reply is in, or none will come: see `error` */
	bool orphan;     /* no thread waits for the reply: it is undone and freed when it comes */
	bool then_close; /* an orphaned LEASE_GET of a session that waits to be closed */
	uint32_t session;
	uint32_t device;         /* OPEN: of the model */
	struct pool *pool;       /* OPEN, when it succeeded, and CLOSE */
	int error;               /* 0, or negative errno ... */
	char text[SKV_TEXT_MAX]; /* ... and why */
	void *body;              /* of the reply, well-formed for its type; owned */
	int fds[SKV_WIRE_MAX_FDS]; /* owned; -1 once taken */
};

struct out;

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
	uint32_t serial;
	int broken;               /* 0, or the negative errno that all calls get from now on */
	bool unclosed;            /* a CLOSE was not answered: the daemon may believe that we use its session */
	char broken_text[SKV_TEXT_MAX];
	struct request *requests; /* without a reply so far */
	struct out *out, **out_end; /* packets that the socket did not take yet */
	char *packet;             /* SKV_WIRE_MAX bytes to receive into */

	const struct skv_control_page *control;
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

/* CLOSE a session of the pool. client->lock is held. */
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

/* Send what is queued and take what has come, without waiting. */
void conn_turn(struct skv_client *c);

/* Is everything sent? Then a request may be posted without growing the queue. */
bool conn_all_sent(struct skv_client *c);

/* No thread waits for the request any more (NULL is fine). */
void conn_orphan(struct skv_client *c, struct request *r);
bool request_done(struct skv_client *c, const struct request *r);
struct request *request_free(struct request *r);

/* The daemon broke the protocol, or the two disagree: fail all that needs the daemon from now on. */
void conn_break_locked(struct skv_client *c, int error, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

int64_t now_ms(void);
int64_t conn_deadline(const struct skv_client *c);

#endif
