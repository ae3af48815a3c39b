/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/conn/owned.h - the sessions and sequences that this client has, according to the daemon's replies. */
#ifndef SKV_CLIENT_CONN_OWNED_H
#define SKV_CLIENT_CONN_OWNED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pool;
struct request;

struct held {
	struct held_session {
		uint32_t id;
		struct pool *pool;
	} *sessions;
	struct held_seq {
		uint32_t session, id;
	} *seqs;
	size_t n_sessions, n_seqs, cap_sessions, cap_seqs;
};

/* Update sessions, sequences and pages on lease by an answered request. False: out of memory. Needs client->lock. */
bool held_update(struct held *h, const struct request *r);
void held_close(struct held *h, uint32_t session); /* removes a session and its sequences */
struct held_session *held_session(const struct held *h, uint32_t id); /* NULL: there is no such session */
void held_free(struct held *h);

#endif
