/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/sequences/validate.h - checks a sequence's committed page tables against the owner words. */
#ifndef SKV_CORE_VALIDATE_H
#define SKV_CORE_VALIDATE_H

#include "daemon/core/state/core-priv.h"

enum skv_mark {
	SKV_MARK_NONE = 0,
	SKV_MARK_NAMED, /* a SHARED entry names the page, and the sequence has a reference to it */
	SKV_MARK_OWN,   /* a PRIVATE entry names the page, which is the holder's (LEASE) or the sequence's (SEQ) */
};

/*
 * Makes an array of marks, one for each page of the pool, all SKV_MARK_NONE. NULL: out of memory. The marks are memory
 * of mmap(), so only marks that are set take memory: calloc() would zero, and thereby allocate, all marks of a block
 * that was in use before.
 */
uint8_t *skv_marks_new(const struct skv_core *, uint32_t pool);
void skv_marks_free(uint8_t *marks); /* accepts NULL */

/*
 * A walk over the committed entries of a sequence's tables, in as many turns as needed. The first walk marks the pages
 * that the entries name.
 */
struct skv_walk {
	uint32_t seq;   /* row of the sequence */
	skv_owner own;  /* owner word of pages of PRIVATE entries: LEASE(the holder), or SEQ(seq) without a holder */
	uint8_t *marks; /* [page of the pool]: enum skv_mark */
	uint32_t len;   /* committed length when the walk began */
	uint32_t table, index; /* the next entry */
	const struct skv_made *made; /* not NULL: visit only entries that a sealed prefix of `len` tokens has */
	int list;       /* file to which checked entries are written, one after the other; -1: no file */
	uint64_t n_entries, n_pages; /* numbers of entries in `list` so far, and of pages that they name */
};
void skv_walk_begin(struct skv_core *, uint32_t seq, skv_owner own, uint8_t *marks, struct skv_walk *);

/*
 * Result of work in turns. SKV_FAILED: the system lacks memory, and core.failed is the negative errno; another call
 * continues the work. SKV_WAITS: the work waits for an action of a client that the core does not notice by itself.
 */
enum skv_progress { SKV_GOES_ON, SKV_DONE, SKV_CORRUPT, SKV_FAILED, SKV_UNWRITTEN, SKV_WAITS };
/* Sets core.failed and returns SKV_FAILED. */
enum skv_progress skv_failed(struct skv_core *, int error);
/* Converts the result of a function that returns 0 (complete), 1 (there is more) or a negative errno. */
enum skv_progress skv_progress_of(struct skv_core *, int r);
/*
 * First walk: checks the entries and marks their pages, as far as *units go. SKV_CORRUPT: the sequence is corrupt; this
 * was reported to the callback, and skv_core_why() says what is wrong. SKV_UNWRITTEN: the list cannot be written.
 */
enum skv_progress skv_walk_check(struct skv_core *, struct skv_walk *, uint32_t *units);
/* Second walk, for a detach: pages marked OWN get the owner SEQ(seq), and their marks become NONE. */
enum skv_progress skv_walk_take(struct skv_core *, struct skv_walk *, uint32_t *units);
/*
 * Second walk, for a fork: the child gets references to all marked pages, and entries of pages marked OWN become
 * SHARED. The marks become NONE. SKV_FAILED: up to where the walk came, entries and references agree.
 */
enum skv_progress skv_walk_share(struct skv_core *, struct skv_walk *, uint32_t child, uint32_t *units);

/* Checks the header of a sequence's memory. 0; E_CORRUPT: it is invalid, which was reported to the callback. */
int skv_validate_header(struct skv_core *, uint32_t seq);
/*
 * Measures and charges a sequence's memory after recovery, and checks its size. 0: the user is within its quota, or the
 * memory is not larger than the pages that it describes. E_CORRUPT: the memory is too large, which was reported to the
 * callback: a client must not fill sequence memory and leave it behind.
 */
int skv_validate_memory(struct skv_core *, uint32_t seq);

#endif
