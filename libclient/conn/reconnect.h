/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/conn/reconnect.h - connects a client to the next daemon after its daemon's end: see reconnect.c. */
#ifndef SKV_CLIENT_CONN_RECONNECT_H
#define SKV_CLIENT_CONN_RECONNECT_H

#include <stdbool.h>

struct request;
struct skv_client;

#define RECONNECT_EVERY_MS 5 /* interval between attempts to connect */

/* All functions except reconnect_pin() and reconnect_unpin() need client->lock. No function of this header waits. */

/*
 * The connection ended without a message: reconnect. The connection breaks for good if the daemon had ended it, HELLO
 * was not answered yet, or the client is leaving.
 */
void reconnect_begin(struct skv_client *c);
/* If the connection is lost, try to connect. */
void reconnect_turn(struct skv_client *c);
/* Is waiting for a daemon pointless, because no daemon has served at the socket for a while? */
bool reconnect_is_vain(const struct skv_client *c);
/* Handle the answer to a request of reconnect.c. Consumes the request. */
void reconnect_answered(struct skv_client *c, struct request *r);

/*
 * A thread pins while it does several things that the daemon must see as one, such as unholding pages and posting
 * LEASE_PUT. A daemon to which the client reconnects is then told what the client has before or after all of them,
 * never in between. A thread must not wait for the daemon while it pins.
 */
void reconnect_pin(struct skv_client *c);
void reconnect_unpin(struct skv_client *c);
/* Pin a reply that gives a sequence to a thread, until the thread has acted on the reply. Needs client->lock. */
void reconnect_pin_reply(struct skv_client *c, struct request *r);
void reconnect_unpin_reply(struct skv_client *c, struct request *r);

#endif
