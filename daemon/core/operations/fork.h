/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/operations/fork.h - forks a sequence, in as many turns as needed. See fork.c. */
#ifndef SKV_CORE_FORK_H
#define SKV_CORE_FORK_H

#include "daemon/core/sequences/validate.h"
#include "daemon/core/state/core-priv.h"
#include "daemon/core/operations/prefix.h"

struct skv_fork {
	enum {
		SKV_FORK_REPLAY,
		SKV_FORK_CHECK,
		SKV_FORK_SHARE,
		SKV_FORK_COPY,
		SKV_FORK_TRIM,
		SKV_FORK_DROP_PARENT, /* removes a corrupt parent */
		SKV_FORK_DROP_CHILD,  /* removes a child that could not be completed */
	} phase;
	uint32_t child; /* row, or SKV_NO_INDEX before it exists */
	uint32_t at;    /* progress in the phase */
	uint64_t offset; /* progress in the phase: file offset */
	int result;
	char why[256];
	char name[SKV_NAME_MAX]; /* the child's */
	uint32_t session;        /* that is to hold the child, or SKV_NO_INDEX: none */
	uint32_t n_tokens;       /* tokens of the child; SKV_ALL: all of the parent's */
	uint32_t max_tokens;     /* limit of the child, if `prefix` */
	struct skv_block_key *keys; /* owned; keys of the child's blocks if it is a sealed prefix, else NULL */
	uint32_t n_keys;
	uint8_t origin[SKV_PREFIX_ORIGIN]; /* of the keys */
	bool prefix;             /* copy only what holds tokens, and no policy state */
	struct skv_made made;    /* form of the tokens, if `prefix` */
	struct skv_walk walk;    /* over the parent */
};

/*
 * Begins with a parent that its client holds or that has no holder. The fields of `f` from `name` to `prefix` say what
 * the child is to be; for a prefix n_tokens is a number, not SKV_ALL. 0, -ENOMEM, or positive.
 */
int skv_fork_begin(struct skv_core *, uint32_t parent, struct skv_fork *f);
/* SKV_DONE: it has a result. Until then nothing else may touch parent or child. */
enum skv_progress skv_fork_some(struct skv_core *, struct skv_fork *, uint32_t *units);
/* Abandons the work. */
void skv_fork_end(struct skv_fork *);

#endif
