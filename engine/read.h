/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/read.h - read a text as a prompt, in steps of a few rows, with an observer.
 */
#ifndef ENG_READ_H
#define ENG_READ_H

#include <signal.h>
#include "engine/forward.h"

#define ENG_READ_ROWS 128u /* of a step, at most */

struct eng_reading {
	const int32_t *ids;
	uint32_t n;
	/* Of each step: which rows of the text it is about to read, and that it has; the second may be NULL. */
	void (*begins)(void *arg, uint32_t at, uint32_t rows);
	void (*ended)(void *arg);
	void *arg;
	const volatile sig_atomic_t *stop; /* raised: -EINTR; or NULL */
};

/* `f` has room for ENG_READ_ROWS rows; its tap sees what is between the two. Nothing of the text stays. -EINTR. */
int eng_read(struct eng_forward *f, struct skv_session *session, const struct eng_reading *r,
             struct eng_error *err);

#endif
