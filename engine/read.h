/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/read.h - reads a text as a prompt, in steps of a few rows, with an observer.
 */
#ifndef ENG_READ_H
#define ENG_READ_H

#include <signal.h>
#include "engine/forward.h"

#define ENG_READ_ROWS 128u /* most rows of a step */

struct eng_reading {
	const int32_t *ids;
	uint32_t n;
	/* Called before each step with its rows of the text, and after it. `ended` may be NULL. */
	void (*begins)(void *arg, uint32_t at, uint32_t rows);
	void (*ended)(void *arg);
	void *arg;
	const volatile sig_atomic_t *stop; /* set: -EINTR; or NULL */
};

/*
 * Reads a text. `f` must have room for ENG_READ_ROWS rows; its tap is called between `begins` and `ended`. The
 * sequence is dropped afterwards. -EINTR, or another negative errno.
 */
int eng_read(struct eng_forward *f, struct skv_session *session, const struct eng_reading *r,
             struct eng_error *err);

#endif
