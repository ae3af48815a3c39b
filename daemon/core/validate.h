/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/validate.h - a sequence's committed page tables, checked against the owner words. */
#ifndef SKV_CORE_VALIDATE_H
#define SKV_CORE_VALIDATE_H

#include "daemon/core/core-priv.h"

enum skv_mark {
	SKV_MARK_NONE = 0,
	SKV_MARK_NAMED, /* the sequence refers to the page, and its tables name it */
	SKV_MARK_OWN,   /* on lease to the holder, and named */
};

/*
 * A mark for each page of the pool, NONE. NULL: there is no memory. It is the system's own: malloc() would write zeros to all of it when it
 * has had such a block before, and a daemon that marks few pages of many sequences would have memory for all.
 */
uint8_t *skv_marks_new(const struct skv_core *, uint32_t pool);
void skv_marks_free(uint8_t *marks); /* NULL is fine */

/* A walk over the committed entries of a sequence's tables, which may take several turns. Entries mark what they name. */
struct skv_walk {
	uint32_t seq;   /* row */
	skv_owner own;  /* of pages that PRIVATE entries may name: LEASE(its holder), or SEQ(seq) where nobody holds it */
	uint8_t *marks; /* [page of the pool] */
	uint32_t len;   /* committed, when the walk began */
	uint32_t table, index; /* the next entry ... */
	const struct skv_made *made; /* not NULL: of what a sealed prefix of `len` tokens has, alone */
	int list;       /* not -1: entries that were checked are written there, one after the other ... */
	uint64_t n_entries, n_pages; /* ... so many, so far, that name so many pages */
};
void skv_walk_begin(struct skv_core *, uint32_t seq, skv_owner own, uint8_t *marks, struct skv_walk *);

/*
 * SKV_FAILED: the system has no memory for it, core.failed says with what error. It is as it was when it began, or the turn.
 * SKV_WAITS: for what a client does, of which the core hears nothing.
 */
enum skv_progress { SKV_GOES_ON, SKV_DONE, SKV_CORRUPT, SKV_FAILED, SKV_UNWRITTEN, SKV_WAITS };
enum skv_progress skv_failed(struct skv_core *, int error);
/* Of what says 0: all is done, 1: there is more, or negative errno. */
enum skv_progress skv_progress_of(struct skv_core *, int r);
/*
 * Check and mark, as far as *units go. SKV_CORRUPT has been reported, and skv_core_why() says what it is. SKV_UNWRITTEN: the
 * system has no memory for the list, if there is one.
 */
enum skv_progress skv_walk_check(struct skv_core *, struct skv_walk *, uint32_t *units);
/* Again from the beginning: what is marked OWN becomes the sequence's, SEQ(seq), and is marked NONE. */
enum skv_progress skv_walk_take(struct skv_core *, struct skv_walk *, uint32_t *units);
/*
 * Again: the child refers to all that is marked, and entries that were OWN are SHARED. Marks become NONE. SKV_FAILED: as far as it came,
 * entries and references agree.
 */
enum skv_progress skv_walk_share(struct skv_core *, struct skv_walk *, uint32_t child, uint32_t *units);

/* Is the header of its memory believable? 0, or E_CORRUPT, reported. */
int skv_validate_header(struct skv_core *, uint32_t seq);
/*
 * Its memory, made what its last commit says, is charged. Is it in proportion: is its user within the quota, or is it less
 * than the pages that it describes? 0, or E_CORRUPT, reported: a client that fills memory does not leave it behind.
 */
int skv_validate_memory(struct skv_core *, uint32_t seq);

#endif
