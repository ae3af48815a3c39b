/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/support/core-actor.h - clients of the core that keep the model (core-model.h) up to date. They know what they
 * hold; test-core-random chooses their actions at random.
 */
#ifndef SKV_TESTS_CORE_ACTOR_H
#define SKV_TESTS_CORE_ACTOR_H

#include "tests/support/core-model.h"

struct actor {
	struct peer peer;
	uint8_t *maps[M_SEGMENTS];
	bool whole; /* one mapping of all segments: host memory */
	bool gone[M_SEGMENTS]; /* device segments reported as gone, not yet unmapped and acknowledged */
};
/* The holder's view of a sequence. */
struct grip {
	struct held held;
	/* shared pages replaced or evicted, to be released */
	uint32_t pending[M_TABLE * M_TABLES], n_pending;
};
extern struct actor actors[M_CLIENTS];
extern struct grip grips[M_SEQS];
extern uint32_t client_ids[M_CLIENTS], seq_ids[M_SEQS]; /* ids that the core gave them */
extern struct skv_core_config actor_config;             /* of the core under test */

/* Maps announced segments and records those that are gone. */
void actor_hear(uint32_t i);
void actor_unmap(struct actor *, uint32_t segment); /* a device segment */
void actor_unmap_all(struct actor *);
/* Writes the client's mark into a page that it owns, and checks the bytes that were there. */
void actor_sign(uint32_t i, uint32_t page);
/* Charges what it has written to its newest sequence, as the core does before it gives a lease or makes a sequence. */
void actor_measure(uint32_t i);
/* Returns false if there is no room; the model must agree. */
bool actor_lease(uint32_t i, uint32_t least, uint32_t most);

struct grip *grip_of(const struct m_seq *);
/* Records a new sequence of client i in the model, and maps its memory. */
void actor_made(struct m_seq *, uint32_t i, const char *name, const struct skv_core_seq_info *);
void actor_release(struct m_seq *, struct grip *);
/* Pages that the dropped sequence owned go back to the client's stock. */
void actor_take_back(struct m_seq *, struct peer *);

#endif
