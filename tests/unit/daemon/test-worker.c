/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs of several users for one worker process, which is this program itself: it answers each job with the job's
 * number. Users take turns, however many jobs each of them has submitted.
 */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/worker/worker.h"
#include "tests/support/suite.h"

#define WORKER_FD 3
#define MANY 6u

struct number {
	int32_t error;
	uint32_t more;
	uint32_t is;
	char why[SKV_WORKER_TEXT];
};

struct job {
	struct skv_worker_job work; /* must be first */
	struct number number;
};

static struct skv_loop *loop;
static struct skv_worker *worker;
static struct job jobs[2 * MANY];
static uint32_t order[2 * MANY], n_done, n_submitted; /* order: users, in the order in which their jobs were done */
static bool cancels; /* cancel the last waiting job when the first is done */

/* The worker process; job number 1 kills it. */
static int serve(void)
{
	struct number n;

	while (recv(WORKER_FD, &n, sizeof(n), 0) == (ssize_t)sizeof(n)) {
		if (n.is == 1)
			return 1;
		(void)send(WORKER_FD, &n, sizeof(n), 0);
	}
	return 0;
}

static void done(struct skv_worker_job *work, int error, const char *why, const void *answer)
{
	const struct job *j = (const struct job *)work;
	const struct number *n = answer;

	ck_assert_msg(error == 0 || error == -ECANCELED || j->number.is == 1, "%s", why);
	ck_assert(error || n->is == j->number.is);
	order[n_done++] = j->work.user;
	if (cancels) {
		cancels = false;
		skv_worker_cancel(worker, &jobs[n_submitted - 1].work);
	}
	if (n_done == n_submitted)
		skv_loop_quit(loop);
}

static void submit(uint32_t user, uint32_t number)
{
	struct job *j = &jobs[n_submitted++];

	j->number.is = number;
	j->work = (struct skv_worker_job){.job = &j->number, .bytes = sizeof(j->number), .user = user, .done = done};
	skv_worker_submit(worker, &j->work);
}

static void setup(void)
{
	const struct skv_worker_config config = {
		.program = "/proc/self/exe",
		.option = "--worker",
		.name = "numbers",
		.answer_bytes = sizeof(struct number),
		.why_at = offsetof(struct number, why),
		.timeout_ns = 10000000000u,
		.idle_ns = 10000000000u,
	};

	n_done = n_submitted = 0;
	ck_assert_int_eq(skv_loop_new(16, &loop), 0);
	ck_assert_int_eq(skv_worker_new(loop, &config, &worker), 0);
}

static void teardown(void)
{
	skv_worker_close(worker);
	ck_assert_int_eq(skv_loop_drain(loop), 0);
	skv_worker_free(worker);
	skv_loop_free(loop);
}

/* The first job goes to the worker at once; a user that comes later waits for one job of each other user. */
START_TEST(users_take_turns)
{
	const uint32_t expected[] = {1000, 1000, 1001, 1000, 1001, 1000, 1000, 1000};

	for (uint32_t i = 0; i < MANY; i++)
		submit(1000, 10 + i);
	submit(1001, 2);
	submit(1001, 3);
	ck_assert_int_eq(skv_loop_run(loop), 0);
	ck_assert_uint_eq(n_done, n_submitted);
	ck_assert_mem_eq(order, expected, sizeof(expected));
}
END_TEST

/* A waiting job can be cancelled at once. */
START_TEST(canceled)
{
	const uint32_t expected[] = {1000, 1001, 1000, 1000};

	cancels = true;
	for (uint32_t i = 0; i < 3; i++)
		submit(1000, 10 + i);
	submit(1001, 2);
	ck_assert_int_eq(skv_loop_run(loop), 0);
	ck_assert_mem_eq(order, expected, sizeof(expected));
	ck_assert_uint_eq(skv_worker_counters(worker)->failed, 1);
}
END_TEST

/* A job that kills its worker is retried once, before all other jobs; then it and all waiting jobs fail. */
START_TEST(dies)
{
	submit(1000, 10);
	submit(1001, 1);
	ck_assert_int_eq(skv_loop_run(loop), 0);
	ck_assert_uint_eq(skv_worker_counters(worker)->died, 2);
	ck_assert_uint_eq(skv_worker_counters(worker)->failed, 1);
	ck_assert_uint_eq(n_done, 2);
}
END_TEST

int main(int argc, char **argv)
{
	Suite *s;

	if (argc == 3 && !strcmp(argv[2], "--worker"))
		return serve();
	s = begin_suite("test-worker");
	add_case(s, "worker", 30, setup, teardown, users_take_turns, canceled, dies, NULL);
	return run_suite(s);
}
