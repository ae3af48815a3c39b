/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/replay.h - recordings of whole steps, by what the library says that they fit (skv_step_key).
 *
 * A step of a new key runs as it comes, which also loads what a device loads at first use; the second one is
 * recorded and launched, later ones are launched. A few recordings are kept, the one that was not used for
 * longest goes.
 */
#ifndef ENG_REPLAY_H
#define ENG_REPLAY_H

#include <stdbool.h>
#include <stdint.h>
#include "engine/backend.h"

#define ENG_RECORDINGS 8u

struct eng_recording {
	uint64_t key;    /* 0: this entry is free */
	void *recording; /* NULL: the key was seen once */
	uint64_t used;   /* when */
};

struct eng_recordings {
	struct eng_recording list[ENG_RECORDINGS];
	uint64_t now;
};

/* The entry of this key; a new one has taken the place of the oldest. *ret_seen: the key was known. */
struct eng_recording *eng_recording_of(struct eng_recordings *, struct eng_backend *, uint64_t key,
                                       bool *ret_seen);

/* Forget them all: what they were made with changes. */
void eng_recordings_forget(struct eng_recordings *, struct eng_backend *);

#endif
