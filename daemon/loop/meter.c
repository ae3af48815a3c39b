/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/loop/meter.h"

#include <string.h>
#include <time.h>
#include "common/clock.h"
#include "daemon/sys/log.h"

static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void raise_to(uint64_t *most, uint64_t x)
{
	if (x > *most)
		*most = x;
}

void skv_meter_begin(struct skv_meter *m)
{
	m->begun_ns = m->mark_ns = skv_now_ns();
	m->begun_cpu_ns = m->mark_cpu_ns = cpu_ns();
}

void skv_meter_end(struct skv_meter *m)
{
	const uint64_t took_ns = skv_now_ns() - m->begun_ns;

	raise_to(&m->turn_max_ns, took_ns);
	if (took_ns > SKV_METER_LEAST_NS)
		raise_to(&m->turn_cpu_max_ns, cpu_ns() - m->begun_cpu_ns);
}

/* Returns the entry of a kind of work, which is added if it is new. Returns NULL if the table is full. */
static struct skv_meter_work *find(struct skv_meter *m, const char *name)
{
	for (unsigned i = 0; i < SKV_METER_WORKS; i++) {
		struct skv_meter_work *w = &m->works[i];

		if (!w->name)
			w->name = name;
		if (!strcmp(w->name, name))
			return w;
	}
	return NULL;
}

void skv_meter_did(struct skv_meter *m, const char *name)
{
	const uint64_t now_ns = skv_now_ns(), took_ns = now_ns - m->mark_ns;
	struct skv_meter_work *w = took_ns < SKV_METER_LEAST_NS ? NULL : find(m, name);
	uint64_t now_cpu_ns, took_cpu_ns;

	m->mark_ns = now_ns;
	if (!w)
		return;
	now_cpu_ns = cpu_ns();
	took_cpu_ns = now_cpu_ns - m->mark_cpu_ns;
	m->mark_cpu_ns = now_cpu_ns;
	raise_to(&w->max_ns, took_ns);
	raise_to(&w->cpu_max_ns, took_cpu_ns);
	if (took_cpu_ns < SKV_METER_LONG_NS)
		return;
	w->n_long++;
	skv_log(LOG_DEBUG, "a long turn of the event loop: %s took %.2f ms of CPU time, %.2f ms of wall-clock time",
	        name,
	        (double)took_cpu_ns / 1e6,
	        (double)took_ns / 1e6);
}
