/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon/store/conn.h - a connection to one server: commands out, replies in, and when it may be tried again.
 *
 * It is made when it is needed. Whatever goes wrong with it closes it, since replies that are still to come would be
 * taken for those of other commands; then it is not tried again for 100 ms, the next time for twice as long, up to 5 s,
 * until the server answers something that is asked of it. Commands that are formatted and not sent are SKV_STORE_BATCH
 * bytes and one that is larger than that.
 */
#ifndef SKV_STORE_CONN_H
#define SKV_STORE_CONN_H

#include "daemon/store/replies.h"
#include "daemon/store/transport.h"

#define SKV_STORE_BATCH (64u << 10)
#define SKV_STORE_PIECE (128u << 10) /* bytes that are read at once */

struct skv_store_conn {
	const struct skv_store_config *config;
	struct skv_store_tls *tls; /* NULL: without */
	struct skv_store_address address;
	struct skv_store_resolver resolver;
	struct skv_store_transport transport;
	struct skv_store_replies replies;
	char batch[SKV_STORE_BATCH];
	size_t n_batch;
	char *large; /* a command, sent after the batch; NULL: there is none */
	size_t n_large, n_sent; /* bytes of batch and `large` */
	uint64_t backoff_ms, retry_ns; /* 0: none; not before that */
	char why[SKV_STORE_TEXT]; /* of the last failure */
};

/* config and tls must outlive it. NULL: no memory. */
struct skv_store_conn *skv_store_conn_new(const struct skv_store_config *, struct skv_store_tls *,
                                          const struct skv_store_address *);
struct skv_store_conn *skv_store_conn_free(struct skv_store_conn *);

/*
 * Open, with password and database set, when this returns 0, before the deadline and in the time that the configuration
 * allows. -EHOSTDOWN: it is not to be tried yet. All errors have their text in `why`. An open connection that the
 * server has closed, or on which something came that nobody asked for, is made again.
 */
int skv_store_conn_open(struct skv_store_conn *, uint64_t deadline_ns);
bool skv_store_conn_is_open(const struct skv_store_conn *);
/* It failed, with a text in `why`, which gets the server's name before it: closed, and not to be tried for a while. */
void skv_store_conn_down(struct skv_store_conn *);
/* The server did what it is there for. */
void skv_store_conn_succeeded(struct skv_store_conn *);

/* Is there room for another command? */
bool skv_store_conn_has_room(const struct skv_store_conn *);
/* To be sent, when there is room. -ENOMEM. */
int skv_store_conn_command(struct skv_store_conn *, int n, const char **args, const size_t *bytes);
/*
 * What can be done now, without waiting: commands are sent; bytes, of which `piece` has room for SKV_STORE_PIECE, are
 * read, and parts of replies go to the function of `replies`. 1: something was done; 0: nothing, poll(2) says when;
 * negative errno.
 */
int skv_store_conn_send(struct skv_store_conn *);
int skv_store_conn_receive(struct skv_store_conn *, char *piece);
/* What poll(2) has to wait for. */
short skv_store_conn_events(const struct skv_store_conn *);

/* A command and its one reply, the parts of which go to fn. 0, -ETIMEDOUT or negative errno. */
int skv_store_conn_ask(struct skv_store_conn *, int n, const char **args, skv_store_part_fn fn, void *ctx,
                       uint64_t deadline_ns);

#endif
