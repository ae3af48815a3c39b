/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/held.h - sessions and sequences that the daemon has told a client it has, as its replies came. */
#ifndef SKV_CLIENT_HELD_H
#define SKV_CLIENT_HELD_H

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

/* An answered request: what its reply says, and that pages are on lease. False: out of memory. client->lock is held. */
bool held_update(struct held *h, const struct request *r);
void held_close(struct held *h, uint32_t session); /* with its sequences */
struct held_session *held_session(const struct held *h, uint32_t id); /* NULL: none */
void held_free(struct held *h);

#endif
