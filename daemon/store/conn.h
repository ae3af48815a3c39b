/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/conn.h - a connection to one server of the prefix store: sends commands, receives replies, limits
 * retries.
 *
 * The connection is opened when it is needed. Any error closes the connection, because outstanding replies could be
 * taken for replies to later commands. After a failure, the connection is not opened again for 100 ms. This delay
 * doubles with each further failure, up to 5 s, until the server answers a command. At most SKV_STORE_BATCH bytes of
 * commands are buffered, and one larger command.
 */
#ifndef SKV_STORE_CONN_H
#define SKV_STORE_CONN_H

#include "daemon/store/resp-replies.h"
#include "daemon/store/socket.h"

#define SKV_STORE_BATCH (64u << 10)
#define SKV_STORE_PIECE (128u << 10) /* bytes read at once */

struct skv_store_conn {
	const struct skv_store_config *config;
	struct skv_store_tls *tls; /* NULL: without TLS */
	struct skv_store_address address;
	struct skv_store_resolver resolver;
	struct skv_store_socket socket;
	struct skv_store_replies replies;
	char batch[SKV_STORE_BATCH];
	size_t n_batch;
	char *large; /* a command too large for the batch, which is sent after it; NULL: none */
	size_t n_large, n_sent; /* bytes of `large`; bytes sent so far of `batch` and `large` together */
	uint64_t backoff_ms, retry_ns; /* current delay, 0: none; earliest time to open the connection again */
	char why[SKV_STORE_TEXT]; /* text of the last failure */
};

/* Creates a closed connection. `config` and `tls` must outlive it. NULL: out of memory. */
struct skv_store_conn *skv_store_conn_new(const struct skv_store_config *, struct skv_store_tls *,
                                          const struct skv_store_address *);
struct skv_store_conn *skv_store_conn_free(struct skv_store_conn *);

/*
 * Opens the connection if it is not open, and sends password and number of the database. Takes at most the configured
 * connect-timeout, and ends by the deadline. Returns 0 or a negative errno with a text in `why`. -EHOSTDOWN: the delay
 * after a failure has not passed yet. An open connection that the server has closed, or that has input without a
 * request, is opened again.
 */
int skv_store_conn_open(struct skv_store_conn *, uint64_t deadline_ns);
bool skv_store_conn_is_open(const struct skv_store_conn *);
/* Closes a failed connection and begins the delay. Puts the server's name before the text in `why`. */
void skv_store_conn_down(struct skv_store_conn *);
/* Resets the delay after failures; called when the server has answered a command. */
void skv_store_conn_succeeded(struct skv_store_conn *);

/* Returns whether one more key's command can be buffered, with ASKING before it. */
bool skv_store_conn_has_room(const struct skv_store_conn *);
/* Buffers a command of n arguments; skv_store_conn_has_room() must have been true. Returns 0 or -ENOMEM. */
int skv_store_conn_command(struct skv_store_conn *, int n, const char **args, const size_t *bytes);
/*
 * Send buffered commands, or receive data into `piece`, which has SKV_STORE_PIECE bytes, and pass parts of replies to
 * the function of `replies`. The functions do not wait. They return 1 if there was progress, 0 if not (then poll for
 * skv_store_conn_events()), or a negative errno.
 */
int skv_store_conn_send(struct skv_store_conn *);
int skv_store_conn_receive(struct skv_store_conn *, char *piece);
/* Returns the events of poll(2) after which sending or receiving can go on. */
short skv_store_conn_events(const struct skv_store_conn *);

/*
 * Sends a command and waits for its single reply, whose parts are passed to fn. Returns 0, -ETIMEDOUT or another
 * negative errno, with a text in `why`.
 */
int skv_store_conn_ask(struct skv_store_conn *, int n, const char **args, skv_store_part_fn fn, void *ctx,
                       uint64_t deadline_ns);

#endif
