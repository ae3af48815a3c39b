/* SPDX-License-Identifier: Apache-2.0 */
/* tests/oracle/spec.c - parameters of a spec that contains all of them, name?key=value&key=value. */
#include "tests/oracle/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The text of the value, up to '&' or the end; NULL: no such key. */
static const char *find(const char *spec, const char *key)
{
	size_t len = strlen(key);

	for (const char *at = strchr(spec, '?'); at; at = strchr(at, '&')) {
		at++;
		if (!strncmp(at, key, len) && at[len] == '=')
			return at + len + 1;
	}
	return NULL;
}

double oracle_number(const char *spec, const char *key)
{
	const char *value = find(spec, key);

	return value ? strtod(value, NULL) : 0;
}

bool oracle_is(const char *spec, const char *key, const char *value)
{
	const char *is = find(spec, key);
	size_t len = strlen(value);

	return is && !strncmp(is, value, len) && (is[len] == '\0' || is[len] == '&');
}

bool oracle_layer_in(const char *spec, const char *key, uint32_t layer)
{
	const char *at = find(spec, key);

	while (at && *at >= '0' && *at <= '9') {
		char *end;

		if (strtoul(at, &end, 10) == layer)
			return true;
		at = *end == ',' ? end + 1 : end;
	}
	return false;
}

bool oracle_fifths(const struct skv_model *m, uint32_t layer)
{
	double depth = m->n_layers;

	return layer == (uint32_t)lround(depth * 2 / 5) || layer == (uint32_t)lround(depth * 3 / 5);
}

bool oracle_guessed(const struct skv_model *m, uint32_t first, uint32_t layer)
{
	return layer == first || (layer > first && oracle_fifths(m, layer));
}

uint32_t oracle_budget(const char *spec, uint32_t n, uint32_t least)
{
	double budget = oracle_number(spec, "budget");

	if (budget < 1)
		budget = fmax(ceil(budget * n - 1e-6), least); /* 0.1 in binary is slightly more than a tenth */
	return budget < n ? (uint32_t)budget : n;
}
