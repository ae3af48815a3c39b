/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/operations/detach.h - a sequence loses its holder, in as many turns as needed. See detach.c. */
#ifndef SKV_CORE_DETACH_H
#define SKV_CORE_DETACH_H

#include "daemon/core/sequences/validate.h"
#include "daemon/core/state/core-priv.h"

struct skv_detach {
	enum {
		SKV_DETACH_JOINT, /* decide which commit counts */
		SKV_DETACH_REPLAY,
		SKV_DETACH_CHECK,
		SKV_DETACH_TAKE,
		SKV_DETACH_RELEASE,
		SKV_DETACH_TRIM,
		SKV_DETACH_REMOVE, /* removes an anonymous or corrupt sequence */
	} phase;
	uint32_t at; /* progress in the phase */
	uint64_t offset; /* progress in the phase: file offset */
	bool gone;    /* its client has ended and did not only release it; set after skv_detach_begin() */
	bool corrupt;
	char why[256]; /* why it is corrupt */
	struct skv_walk walk;
};

/* Begins with a sequence that its client holds. 0, -ENOMEM. */
int skv_detach_begin(struct skv_core *, uint32_t seq, uint32_t client, struct skv_detach *);
/*
 * SKV_DONE: the sequence is detached, or, if it was anonymous or invalid (then `corrupt` is set), removed. Until then
 * nothing else may touch it. SKV_FAILED: it is still held. SKV_WAITS: it waits for another rank, joint.h.
 */
enum skv_progress skv_detach_some(struct skv_core *, struct skv_detach *, uint32_t *units);
/* Abandons the work. What was taken so far belongs to the sequence. */
void skv_detach_end(struct skv_detach *);

#endif
