/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/progress.h"

#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define BAR 24

double eng_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void eng_progress_begin(struct eng_progress *p, FILE *to, double total, bool quiet)
{
	*p = (struct eng_progress){.to = to, .total = total, .begun = eng_now()};
	p->on = !quiet && isatty(fileno(to));
}

static int columns(FILE *f)
{
	struct winsize w;

	return ioctl(fileno(f), TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : 80;
}

void eng_progress_show(struct eng_progress *p, double done, const char *label)
{
	double now, share = done / p->total, left;
	char bar[BAR + 1], line[160];

	if (!p->on)
		return;
	now = eng_now();
	if (now - p->drawn < 0.1)
		return;
	p->drawn = now;
	share = share < 0 ? 0 : share > 1 ? 1 : share;
	memset(bar, '.', BAR);
	memset(bar, '#', (size_t)(share * BAR));
	bar[BAR] = '\0';
	left = share > 0.01 ? (now - p->begun) * (1 - share) / share : -1;
	if (left >= 0)
		snprintf(line, sizeof(line), "[%s] %3.0f %%  %d:%02d left  %s", bar, 100 * share,
		         (int)left / 60, (int)left % 60, label);
	else
		snprintf(line, sizeof(line), "[%s] %3.0f %%  %s", bar, 100 * share, label);
	/* \033[K wipes what a longer line before left behind; a line that wraps could not be wiped. */
	fprintf(p->to, "\r%.*s\033[K", columns(p->to) - 1, line);
	fflush(p->to);
}

void eng_progress_end(struct eng_progress *p)
{
	if (p->on && p->drawn > 0) {
		fputs("\r\033[K", p->to);
		fflush(p->to);
	}
	p->on = false;
}
