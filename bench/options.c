/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/options.h"
#include <stdio.h>
#include <stdlib.h>

int bench_bad(const char *name, const char *value, const char *expected)
{
	fprintf(stderr, "sparsekv-bench: --%s %s: %s expected\n", name, value, expected);
	return -1;
}

static void store(const struct eng_option *o, void *to, uint32_t i, uint32_t n)
{
	if (o->size == sizeof(uint32_t))
		((uint32_t *)to)[i] = n;
	else
		((uint64_t *)to)[i] = n;
}

/*
 * For a model (one value), the number of q heads must be a multiple of the kv heads. For kernels (BENCH_SHAPES, a
 * list), callers check the shape.
 */
int bench_take_heads(const struct eng_option *o, const char *text, uint32_t i, struct eng_error *err)
{
	unsigned heads, kv_heads;
	char rest;

	if (sscanf(text, "%u/%u%c", &heads, &kv_heads, &rest) != 2 || !kv_heads || !heads || (!o->n && heads % kv_heads))
		return eng_option_expected(o, text, "q heads/kv heads, such as 32/8,", err);
	store(o, o->to, i, heads);
	store(o, o->second, i, kv_heads);
	return 0;
}

int bench_take_cosine(const struct eng_option *o, const char *text, uint32_t i, struct eng_error *err)
{
	double *to = (double *)o->to + i;
	char *end;

	*to = strtod(text, &end);
	if (end == text || *end || !(*to >= 0 && *to < 1))
		return eng_option_expected(o, text, "a number from 0 on and below 1", err);
	return 0;
}

int bench_options(const struct bench_command *c, int argc, char **argv)
{
	char usage[2048];
	const struct eng_command command = {
		.program = "sparsekv-bench", .usage = usage, .options = c->options, .n = c->n, .operands = c->operands};
	struct eng_error err;
	int r;

	snprintf(usage, sizeof(usage), "usage: sparsekv-bench %s [OPTION...]%s%s\n\n%s\n", c->name, c->operands ? " " : "",
	         c->operands ? c->operands : "", c->about);
	r = eng_options(&command, argc, argv, &err);
	if (r)
		fprintf(stderr, "sparsekv-bench: %s\n", err.text);
	return r ? -1 : 0;
}
