/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/child.h"

#include <check.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void (*child_before_failure)(void);
static bool in_child;

/* Written by children, read by the test. */
static struct report {
	atomic_flag taken; /* set by the first child that fails */
	_Atomic bool complete;
	char text[1024];
} *report;

static void report_failure(const char *file, int line, const char *expr, const char *text)
{
	if (!atomic_flag_test_and_set(&report->taken)) {
		if (child_before_failure)
			child_before_failure();
		snprintf(report->text, sizeof(report->text), "%s:%d: %s%s%s", file, line, expr, *text ? ": " : "",
		         text);
		atomic_store(&report->complete, true);
	}
	_exit(1);
}

/*
 * Check's assertions call this when they pass and when they fail; Check reports the last call as the place where a test
 * crashed. Each call writes to a file, which took most of the time in loops: so at most one per clock tick is passed
 * on.
 */
void __real__mark_point(const char *file, int line);
void __wrap__mark_point(const char *file, int line);
void __wrap__mark_point(const char *file, int line)
{
	static _Thread_local struct timespec last;
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	if (in_child || (now.tv_nsec == last.tv_nsec && now.tv_sec == last.tv_sec))
		return;
	last = now;
	__real__mark_point(file, line);
}

_Noreturn void __real__ck_assert_failed(const char *file, int line, const char *expr, const char *msg, ...);
_Noreturn void __wrap__ck_assert_failed(const char *file, int line, const char *expr, const char *msg, ...)
	__attribute__((format(printf, 4, 5)));
_Noreturn void __wrap__ck_assert_failed(const char *file, int line, const char *expr, const char *msg, ...)
{
	char text[1024] = "";
	va_list ap;

	if (msg) {
		va_start(ap, msg);
		vsnprintf(text, sizeof(text), msg, ap);
		va_end(ap);
	}
	if (in_child)
		report_failure(file, line, expr, text);
	if (child_before_failure)
		child_before_failure();
	__real__ck_assert_failed(file, line, expr, msg ? "%s" : NULL, text);
}

/* Uses no assertion on the success path: programs also call it before their suite runs. */
pid_t child_fork(void)
{
	pid_t pid;

	if (!report) {
		report = mmap(NULL, sizeof(*report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (report == MAP_FAILED)
			ck_abort_msg("no memory");
	}
	pid = fork();
	if (pid < 0)
		ck_abort_msg("no process");
	if (pid == 0) {
		in_child = true;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	}
	return pid;
}

void child_wait(pid_t pid)
{
	int status;

	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child: wait status %#x %s", (unsigned)status,
	              child_problem());
}

const char *child_problem(void)
{
	return report && atomic_load(&report->complete) ? report->text : "";
}
