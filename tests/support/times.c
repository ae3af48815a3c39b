/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/times.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>

#define STEP 0.05

void times_add(struct times *t, double seconds)
{
	const uint64_t ns = seconds > 1e-9 ? (uint64_t)(seconds * 1e9) : 1;
	const uint32_t step = (uint32_t)(log((double)ns) / log1p(STEP));
	uint64_t longest = t->longest_ns;

	t->count[step < TIMES_STEPS ? step : TIMES_STEPS - 1]++;
	t->n++;
	while (ns > longest && !atomic_compare_exchange_weak(&t->longest_ns, &longest, ns))
		;
}

double times_at(const struct times *t, double share)
{
	const double wanted = share * (double)t->n;
	uint64_t seen = 0;

	for (uint32_t i = 0; i < TIMES_STEPS; i++) {
		seen += t->count[i];
		if (seen > 0 && (double)seen >= wanted)
			return fmin(pow(1 + STEP, i + 1) / 1e9, times_longest(t));
	}
	return times_longest(t);
}

double times_longest(const struct times *t)
{
	return (double)t->longest_ns / 1e9;
}

void times_print(const struct times *t, const char *what)
{
	printf("%llu times %s: p50 %.1f ms, p99 %.1f ms, longest %.1f ms\n", (unsigned long long)t->n, what,
	       times_at(t, 0.5) * 1e3,
	       times_at(t, 0.99) * 1e3, times_longest(t) * 1e3);
}
