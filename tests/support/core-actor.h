/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/core-actor.h - clients of the core that keep the model (core-model.h) up to date: what they have in
 * hand. What they do at random is test-core-random's.
 */
#ifndef SKV_TESTS_CORE_ACTOR_H
#define SKV_TESTS_CORE_ACTOR_H

#include "tests/support/core-model.h"

struct actor {
	struct peer peer;
	uint8_t *maps[M_SEGMENTS];
	bool whole; /* one mapping: host memory */
	bool gone[M_SEGMENTS]; /* of a device: told of its end; not unmapped and not acknowledged yet */
};
/* The holder's view of a sequence. */
struct grip {
	struct held held;
	/* shared pages replaced or evicted, to be released */
	uint32_t pending[M_TABLE * M_TABLES], n_pending;
};
extern struct actor actors[M_CLIENTS];
extern struct grip grips[M_SEQS];
extern uint32_t client_ids[M_CLIENTS], seq_ids[M_SEQS]; /* what the core calls them */
extern struct skv_core_config actor_config;             /* of the core */

/* Memory that was announced is mapped, the end of segments is noted. */
void actor_hear(uint32_t i);
void actor_unmap(struct actor *, uint32_t segment); /* of a device */
void actor_unmap_all(struct actor *);
/* The client's mark in a page that is its own. */
void actor_sign(uint32_t i, uint32_t page);
/* false: there is no room, as the model says. */
bool actor_lease(uint32_t i, uint32_t least, uint32_t most);

struct grip *grip_of(const struct m_seq *);
/* A new sequence of client i: its row, and its memory is mapped. */
void actor_made(struct m_seq *, uint32_t i, const char *name, const struct skv_core_seq_info *);
void actor_release(struct m_seq *, struct grip *);
/* Own pages of a sequence that is gone from the core: the client's again. */
void actor_take_back(struct m_seq *, struct peer *);

#endif
