/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/progress.h - one line that says how far the work is, on a terminal only.
 *
 * It is drawn on stderr at most ten times a second and wiped when the work ends, so that what
 * stdout gets is the same with and without a terminal.
 */
#ifndef ENG_PROGRESS_H
#define ENG_PROGRESS_H

#include <stdbool.h>
#include <stdio.h>

struct eng_progress {
	FILE *to;
	bool on;
	double total;        /* units of work */
	double begun, drawn; /* seconds, monotonic */
};

/* `quiet`: draw nothing even on a terminal. */
void eng_progress_begin(struct eng_progress *p, FILE *to, double total, bool quiet);
/* `done` units of the total are done; `label` says what is being worked on. */
void eng_progress_show(struct eng_progress *p, double done, const char *label);
void eng_progress_end(struct eng_progress *p);

/* Monotonic time in seconds. */
double eng_now(void);

#endif
