/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/read-text.h - runs a text through a model as a prompt, in steps of up to ENG_READ_ROWS rows, and calls an
 * observer before and after each step.
 */
#ifndef ENG_READ_TEXT_H
#define ENG_READ_TEXT_H

#include <signal.h>
#include "engine/forward.h"

#define ENG_READ_ROWS 128u /* most rows in a step */

struct eng_reading {
	const int32_t *ids;
	uint32_t n;
	/*
	 * begins() is called before each step, with the position of the step's first row and the number of its rows;
	 * ended() is called after the step. `ended` may be NULL.
	 */
	void (*begins)(void *arg, uint32_t at, uint32_t rows);
	void (*ended)(void *arg);
	void *arg;
	const volatile sig_atomic_t *stop; /* if a signal handler sets it, eng_read() returns -EINTR; may be NULL */
};

/*
 * Reads a text into a new sequence, which is dropped at the end. `f` must have room for ENG_READ_ROWS rows; the tap of
 * `f` is called between begins() and ended(). Returns 0, -EINTR, or another negative errno.
 */
int eng_read(struct eng_forward *f, struct skv_session *session, const struct eng_reading *r,
             struct eng_error *err);

#endif
