/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/operations/fork.h - forks a sequence, in as many turns as needed. See fork.c. */
#ifndef SKV_CORE_FORK_H
#define SKV_CORE_FORK_H

#include "daemon/core/sequences/validate.h"
#include "daemon/core/state/core-priv.h"
#include "daemon/core/operations/prefix.h"

struct skv_fork {
	enum {
		SKV_FORK_REPLAY, /* carries out the parent's eviction journal */
		SKV_FORK_CHECK,  /* validates the parent's page tables and marks the pages that they name */
		SKV_FORK_SHARE,  /* makes the pages SHARED and gives the child references to them */
		SKV_FORK_COPY,   /* copies the parent's memory to the child's */
		SKV_FORK_TRIM,   /* frees the child's sequence memory beyond its committed length */
		SKV_FORK_DROP_PARENT, /* removes a corrupt parent */
		SKV_FORK_DROP_CHILD,  /* removes a child that could not be completed */
	} phase;
	uint32_t child; /* row of the child; SKV_NO_INDEX: the child does not exist yet */
	uint32_t at;    /* progress within the phase: page, table or journal entry */
	uint64_t offset; /* progress within the phase: file offset */
	int result;
	char why[256];
	char name[SKV_NAME_MAX]; /* name of the child */
	uint32_t session;        /* row of the session that is to hold the child; SKV_NO_INDEX: no session */
	uint32_t n_tokens;       /* number of tokens of the child; SKV_ALL: all tokens of the parent */
	uint32_t max_tokens;     /* the child's limit of tokens, if `prefix` is set */
	struct skv_block_key *keys; /* owned; keys of the child's blocks if it is a sealed prefix, else NULL */
	uint32_t n_keys;
	uint8_t origin[SKV_PREFIX_ORIGIN]; /* origin that the keys are computed from */
	bool prefix;             /* copy only pages and records that hold tokens, and no policy state */
	struct skv_made made;    /* form of the tokens, if `prefix` is set */
	struct skv_walk walk;    /* walk over the parent's tables */
};

/*
 * Begins to fork a parent that a client holds or that has no holder. The caller fills in the fields of `f` from `name`
 * to `made`, which describe the child; if `prefix` is set, n_tokens must not be SKV_ALL. 0, -ENOMEM, or E_INVALID: the
 * parent has fewer tokens.
 */
int skv_fork_begin(struct skv_core *, uint32_t parent, struct skv_fork *f);
/*
 * Continues a fork as far as *units go. SKV_DONE: `result` is set. Before that nothing else may touch parent or child.
 */
enum skv_progress skv_fork_some(struct skv_core *, struct skv_fork *, uint32_t *units);
/* Abandons a fork and frees its memory. */
void skv_fork_end(struct skv_fork *);

#endif
