/* SPDX-License-Identifier: Apache-2.0 */
/* tests/support/pauses.c - each thread sleeps for half a millisecond, and records by how much it wakes up late. */
#include "tests/support/pauses.h"

#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "common/clock.h"

#define SLEEP_NS 500000u
#define MOST 64

static _Atomic uint64_t longest_ns;
static atomic_bool stop;
static pthread_t thread[MOST];
static int n_threads;

static void *observe(void *unused)
{
	const struct timespec sleep = {.tv_nsec = SLEEP_NS};

	while (!stop) {
		const uint64_t due = skv_now_ns() + SLEEP_NS;
		uint64_t late, most = longest_ns;

		nanosleep(&sleep, NULL);
		late = skv_now_ns();
		late = late > due ? late - due : 0;
		while (late > most && !atomic_compare_exchange_weak(&longest_ns, &most, late))
			;
	}
	return unused;
}

void pauses_begin(void)
{
	cpu_set_t all;

	stop = false;
	longest_ns = 0;
	n_threads = 0;
	ck_assert_int_eq(sched_getaffinity(0, sizeof(all), &all), 0);
	for (int cpu = 0; cpu < CPU_SETSIZE && n_threads < MOST; cpu++) {
		cpu_set_t one;

		if (!CPU_ISSET(cpu, &all))
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		ck_assert_int_eq(pthread_create(&thread[n_threads], NULL, observe, NULL), 0);
		ck_assert_int_eq(pthread_setaffinity_np(thread[n_threads], sizeof(one), &one), 0);
		(void)pthread_setschedparam(thread[n_threads++], SCHED_FIFO, &(struct sched_param){.sched_priority = 1});
	}
}

void pauses_end(void)
{
	stop = true;
	for (int i = 0; i < n_threads; i++)
		pthread_join(thread[i], NULL);
}

double pauses_longest_ms(void)
{
	return (double)longest_ns / 1e6;
}
