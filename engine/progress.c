/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/progress.h"

#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define BAR 24

/*
 * If the stream is not a terminal: seconds between two lines at least; seconds after which a line is printed even
 * without progress; share of the work between two lines at least.
 */
#define LINE_SECONDS 5.0
#define LINE_AT_LEAST 60.0
#define LINE_SHARE 0.05

double eng_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void eng_progress_begin(struct eng_progress *p, FILE *to, double total, bool quiet)
{
	double now = eng_now();

	*p = (struct eng_progress){.to = to, .total = total, .begun = now, .on = !quiet, .terminal = isatty(fileno(to))};
	if (!p->terminal)
		p->drawn = now;
}

static int columns(FILE *f)
{
	struct winsize w;

	return ioctl(fileno(f), TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : 80;
}

/* Returns whether enough time (and, without a terminal, enough progress) has passed since the last drawing. */
static bool due(const struct eng_progress *p, double now, double share)
{
	double since = now - p->drawn;

	if (p->terminal)
		return since >= 0.1;
	return since >= LINE_AT_LEAST || (since >= LINE_SECONDS && share - p->shown >= LINE_SHARE);
}

bool eng_progress_line(struct eng_progress *p, double now, double done, const char *label, int columns,
                       char line[ENG_PROGRESS_LINE])
{
	double share = p->total > 0 ? done / p->total : 0, left;
	char bar[BAR + 1], plain[200], time[32] = "";

	p->done = done;
	share = share < 0 ? 0 : share > 1 ? 1 : share;
	if (!p->on || !due(p, now, share))
		return false;
	p->drawn = now;
	p->shown = share;
	memset(bar, '.', BAR);
	memset(bar, '#', (size_t)(share * BAR));
	bar[BAR] = '\0';
	left = share > 0.01 ? (now - p->begun) * (1 - share) / share : -1;
	if (left >= 0)
		snprintf(time, sizeof(time), "%d:%02d left  ", (int)left / 60, (int)left % 60);
	snprintf(plain, sizeof(plain), "[%s] %3.0f %%  %s%s", bar, 100 * share, time, label);
	/*
	 * "\033[K" erases what remains of a longer earlier line. The line is cut to the terminal's width, because a
	 * line that wraps could not be erased.
	 */
	if (p->terminal)
		snprintf(line, ENG_PROGRESS_LINE, "\r%.*s\033[K", columns - 1, plain);
	else
		snprintf(line, ENG_PROGRESS_LINE, "%s\n", plain);
	return true;
}

void eng_progress_show(struct eng_progress *p, double done, const char *label)
{
	char line[ENG_PROGRESS_LINE];

	if (!eng_progress_line(p, p->on ? eng_now() : 0, done, label, p->terminal ? columns(p->to) : 0, line))
		return;
	fputs(line, p->to);
	fflush(p->to);
}

void eng_progress_add(struct eng_progress *p, double units, const char *label)
{
	eng_progress_show(p, p->done + units, label);
}

void eng_progress_end(struct eng_progress *p)
{
	if (p->on && p->terminal && p->drawn > 0) {
		fputs("\r\033[K", p->to);
		fflush(p->to);
	}
	p->on = false;
}
