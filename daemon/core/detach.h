/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/core/detach.h - a sequence loses its holder, in as many turns as it takes. See detach.c. */
#ifndef SKV_CORE_DETACH_H
#define SKV_CORE_DETACH_H

#include "daemon/core/core-priv.h"
#include "daemon/core/validate.h"

struct skv_detach {
	enum {
		SKV_DETACH_JOINT, /* which commit counts */
		SKV_DETACH_REPLAY,
		SKV_DETACH_CHECK,
		SKV_DETACH_TAKE,
		SKV_DETACH_RELEASE,
		SKV_DETACH_TRIM,
		SKV_DETACH_REMOVE, /* of an anonymous one, and a corrupt one */
	} phase;
	uint32_t at; /* in the phase */
	uint64_t offset; /* in the phase, of the file */
	bool gone;    /* its client has ended, and not only let go of it; after skv_detach_begin() */
	bool corrupt;
	char why[256]; /* it is corrupt */
	struct skv_walk walk;
};

/* Begin with a sequence that its client holds. 0, -ENOMEM. */
int skv_detach_begin(struct skv_core *, uint32_t seq, uint32_t client, struct skv_detach *);
/*
 * SKV_DONE: it is detached, or, anonymous or (then `corrupt`) not believable, removed. Nothing else may touch the sequence
 * until then. SKV_FAILED: it is still held. SKV_WAITS: for another rank, joint.h.
 */
enum skv_progress skv_detach_some(struct skv_core *, struct skv_detach *, uint32_t *units);
/* Give it up in the middle. What was taken so far is the sequence's. */
void skv_detach_end(struct skv_detach *);

#endif
