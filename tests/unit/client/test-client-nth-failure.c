/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Nth operation of the client library fails, for all N: allocations, memory, descriptors, messages that are sent;
 * once, or from then on until the failure ends. The engine's calls fail with an error that names the cause, and change
 * nothing; repeated, they succeed, and outputs are those of an undisturbed run. The engine leaves what it has
 * committed, a bystander is not disturbed, and the daemon's state balances.
 *
 * SKV_NTH=all: all N; a number: from that one on; else some of them, at random.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "tests/support/child.h"
#include "tests/support/client-fixture.h"
#include "tests/support/fail-nth.h"
#include "tests/support/nth-engine.h"

#define SAMPLE 12   /* of each kind */
#define UNREACHED 3 /* in a row: the number of operations differs a little between runs */

static const struct {
	enum fail_kind kind;
	const char *name;
	bool onwards;
} failures[] = {
	{FAIL_ALLOC, "alloc", false},      {FAIL_ALLOC, "alloc, onwards", true},           {FAIL_MEMORY, "memory", false},
	{FAIL_MEMORY, "memory, onwards", true}, {FAIL_DESCRIPTOR, "descriptor", false}, {FAIL_DESCRIPTOR, "descriptor, onwards", true},
	{FAIL_SEND, "send", false},
};
#define FAILURES (int)(sizeof(failures) / sizeof(failures[0]))

static struct fail_nth *fails; /* [FAILURES]: shows where a failing test was */

/* Does the engine reach the Nth operation? */
static bool one(int failure, uint32_t n)
{
	struct fail_nth *f = &fails[failure];

	*f = (struct fail_nth){.kind = failures[failure].kind, .nth = n, .onwards = failures[failure].onwards};
	child_wait(nth_engine_start(NTH_ALL, f));
	ck_assert_msg(!nth_engine_result().gave_up, "%s", nth_engine_result().first);
	child_wait(nth_engine_start_witness());
	return f->fired;
}

static void goes_on(pid_t bystander)
{
	const uint32_t n = nth_engine_bystander_steps();
	const double until = fix_now() + 20;

	while (nth_engine_bystander_steps() < n + 2) {
		ck_assert_msg(waitpid(bystander, NULL, WNOHANG) == 0 && fix_now() < until, "the bystander: %s", child_problem());
		fix_sleep_ms(1);
	}
}

START_TEST(every_failure)
{
	const char *only = getenv("SKV_NTH");
	uint32_t n = only && strcmp(only, "all") ? (uint32_t)atoi(only) - 1 : 0, calls, unreached = 0;
	pid_t bystander;

	client_begin(NULL);
	nth_engine_setup(daemon_.socket);
	nth_engine_undisturbed();
	bystander = nth_engine_start_bystander();
	(void)one(_i, 0);
	calls = fails[_i].seen;
	ck_assert_uint_gt(calls, 0);
	while (only && unreached < UNREACHED) {
		unreached = one(_i, ++n) ? 0 : unreached + 1;
		goes_on(bystander);
	}
	for (int i = 0; !only && i < SAMPLE; i++)
		(void)one(_i, n = 1 + rnd_below(calls));
	goes_on(bystander);
	nth_engine_tell_bystander_to_end();
	child_wait(bystander);
	printf("%s: %u calls, N up to %u; errors of the bystander %u\n", failures[_i].name, calls, n, nth_engine_bystander_errors());
	fflush(stdout);
	ck_assert_uint_eq(nth_engine_bystander_errors(), 0);
	client_end();
	fails[_i].nth = 0;
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-client-nth-failure");
	int failed;

	if (getenv("SKV_VALGRIND")) {
		printf("skipped: allocations are valgrind's, and cannot be made to fail\n");
		return 77;
	}
	fails = mmap(NULL, FAILURES * sizeof(*fails), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	tcase_add_loop_test(add_case(s, "the library's", 1800, NULL, NULL, NULL), every_failure, 0, FAILURES);
	failed = run_suite(s);
	for (int i = 0; i < FAILURES; i++)
		if (fails[i].nth)
			printf("%s, N = %u: called from%s\n", failures[i].name, fails[i].nth, fails[i].where);
	return failed;
}
