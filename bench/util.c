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

int report_init(struct report *r, const struct column *columns, int n, const char *csv_path)
{
	*r = (struct report){.columns = columns, .n = n};
	if (csv_path) {
		r->csv = fopen(csv_path, "w");
		if (!r->csv)
			return -errno;
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
			quoted = strchr(cell, ','); /* specs have these; quotes none has */
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

int report_deinit(struct report *r)
{
	int bad = 0;
	if (r->csv) {
		bad = ferror(r->csv) ? -EIO : 0;
		if (fclose(r->csv))
			bad = -errno;
	}
	r->csv = NULL;
	return bad;
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

/* ---- options --------------------------------------------------------------------------------- */

int bench_bad(const char *name, const char *value, const char *expected)
{
	fprintf(stderr, "sparsekv-bench: --%s %s: expected %s\n", name, value, expected);
	return -1;
}

int bench_number(const char *name, const char *text, long least, long most, long *ret)
{
	char *end, expected[64];
	errno = 0;
	long x = strtol(text, &end, 10);
	snprintf(expected, sizeof expected, "a whole number from %ld to %ld", least, most);
	if (end == text || *end || errno || x < least || x > most)
		return bench_bad(name, text, expected);
	*ret = x;
	return 0;
}

int bench_device(const char *text, uint32_t *ret)
{
	unsigned n;
	char rest;
	if (sscanf(text, "cuda:%u%c", &n, &rest) != 1 || n >= SKV_MAX_DEVICES)
		return bench_bad("device", text, "a device such as cuda:0");
	*ret = SKV_DEVICE_CUDA(n);
	return 0;
}

int bench_heads(const char *text, uint32_t *ret_heads, uint32_t *ret_kv_heads)
{
	unsigned heads, kv_heads;
	char rest;
	if (sscanf(text, "%u/%u%c", &heads, &kv_heads, &rest) != 2 || !kv_heads || !heads || heads % kv_heads)
		return bench_bad("heads", text, "q heads/kv heads, such as 32/8");
	*ret_heads = heads;
	*ret_kv_heads = kv_heads;
	return 0;
}

static const char *const dtypes[] = {[SKV_F32] = "fp32", [SKV_F16] = "fp16", [SKV_BF16] = "bf16"};

const char *bench_dtype_name(uint32_t dtype)
{
	return dtypes[dtype];
}

int bench_dtypes(const char *text, uint32_t *ret_list)
{
	int n = 0;

	for (const char *p = text; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
		size_t len = strcspn(p, ",");
		uint32_t d = 0;
		while (d < 3 && (strlen(dtypes[d]) != len || strncmp(dtypes[d], p, len)))
			d++;
		if (d == 3 || n == BENCH_LIST_MAX)
			return bench_bad("dtype", text, "fp32, fp16 or bf16, separated by commas");
		ret_list[n++] = d;
	}
	return n;
}

int bench_list(const char *name, const char *text, long least, long *ret_list)
{
	int n = 0;
	for (const char *p = text;; p++) {
		char *end;
		errno = 0;
		long x = strtol(p, &end, 10);
		if (end == p || errno || x < least || (*end && *end != ',') || n == BENCH_LIST_MAX) {
			fprintf(stderr,
			        "sparsekv-bench: --%s %s: expected up to %d whole numbers from %ld on,"
			        " separated by commas\n",
			        name, text, BENCH_LIST_MAX, least);
			return -1;
		}
		ret_list[n++] = x;
		if (!*end)
			return n;
		p = end;
	}
}
