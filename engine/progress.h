/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/progress.h - shows the progress of work on stderr.
 *
 * On a terminal it is one line, drawn at most ten times a second and erased when the work ends. Otherwise it prints a
 * line from time to time, so that a log shows the progress of a long run; a run of a few seconds prints none. stdout
 * is not affected.
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
	double shown;        /* the share drawn last */
};

/* `quiet`: draw nothing. */
void eng_progress_begin(struct eng_progress *p, FILE *to, double total, bool quiet);
/* Sets the work done to `done` units; `label` names the current work. */
void eng_progress_show(struct eng_progress *p, double done, const char *label);
/* Adds `units` to the work done. */
void eng_progress_add(struct eng_progress *p, double units, const char *label);
void eng_progress_end(struct eng_progress *p);

/* Monotonic time in seconds. */
double eng_now(void);

#endif
