/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/unit/kernels/test-threads.c - the host kernels' threads: they run every item once, with distinct thread
 * numbers, sleep when there is nothing to do, handle no signals, and are started anew in a child of fork(2).
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/host/runtime/host.h"
#include "kernels/threads.h"
#include "tests/support/child.h"
#include "tests/support/suite.h"

#define CALLERS 4
#define MOST_ITEMS 3000u
#define MOST_THREADS 9

/* A loop of one caller, as its items see it. */
struct seen {
	int threads;
	atomic_uint times[MOST_ITEMS]; /* number of runs of each item */
	atomic_bool busy[MOST_THREADS];
	atomic_bool wrong;
	uint32_t work; /* length of an item, in empty loop iterations */
};

static void item(void *ctx, uint32_t i, int thread)
{
	struct seen *s = ctx;

	if (thread < 0 || thread >= s->threads || atomic_exchange(&s->busy[thread], true)) {
		atomic_store(&s->wrong, true);
		return;
	}
	atomic_fetch_add(&s->times[i], 1);
	for (volatile uint32_t k = 0; k < s->work; k++)
		;
	atomic_store(&s->busy[thread], false);
}

static void *call_and_call(void *seed)
{
	static _Thread_local struct seen s;
	uint64_t x = *(uint64_t *)seed;

	for (int round = 0; round < 300; round++) {
		uint32_t n;

		x = x * 6364136223846793005u + 1442695040888963407u;
		n = (uint32_t)(x >> 33) % MOST_ITEMS;
		memset(&s, 0, sizeof(s));
		s.threads = 1 + (int)((x >> 20) % MOST_THREADS);
		s.work = (uint32_t)(x >> 40) % 200;
		skv_run(s.threads, n, item, &s);
		if (atomic_load(&s.wrong))
			return "a thread number was used twice at once, or is too high";
		for (uint32_t i = 0; i < MOST_ITEMS; i++)
			if (atomic_load(&s.times[i]) != (i < n))
				return "an item did not run once";
	}
	return NULL;
}

/* Several callers at a time, each with its own number of threads. */
START_TEST(each_item_runs_once)
{
	pthread_t caller[CALLERS];
	uint64_t seeds[CALLERS];

	for (int i = 0; i < CALLERS; i++) {
		seeds[i] = rnd64();
		ck_assert_int_eq(pthread_create(&caller[i], NULL, call_and_call, &seeds[i]), 0);
	}
	for (int i = 0; i < CALLERS; i++) {
		void *wrong;

		pthread_join(caller[i], &wrong);
		ck_assert_msg(!wrong, "%s", (const char *)wrong);
	}
}
END_TEST

static double cpu_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* After a loop the threads poll for microseconds, not for milliseconds as OpenMP's do. */
START_TEST(who_waits_sleeps)
{
	static struct seen s = {.threads = MOST_THREADS};
	double used = 0;

	skv_threads_ready(MOST_THREADS);
	for (int round = 0; round < 20; round++) {
		double before;

		skv_run(MOST_THREADS, MOST_ITEMS, item, &s);
		before = cpu_seconds();
		nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
		used += cpu_seconds() - before;
	}
	printf("%d threads without work: %.1f ms of 400\n", MOST_THREADS - 1, used * 1e3);
	if (!slowed())
		ck_assert_double_lt(used, 0.04);
}
END_TEST

static atomic_int caught;
static pthread_t catcher;

static void on_signal(int sig)
{
	(void)sig;
	catcher = pthread_self();
	atomic_fetch_add(&caught, 1);
}

/* A signal to the process is for the engine's threads: while these block it, it stays pending. */
START_TEST(they_handle_no_signal)
{
	sigset_t set, pending;

	signal(SIGUSR1, on_signal);
	skv_threads_ready(MOST_THREADS);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	kill(getpid(), SIGUSR1);
	nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
	ck_assert_int_eq(atomic_load(&caught), 0);
	sigpending(&pending);
	ck_assert_int_eq(sigismember(&pending, SIGUSR1), 1);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	ck_assert_int_eq(atomic_load(&caught), 1);
	ck_assert(pthread_equal(catcher, pthread_self()));
}
END_TEST

static atomic_bool enough;

static void *keep_calling(void *seed)
{
	while (!atomic_load(&enough))
		if (call_and_call(seed))
			return "wrong";
	return NULL;
}

/* Forks while other threads are in loops: the child's own loops work, and those of the parent continue. */
START_TEST(a_forked_child_has_its_own)
{
	pthread_t busy[2];
	uint64_t seeds[2] = {rnd64(), rnd64()};

	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(pthread_create(&busy[i], NULL, keep_calling, &seeds[i]), 0);
	for (int i = 0; i < 10; i++) {
		pid_t pid = child_fork();

		if (pid == 0) {
			uint64_t seed = rnd64();

			_exit(call_and_call(&seed) ? 1 : 0);
		}
		child_wait(pid);
	}
	atomic_store(&enough, true);
	for (int i = 0; i < 2; i++) {
		void *wrong;

		pthread_join(busy[i], &wrong);
		ck_assert_ptr_null(wrong);
	}
}
END_TEST

START_TEST(the_default_is_what_the_system_says)
{
	setenv("OMP_NUM_THREADS", "3,2", 1);
	ck_assert_int_eq(skv_threads_default(), 3);
	setenv("OMP_NUM_THREADS", "100000", 1);
	ck_assert_int_eq(skv_threads_default(), SKV_MAX_THREADS);
	unsetenv("OMP_NUM_THREADS");
	ck_assert_int_ge(skv_threads_default(), 1);
	ck_assert_int_le(skv_threads_default(), (int)sysconf(_SC_NPROCESSORS_CONF));
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-threads");

	add_case(s, "threads", 120, NULL, NULL, each_item_runs_once, who_waits_sleeps, they_handle_no_signal,
	         a_forked_child_has_its_own, the_default_is_what_the_system_says, NULL);
	return run_suite(s);
}
