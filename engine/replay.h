/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/replay.h - recordings of whole steps, by the library's key (skv_step_key).
 *
 * The first step with a new key runs normally, which also loads what a device loads at first use. The second one is
 * recorded and launched; later ones are launched. A few recordings are kept; the least recently used one is dropped.
 */
#ifndef ENG_REPLAY_H
#define ENG_REPLAY_H

#include <stdbool.h>
#include <stdint.h>
#include "engine/backend.h"

#define ENG_RECORDINGS 8u

struct eng_recording {
	uint64_t key;    /* 0: this entry is free */
	void *recording; /* NULL: the key was seen once, not recorded yet */
	uint64_t used;   /* time of the last use */
};

struct eng_recordings {
	struct eng_recording list[ENG_RECORDINGS];
	uint64_t now;
};

/* Returns the entry of this key; a new entry replaces the least recently used one. *ret_seen: the key was known. */
struct eng_recording *eng_recording_of(struct eng_recordings *, struct eng_backend *, uint64_t key,
                                       bool *ret_seen);

/* Drops all recordings, because memory that they use changes. */
void eng_recordings_forget(struct eng_recordings *, struct eng_backend *);

#endif
