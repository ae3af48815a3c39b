/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/replay.h - keeps recordings of whole steps, found by the client library's key of a step (skv_step_key()).
 *
 * The first step with a new key runs without a recording, so that the device loads kernels that it loads at their first
 * use. The second step with that key is recorded, and the recording is launched. Later steps with the key launch the
 * recording. Only ENG_RECORDINGS recordings are kept; a new one replaces the least recently used one.
 */
#ifndef ENG_REPLAY_H
#define ENG_REPLAY_H

#include <stdbool.h>
#include <stdint.h>
#include "engine/backend.h"

#define ENG_RECORDINGS 8u

struct eng_recording {
	uint64_t key;    /* 0: this entry is free */
	void *recording; /* NULL: a step had this key once, but was not recorded */
	uint64_t used;   /* value of eng_recordings.now at the last use */
};

struct eng_recordings {
	struct eng_recording list[ENG_RECORDINGS];
	uint64_t now;
};

/*
 * Returns the entry of a key. If there is none, a new entry replaces the least recently used one. *ret_seen tells
 * whether the key had an entry before.
 */
struct eng_recording *eng_recording_of(struct eng_recordings *, struct eng_backend *, uint64_t key,
                                       bool *ret_seen);

/* Drops all recordings; call this before memory that recordings use changes. */
void eng_recordings_forget(struct eng_recordings *, struct eng_backend *);

#endif
