/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/sequences/validate.h - checks a sequence's committed page tables against the owner words. */
#ifndef SKV_CORE_VALIDATE_H
#define SKV_CORE_VALIDATE_H

#include "daemon/core/state/core-priv.h"

enum skv_mark {
	SKV_MARK_NONE = 0,
	SKV_MARK_NAMED, /* the sequence refers to the page, and its tables name it */
	SKV_MARK_OWN,   /* the page is on lease to the holder (or SEQ), and named */
};

/*
 * Makes a mark, NONE, for each page of the pool. NULL: out of memory. The marks are mapped memory: malloc() would zero
 * all of a block that was in use before, so a daemon that marks few pages of many sequences would have memory for all
 * of them.
 */
uint8_t *skv_marks_new(const struct skv_core *, uint32_t pool);
void skv_marks_free(uint8_t *marks); /* NULL is fine */

/*
 * A walk over the committed entries of a sequence's tables, which may take several turns. Entries mark the pages that
 * they name.
 */
struct skv_walk {
	uint32_t seq;   /* row */
	skv_owner own;  /* of pages that PRIVATE entries may name: LEASE(its holder), or SEQ(seq) without a holder */
	uint8_t *marks; /* [page of the pool] */
	uint32_t len;   /* committed length when the walk began */
	uint32_t table, index; /* the next entry */
	const struct skv_made *made; /* not NULL: only entries that a sealed prefix of `len` tokens has */
	int list;       /* not -1: file for the checked entries, one after the other */
	uint64_t n_entries, n_pages; /* in the list so far: entries, and pages that they name */
};
void skv_walk_begin(struct skv_core *, uint32_t seq, skv_owner own, uint8_t *marks, struct skv_walk *);

/*
 * SKV_FAILED: the system lacks memory; core.failed is the error. Everything is as it was when the work, or its last
 * turn, began. SKV_WAITS: waits for something that a client does and of which the core is not told.
 */
enum skv_progress { SKV_GOES_ON, SKV_DONE, SKV_CORRUPT, SKV_FAILED, SKV_UNWRITTEN, SKV_WAITS };
enum skv_progress skv_failed(struct skv_core *, int error);
/* Converts the result of a function that returns 0: complete, 1: there is more, or a negative errno. */
enum skv_progress skv_progress_of(struct skv_core *, int r);
/*
 * Checks and marks, as far as *units go. SKV_CORRUPT: reported already, and skv_core_why() says what is wrong.
 * SKV_UNWRITTEN: the system has no memory for the list.
 */
enum skv_progress skv_walk_check(struct skv_core *, struct skv_walk *, uint32_t *units);
/* A second walk: pages marked OWN become the sequence's, SEQ(seq), and their marks NONE. */
enum skv_progress skv_walk_take(struct skv_core *, struct skv_walk *, uint32_t *units);
/*
 * A second walk: the child gets references to all marked pages, and entries of pages marked OWN become SHARED. Marks
 * become NONE. SKV_FAILED: entries and references agree as far as the walk came.
 */
enum skv_progress skv_walk_share(struct skv_core *, struct skv_walk *, uint32_t child, uint32_t *units);

/* Checks the header of a sequence's memory. 0, or E_CORRUPT, reported already. */
int skv_validate_header(struct skv_core *, uint32_t seq);
/*
 * Charges a sequence's memory after recovery. Is the memory in proportion: is the user within its quota, or is the
 * memory not larger than the pages that it describes? 0, or E_CORRUPT, reported already: a client that fills sequence
 * memory must not leave it behind.
 */
int skv_validate_memory(struct skv_core *, uint32_t seq);

#endif
