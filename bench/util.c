/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/bench.h"
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- report ---------------------------------------------------------------------------------- */

static int width_of(const struct column *c)
{
	int name = (int)strlen(c->name), least = c->digits >= 0 ? 8 : c->digits < -12 ? -c->digits : 12;
	return name > least ? name : least;
}

/*
 * Prints the head of the table, and opens the CSV file, if there is one. Returns 0, or -1 after printing why the file
 * cannot be written.
 */
static int report_init(struct report *r, const struct column *columns, int n, const char *csv_path)
{
	*r = (struct report){.columns = columns, .n = n, .path = csv_path};
	if (csv_path) {
		r->csv = fopen(csv_path, "w");
		if (!r->csv) {
			fprintf(stderr, "sparsekv-bench: --csv %s: %s\n", csv_path, strerror(errno));
			return -1;
		}
	}
	for (int i = 0; i < n; i++) {
		char name[64];
		snprintf(name, sizeof name, "%s", columns[i].name);
		for (char *p = name; *p; p++)
			*p = *p == '_' ? ' ' : *p;
		printf(columns[i].digits < 0 ? "%-*s" : "%*s", width_of(&columns[i]), name);
		printf(i + 1 < n ? "  " : "\n");
		if (r->csv)
			fprintf(r->csv, "%s%c", columns[i].name, i + 1 < n ? ',' : '\n');
	}
	return 0;
}

void report_row(struct report *r, ...)
{
	va_list ap;
	va_start(ap, r);
	for (int i = 0; i < r->n; i++) {
		const struct column *c = &r->columns[i];
		char cell[512] = "";
		bool quoted = false;
		if (c->digits < 0) {
			snprintf(cell, sizeof cell, "%s", va_arg(ap, const char *));
			quoted = strchr(cell, ','); /* policy specs contain commas; no cell contains quotes */
		} else {
			double x = va_arg(ap, double);
			if (!isnan(x))
				snprintf(cell, sizeof cell, "%.*f", c->digits, x);
		}
		printf(c->digits < 0 ? "%-*s" : "%*s", width_of(c), cell);
		printf(i + 1 < r->n ? "  " : "\n");
		if (r->csv)
			fprintf(r->csv, quoted ? "\"%s\"%c" : "%s%c", cell, i + 1 < r->n ? ',' : '\n');
	}
	va_end(ap);
	fflush(stdout);
}

/* Closes the CSV file. Returns the exit status of the program. */
static int report_close(struct report *r)
{
	int bad = 0;

	if (r->csv) {
		bad = ferror(r->csv) ? -EIO : 0;
		if (fclose(r->csv))
			bad = -errno;
		r->csv = NULL;
	}
	if (bad)
		fprintf(stderr, "sparsekv-bench: --csv %s: %s\n", r->path, strerror(-bad));
	return bad ? 1 : 0;
}

int bench_report(int parsed, bench_measure_fn *measure, const void *options, const struct column *columns, size_t n_columns,
                 const char *csv_path)
{
	struct report r;

	if (parsed)
		return 2;
	if (report_init(&r, columns, (int)n_columns, csv_path))
		return 1;
	if (measure(&r, options)) {
		report_close(&r);
		return 1;
	}
	return report_close(&r);
}

/* ---- measuring ------------------------------------------------------------------------------- */

double bench_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

double bench_median(double *x, size_t n)
{
	qsort(x, n, sizeof *x, compare_doubles);
	return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

double bench_p99(double *x, size_t n)
{
	qsort(x, n, sizeof *x, compare_doubles);
	return x[n - 1 - n / 100];
}

uint64_t bench_random(uint64_t *state)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}
