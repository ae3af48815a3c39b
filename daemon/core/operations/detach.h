/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/operations/detach.h - detaches a sequence from its holder, in as many turns as needed. See detach.c. */
#ifndef SKV_CORE_DETACH_H
#define SKV_CORE_DETACH_H

#include "daemon/core/sequences/validate.h"
#include "daemon/core/state/core-priv.h"

struct skv_detach {
	enum {
		SKV_DETACH_JOINT,   /* decides whether the last commit counts (joint.h) */
		SKV_DETACH_REPLAY,  /* carries out the eviction journal */
		SKV_DETACH_CHECK,   /* validates the page tables and marks the pages that they name */
		SKV_DETACH_TAKE,    /* makes the sequence the owner of its pages */
		SKV_DETACH_RELEASE, /* drops references to pages that the tables do not name */
		SKV_DETACH_TRIM,    /* frees sequence memory beyond the committed length */
		SKV_DETACH_REMOVE,  /* removes an anonymous or corrupt sequence */
	} phase;
	uint32_t at; /* progress within the phase: page or journal entry */
	uint64_t offset; /* progress within the phase: file offset */
	bool gone;    /* the client has ended, and did not release the sequence; set after skv_detach_begin() */
	bool corrupt;
	char why[256]; /* why the sequence is corrupt */
	struct skv_walk walk;
};

/* Begins to detach a sequence that `client` holds. 0, -ENOMEM. */
int skv_detach_begin(struct skv_core *, uint32_t seq, uint32_t client, struct skv_detach *);
/*
 * Continues to detach the sequence as far as *units go. SKV_DONE: the sequence is detached, or removed because it was
 * anonymous or invalid (then `corrupt` is set). Until SKV_DONE nothing else may touch the sequence. SKV_FAILED: out of
 * memory, and the sequence is still held. SKV_WAITS: the sequence waits for a commit of another rank (joint.h).
 */
enum skv_progress skv_detach_some(struct skv_core *, struct skv_detach *, uint32_t *units);
/* Abandons a detach and frees its memory. Pages that were handed over so far belong to the sequence. */
void skv_detach_end(struct skv_detach *);

#endif
