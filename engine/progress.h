/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/progress.h - how far the work is, on stderr.
 *
 * On a terminal it is one line, drawn at most ten times a second and wiped when the work ends. Elsewhere it is a line
 * now and then, so that a log says how far a long run is and that it goes on; a run of a few seconds prints none.
 * stdout gets the same in either case.
 */
#ifndef ENG_PROGRESS_H
#define ENG_PROGRESS_H

#include <stdbool.h>
#include <stdio.h>

struct eng_progress {
	FILE *to;
	bool on, terminal;
	double total, done;  /* units of work */
	double begun, drawn; /* seconds, monotonic */
	double shown;        /* the share that was last drawn */
};

/* `quiet`: draw nothing. */
void eng_progress_begin(struct eng_progress *p, FILE *to, double total, bool quiet);
/* `done` units of the total are done; `label` says what is being worked on. */
void eng_progress_show(struct eng_progress *p, double done, const char *label);
/* So many units more than were. */
void eng_progress_add(struct eng_progress *p, double units, const char *label);
void eng_progress_end(struct eng_progress *p);

/* Monotonic time in seconds. */
double eng_now(void);

#endif
