/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/fork.h - a sequence is forked, in as many turns as it takes. See fork.c. */
#ifndef SKV_CORE_FORK_H
#define SKV_CORE_FORK_H

#include "daemon/core/core-priv.h"
#include "daemon/core/prefix.h"
#include "daemon/core/validate.h"

struct skv_fork {
	enum {
		SKV_FORK_REPLAY,
		SKV_FORK_CHECK,
		SKV_FORK_SHARE,
		SKV_FORK_COPY,
		SKV_FORK_TRIM,
		SKV_FORK_DROP_PARENT, /* a corrupt one */
		SKV_FORK_DROP_CHILD,  /* that could not be made */
	} phase;
	uint32_t child; /* row, once it is there */
	uint32_t at;    /* in the phase */
	uint64_t offset; /* in the phase, of files */
	int result;
	char why[256];
	char name[SKV_NAME_MAX]; /* the child's */
	uint32_t session;        /* that is to hold it, or SKV_NO_INDEX: nobody */
	uint32_t n_tokens;       /* that it has; SKV_ALL: all */
	uint32_t max_tokens;     /* that it may have; of a prefix */
	struct skv_block_key *keys; /* the child is a sealed prefix of these; owned; NULL: it is none */
	uint32_t n_keys;
	uint8_t origin[SKV_PREFIX_ORIGIN]; /* theirs */
	bool prefix;             /* of what holds tokens alone: nothing of what a policy knows or keeps besides */
	struct skv_made made;    /* of a prefix: in which form */
	struct skv_walk walk;    /* over the parent */
};

/*
 * Begin with a parent that its client holds, or that nobody does: `f` says, from `name` on to `prefix`, what the child is to be; a
 * prefix is of so many tokens. 0, -ENOMEM, or positive.
 */
int skv_fork_begin(struct skv_core *, uint32_t parent, struct skv_fork *f);
/* SKV_DONE: it has a result. Nothing else may touch parent or child until then. */
enum skv_progress skv_fork_some(struct skv_core *, struct skv_fork *, uint32_t *units);
/* Give it up in the middle. */
void skv_fork_end(struct skv_fork *);

#endif
