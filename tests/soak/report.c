/* SPDX-License-Identifier: Apache-2.0 */
/* tests/soak/report.c - what the soak test did; and after a failure, what helps to find the reason. */
#include "tests/soak/soak.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/manager.h"

#define TAIL_LINES 40

void report_summary(double seconds)
{
#define TEXT_OF(name, text) text,
	static const char *const what[] = {SOAK_LIST(TEXT_OF)};

	printf("\n%.0f seconds, %u engines\n", seconds, disturb_engines());
	for (size_t i = 0; i < SOAK_COUNTS; i++)
		printf("  %-50s %12llu\n", what[i], (unsigned long long)soak->count[i]);
	times_print(&soak->call, "a call");
	times_print(&soak->freed, "from an engine's death until all that it had is free");
	times_print(&soak->served, "from a daemon's death until another answers");
	fflush(stdout);
}

static void print_said(FILE *to, uint32_t engine)
{
	const struct engine *e = &soak->engine[engine];
	const uint32_t n = e->n_said, first = n > SOAK_SAID ? n - SOAK_SAID : 0;

	fprintf(to, "the last actions of engine %u (process %u, pid %d):\n", engine, e->process,
	        (int)disturb_engine(engine));
	for (uint32_t i = first; i < n; i++)
		fprintf(to, "  %s\n", e->said[i % SOAK_SAID]);
}

/* Prints the actions of the engine that failed; those of all engines go to a file. */
static void print_actions(void)
{
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s/actions", manager_folder());
	f = fopen(path, "we");
	for (uint32_t i = 0; i < disturb_engines() && f; i++) {
		print_said(f, i);
		if (soak->failed == (int32_t)i + 1)
			print_said(stdout, i);
	}
	if (f)
		fclose(f);
}

static void print_tail(void)
{
	char *log = manager_log(), *at = log + strlen(log);

	for (int lines = 0; at > log && lines <= TAIL_LINES; at--)
		lines += at[-1] == '\n';
	printf("the end of the daemon's log:\n%s\n", at);
	free(log);
}

void report_failure(void)
{
	static bool reported;

	if (reported)
		return;
	reported = true;
	printf("\nFAILED at %.3f; all files, and the actions of all engines, are in %s\n", fix_now(), manager_folder());
	print_actions();
	print_tail();
	report_summary(0);
}
