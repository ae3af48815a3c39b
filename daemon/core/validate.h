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
struct skv_validated {
	uint32_t *own; /* pages on lease that the tables name */
	uint64_t n_own, n_named;
};
/*
 * Check and mark. 0: `ret` and the marks tell what the tables name, until skv_validate_end(). E_CORRUPT:
 * nothing is marked. Negative: out of memory.
 */
int skv_validate_begin(struct skv_core *, uint32_t seq, uint32_t client, struct skv_validated *ret);
void skv_validate_end(struct skv_core *, uint32_t seq, struct skv_validated *);
/* Recover the memory of a sequence without a holder, for its next holder. 0 or E_CORRUPT. */
int skv_validate_reopen(struct skv_core *, uint32_t seq);
/* In the committed tables of `seq`, FULL entries of pages that are marked OWN become SHARED. */
void skv_validate_rewrite_shared(struct skv_core *, uint32_t seq);

#endif
