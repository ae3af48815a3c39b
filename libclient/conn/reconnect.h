/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libclient/conn/reconnect.h - a client goes on with the next daemon when its daemon died or was restarted: see
 * reconnect.c.
 */
#ifndef SKV_CLIENT_CONN_RECONNECT_H
#define SKV_CLIENT_CONN_RECONNECT_H

#include <stdbool.h>

struct request;
struct skv_client;

#define RECONNECT_EVERY_MS 5 /* interval between attempts to connect */

/* All but reconnect_pin() and reconnect_unpin() need client->lock. None of these functions waits. */

/*
 * The connection ended without a message. Breaks it for good if the daemon ended it, HELLO was not answered yet, or the
 * client is leaving.
 */
void reconnect_begin(struct skv_client *c);
/* Try to connect, if the connection is lost. */
void reconnect_turn(struct skv_client *c);
/* No daemon has served at the socket for a while: waiting for one makes no sense. */
bool reconnect_is_vain(const struct skv_client *c);
/* Handle the answer to a request of reconnect.c (consumed). */
void reconnect_answered(struct skv_client *c, struct request *r);

/*
 * A thread pins while it does several steps that must be one to the daemon, such as unholding pages and posting
 * LEASE_PUT. A daemon to which the client reconnects is then told what the client has before or after them, never in
 * between. A thread must not wait for the daemon while it pins.
 */
void reconnect_pin(struct skv_client *c);
void reconnect_unpin(struct skv_client *c);
/* The same for a reply that gives a sequence, until its thread has acted on it. Needs client->lock. */
void reconnect_pin_reply(struct skv_client *c, struct request *r);
void reconnect_unpin_reply(struct skv_client *c, struct request *r);

#endif
