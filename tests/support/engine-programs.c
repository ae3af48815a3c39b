/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/engine-programs.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>

#define MODEL_ARGS 4

const char *model, *tasks, *device;

void programs_setup(void)
{
	device = getenv("SKV_TEST_DEVICE") ? "cuda:0" : "host";
	model = strdup(run_source("models/reference"));
	tasks = strdup(run_source("models/reference/tasks-dev.jsonl"));
	daemon_setup();
}

const char prompt[] =
	"#dag\nabc:3\ndef:4\nghi:5\nabc+def=jkl:?\njkl+ghi=mno:?\nmno+mno=pqr:?\nabc+pqr=stu:?\n"
	"stu+jkl=vwx:?\n?vwx\n>\n";
const char answer[] = "abc:3+def:4=jkl:7\njkl:7+ghi:5=mno:2\nmno:2+mno:2=pqr:4\nabc:3+pqr:4=stu:7\n"
			     "stu:7+jkl:7=vwx:4\n#vwx:4\n";

/* Runs the program with the n arguments in argv, followed by `more`. */
static void run_with(const char *argv[RUN_ARGS], int n, const char *const *more)
{
	while (*more)
		argv[n++] = *more++;
	if (run(folder, argv, LIMIT))
		ck_abort_msg("%s failed: %s", argv[0], run_err(folder));
}

char *run_generate(const char *const *more)
{
	const char *argv[RUN_ARGS] = {GENERATE, MODEL, SOCKET};

	run_with(argv, 3 + MODEL_ARGS, more);
	return run_out(folder);
}

void run_eval(const char *const *more)
{
	const char *argv[RUN_ARGS] = {EVAL,      MODEL, SOCKET,   "--tasks", tasks,
	                              "--sizes", "512", "--dump", fx_path(folder, "dump")};

	run_with(argv, 9 + MODEL_ARGS, more);
}
