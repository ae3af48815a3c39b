/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/reconnect.h - the daemon died, or was restarted: the client goes on with the next one. See reconnect.c. */
#ifndef SKV_CLIENT_RECONNECT_H
#define SKV_CLIENT_RECONNECT_H

#include <stdbool.h>

struct request;
struct skv_client;

#define RECONNECT_EVERY_MS 5 /* a daemon is looked for so often */

/* All but the pins need client->lock, and never wait. */

/* The connection ended without a word. Breaks it for good where it was the daemon's will, or there was none yet. */
void reconnect_begin(struct skv_client *c);
/* Look for a daemon, if there is none. */
void reconnect_turn(struct skv_client *c);
/* There has been nobody at the socket for a while: waiting for it makes no sense. */
bool reconnect_is_vain(const struct skv_client *c);
/* The answer to a request of this file (consumed). */
void reconnect_answered(struct skv_client *c, struct request *r);

/*
 * What a thread does in several steps that are one to the daemon, such as letting go of pages and posting LEASE_PUT, it does between
 * these two: a daemon to which the client reconnects is told what it has before or after them. No waiting for the daemon in between.
 */
void reconnect_pin(struct skv_client *c);
void reconnect_unpin(struct skv_client *c);
/* The same, from a reply that gives a sequence to the thread that has acted on it. With client->lock. */
void reconnect_pin_reply(struct skv_client *c, struct request *r);
void reconnect_unpin_reply(struct skv_client *c, struct request *r);

#endif
