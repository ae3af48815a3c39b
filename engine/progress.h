/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/progress.h - shows the progress of work on stderr.
 *
 * On a terminal the progress is one line, which is redrawn at most ten times a second and erased when the work ends. If
 * the stream is not a terminal, a line is printed from time to time, so that a log shows the progress of a long run; a
 * run of a few seconds prints no line. Nothing is written to stdout.
 */
#ifndef ENG_PROGRESS_H
#define ENG_PROGRESS_H

#include <stdbool.h>
#include <stdio.h>

#define ENG_PROGRESS_LINE 256u /* bytes */

struct eng_progress {
	FILE *to;
	bool on, terminal;
	double total, done;  /* units of work: all, and done so far */
	double begun, drawn; /* time of the beginning and of the last drawing: seconds, monotonic */
	double shown;        /* share of the work at the last drawing */
};

/* Begins the progress of `total` units of work. If `quiet` is true, nothing is drawn. */
void eng_progress_begin(struct eng_progress *p, FILE *to, double total, bool quiet);
/* Sets the work done to `done` units; `label` describes the current work. */
void eng_progress_show(struct eng_progress *p, double done, const char *label);
/* Adds `units` to the work done. */
void eng_progress_add(struct eng_progress *p, double units, const char *label);
void eng_progress_end(struct eng_progress *p);

/*
 * As eng_progress_show(), but writes no output, for callers whose stream is not a FILE: returns whether the caller
 * should write `line`. `columns` is the width of the terminal; `now` is the time in seconds.
 */
bool eng_progress_line(struct eng_progress *p, double now, double done, const char *label, int columns,
                       char line[ENG_PROGRESS_LINE]);

/* Monotonic time in seconds. */
double eng_now(void);

#endif
