/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ctl/text-table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Returns p, the result of an allocation. Exits the program if p is NULL. */
static void *must(void *p)
{
	if (p)
		return p;
	fputs("sparsekvctl: out of memory\n", stderr);
	exit(EXIT_FAILURE);
}

void skv_table_cell(struct skv_table *t, const char *fmt, ...)
{
	va_list ap;

	if (t->n_cells == t->cap) {
		t->cap = t->cap ? 2 * t->cap : 64;
		t->cells = must(realloc(t->cells, t->cap * sizeof(*t->cells)));
	}
	va_start(ap, fmt);
	vsnprintf(t->cells[t->n_cells++], SKV_TABLE_CELL, fmt, ap);
	va_end(ap);
}

static void print_cell(FILE *to, const char *text, size_t width, int left, int last)
{
	if (left && last)
		fputs(text, to); /* the last cell of a line is not padded with blanks */
	else
		fprintf(to, left ? "%-*s" : "%*s", (int)width, text);
	fputs(last ? "\n" : "  ", to);
}

void skv_table_print(const struct skv_table *t, FILE *to)
{
	size_t *width = must(calloc(t->n_cols, sizeof(*width)));

	for (unsigned c = 0; c < t->n_cols; c++)
		width[c] = strlen(t->heads[c] + (t->heads[c][0] == '-'));
	for (size_t i = 0; i < t->n_cells; i++)
		if (strlen(t->cells[i]) > width[i % t->n_cols])
			width[i % t->n_cols] = strlen(t->cells[i]);
	for (unsigned c = 0; c < t->n_cols; c++) {
		int left = t->heads[c][0] == '-';

		print_cell(to, t->heads[c] + left, width[c], left, c + 1 == t->n_cols);
	}
	for (size_t i = 0; i < t->n_cells; i++) {
		unsigned c = (unsigned)(i % t->n_cols);

		print_cell(to, t->cells[i], width[c], t->heads[c][0] == '-', c + 1 == t->n_cols);
	}
	free(width);
}

void skv_table_deinit(struct skv_table *t)
{
	free(t->cells);
	t->cells = NULL;
	t->n_cells = t->cap = 0;
}

/* Returns the next of eight static buffers, which are enough for one line of output. */
static char *scratch(void)
{
	static char buffers[8][32];
	static unsigned next;

	return buffers[next++ % 8];
}

const char *skv_human_bytes(uint64_t bytes)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
	double x = (double)bytes;
	char *to = scratch();
	unsigned u = 0;

	for (; x >= 1024 && u < 5; u++)
		x /= 1024;
	snprintf(to, 32, u ? "%.1f %s" : "%.0f %s", x, units[u]);
	return to;
}

const char *skv_human_time(double seconds)
{
	unsigned long s = seconds > 0 ? (unsigned long)seconds : 0;
	char *to = scratch();

	if (s < 60)
		snprintf(to, 32, "%lus", s);
	else if (s < 3600)
		snprintf(to, 32, "%lum %02lus", s / 60, s % 60);
	else if (s < 86400)
		snprintf(to, 32, "%luh %02lum", s / 3600, s / 60 % 60);
	else
		snprintf(to, 32, "%lud %02luh", s / 86400, s / 3600 % 24);
	return to;
}

const char *skv_human_share(double part, double whole)
{
	char *to = scratch();

	if (whole > 0)
		snprintf(to, 32, "%.1f %%", 100 * part / whole);
	else
		strcpy(to, "-");
	return to;
}
