/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/validate.h - a sequence's committed page tables, checked against the owner words. */
#ifndef SKV_CORE_VALIDATE_H
#define SKV_CORE_VALIDATE_H

#include "daemon/core/core-priv.h"

enum skv_mark {
	SKV_MARK_NONE = 0,
	SKV_MARK_REF = 1,   /* the sequence holds a reference ... */
	SKV_MARK_NAMED = 2, /* ... and its tables name the page */
	SKV_MARK_OWN = 3,   /* on lease to the holder, and named */
	SKV_MARK_RELEASE = 4,
};

/*
 * A walk over the committed entries of a sequence's tables, which may take several turns. The caller has marked the
 * sequence's references; entries mark what they name.
 */
struct skv_walk {
	uint32_t seq, client; /* rows: the sequence, and its holder */
	uint8_t *marks;       /* [page of the pool] */
	uint32_t len;         /* committed, when the walk began */
	uint32_t table, index; /* the next entry */
	uint64_t n_own, n_named;
};
void skv_walk_begin(struct skv_core *, uint32_t seq, uint32_t client, uint8_t *marks, struct skv_walk *);

enum skv_progress { SKV_GOES_ON, SKV_DONE, SKV_CORRUPT };
/* Check and mark, as far as *units go. SKV_CORRUPT has been reported, and skv_core_why() says what it is. */
enum skv_progress skv_walk_check(struct skv_core *, struct skv_walk *, uint32_t *units);
/* Again from the beginning: what is marked OWN becomes the sequence's, SEQ(seq), and is marked NONE. */
enum skv_progress skv_walk_take(struct skv_core *, struct skv_walk *, uint32_t *units);
/* Again, at once: entries whose pages are marked OWN become what fn() makes of them. */
void skv_walk_each_own(struct skv_core *, const struct skv_walk *, skv_pte (*fn)(struct skv_core *, skv_pte, void *),
                       void *data);

/* Is the header of its memory believable? 0, or E_CORRUPT, reported. */
int skv_validate_header(struct skv_core *, uint32_t seq);

#endif
