/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/conn.h - a connection to one server: sends commands, receives replies, and limits retries.
 *
 * The connection is opened on demand. Any error closes it, because outstanding replies would be taken for those of
 * other commands. It is then not retried for 100 ms; the delay doubles with each failure, up to 5 s, until the server
 * answers a command. At most SKV_STORE_BATCH bytes of commands are buffered, and one larger command.
 */
#ifndef SKV_STORE_CONN_H
#define SKV_STORE_CONN_H

#include "daemon/store/replies.h"
#include "daemon/store/transport.h"

#define SKV_STORE_BATCH (64u << 10)
#define SKV_STORE_PIECE (128u << 10) /* bytes read at once */

struct skv_store_conn {
	const struct skv_store_config *config;
	struct skv_store_tls *tls; /* NULL: without TLS */
	struct skv_store_address address;
	struct skv_store_resolver resolver;
	struct skv_store_transport transport;
	struct skv_store_replies replies;
	char batch[SKV_STORE_BATCH];
	size_t n_batch;
	char *large; /* a command, sent after the batch; NULL: none */
	size_t n_large, n_sent; /* n_sent: bytes sent of batch and `large` together */
	uint64_t backoff_ms, retry_ns; /* current delay, 0: none; time of the next attempt */
	char why[SKV_STORE_TEXT]; /* of the last failure */
};

/* config and tls must outlive the connection. NULL: out of memory. */
struct skv_store_conn *skv_store_conn_new(const struct skv_store_config *, struct skv_store_tls *,
                                          const struct skv_store_address *);
struct skv_store_conn *skv_store_conn_free(struct skv_store_conn *);

/*
 * Opens the connection, and sends password and database, until the deadline and within the configured time. Returns 0
 * or a negative errno with a text in `why`. -EHOSTDOWN: too early for a retry. An open connection that the server has
 * closed, or that has unexpected input, is opened again.
 */
int skv_store_conn_open(struct skv_store_conn *, uint64_t deadline_ns);
bool skv_store_conn_is_open(const struct skv_store_conn *);
/* Closes a failed connection and sets the delay. Prefixes the server's name to the text in `why`. */
void skv_store_conn_down(struct skv_store_conn *);
/* Resets the delay: the server has answered a command. */
void skv_store_conn_succeeded(struct skv_store_conn *);

/* Returns whether another command can be buffered. */
bool skv_store_conn_has_room(const struct skv_store_conn *);
/* Buffers a command; there must be room. Returns 0 or -ENOMEM. */
int skv_store_conn_command(struct skv_store_conn *, int n, const char **args, const size_t *bytes);
/*
 * Sends commands, or receives data, without waiting. `piece` has room for SKV_STORE_PIECE bytes; parts of replies go to
 * the function of `replies`. Returns 1 if there was progress, 0 if not (poll for skv_store_conn_events()), or a
 * negative errno.
 */
int skv_store_conn_send(struct skv_store_conn *);
int skv_store_conn_receive(struct skv_store_conn *, char *piece);
/* Events to wait for with poll(2). */
short skv_store_conn_events(const struct skv_store_conn *);

/*
 * Sends a command and waits for its one reply, whose parts go to fn. Returns 0, -ETIMEDOUT or another negative errno.
 */
int skv_store_conn_ask(struct skv_store_conn *, int n, const char **args, skv_store_part_fn fn, void *ctx,
                       uint64_t deadline_ns);

#endif
