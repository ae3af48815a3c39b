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

#define ENG_PROGRESS_LINE 256u /* bytes */

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

/*
 * eng_progress_show() without its output, for a stream that is not C's: returns whether to write `line`, on a terminal
 * of so many columns. `now`: seconds.
 */
bool eng_progress_line(struct eng_progress *p, double now, double done, const char *label, int columns,
                       char line[ENG_PROGRESS_LINE]);

/* Monotonic time in seconds. */
double eng_now(void);

#endif
