/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/nth-parked.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/client-test.h"
#include "tests/support/manager.h"
#include "tests/support/nth-engine.h"
#include "tests/support/nth-world.h"

#define SOON_S 8 /* removals that failed are retried each second */
#define EXIT_UNREACHABLE 3 /* sparsekvctl's exit status when it cannot reach the daemon */

static char parked[96], parked_path[128];

/* ---- the victim's acts ----------------------------------------------------------------------- */

/* Runs sparsekvctl seq; returns its exit status. Its output goes to nth_engine_said. */
static int run_control(const char *what, const char *name, const char *redirect)
{
	char command[800];
	size_t n;
	FILE *f;
	int status;

	snprintf(command, sizeof(command), "%s --socket %s --timeout 10 seq %s %s 2>&1 %s", fix_built("daemon/ctl/sparsekvctl"), manager_socket, what, name, redirect);
	f = popen(command, "re");
	ck_assert_ptr_nonnull(f);
	n = fread(nth_engine_said, 1, sizeof(nth_engine_said) - 1, f);
	nth_engine_said[n] = 0;
	status = pclose(f);
	ck_assert(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/*
 * Runs a command that changes something. If the daemon ended meanwhile, or had no memory for its reply, the command may
 * have been carried out: then a retry may be refused with `done`. In all other cases it was not.
 */
static int control(const char *what, const char *name, const char *redirect, const char *done)
{
	static bool unknown;
	const int status = run_control(what, name, redirect);

	if (status == 0 || (unknown && strstr(nth_engine_said, done))) {
		unknown = false;
		return 0;
	}
	unknown |= status == EXIT_UNREACHABLE || strstr(nth_engine_said, "out of memory for this answer");
	ck_assert_msg(!strstr(nth_engine_said, "damaged") && !strstr(nth_engine_said, "no sequence"), "%s %s: %s", what, name, nth_engine_said);
	return NTH_ENGINE_SAID;
}

static int is_in(const char *folder)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", nth_folder, folder);
	return access(path, F_OK) == 0;
}

static int parks(int which)
{
	return control("park --model victim", nth_engine_names[which], ">/dev/null", "is parked already");
}

static int does_decode(void) { return nth_engine_decode_to(NTH_FIRST, NTH_PROMPT + 12); }
static int does_detach(void) { return nth_engine_detach(NTH_FIRST); }
static int does_park(void) { return parks(NTH_FIRST); }
static int does_attach(void) { return nth_engine_decode_to(NTH_FIRST, NTH_PROMPT + 15); }
static int does_detach_fork(void) { return nth_engine_detach(NTH_SECOND); }
static int does_park_fork(void) { return parks(NTH_SECOND); }
static int does_resume(void) { return control("resume --model victim", "first", ">/dev/null", "is parked"); }

static int does_export(void)
{
	char to[128];

	snprintf(to, sizeof(to), ">%s/exported", nth_folder);
	return control("export --model victim", "second", to, "never");
}

static int does_drop(void)
{
	nth_engine_dropped(NTH_SECOND); /* even if this fails: its file may be gone when the folder cannot be synchronized */
	return control("drop --model victim", "second", ">/dev/null", "has no sequence");
}

static int does_import(void)
{
	char from[128];

	ck_assert(is_in("exported"));
	snprintf(from, sizeof(from), "<%s/exported >/dev/null", nth_folder);
	return control("import", "", from, "there is a");
}

/*
 * Runs a command on the sealed prefix, if the daemon still has it: a daemon that lacked resources may have lost it.
 * `done` is no error: the prefix is still on disk if the sequence that began with it could not read it.
 */
static int control_prefix(const char *what, const char *done)
{
	char name[40];
	const char *at;
	int e;

	if (run_control("list", "", "") != 0)
		return NTH_ENGINE_SAID;
	at = strchr(nth_engine_said, '/');
	if (!at)
		return 0;
	snprintf(name, sizeof(name), "%.33s", at);
	e = control(what, name, ">/dev/null", done);
	return e && strstr(nth_engine_said, done) ? 0 : e;
}

static int does_park_prefix(void) { return control_prefix("park --model victim", "is parked already"); }
static int does_drop_prefix(void) { return control_prefix("drop --model victim", "has no sequence"); }

static int does_go_on(void) { return nth_engine_decode_to(NTH_FIRST, NTH_PROMPT + 18); }
static int does_go_on_with_fork(void) { return nth_engine_decode_to(NTH_SECOND, NTH_PROMPT + 12); }

static const struct nth_engine_act acts[] = {
	{"make", nth_engine_make_first}, {"decode", does_decode}, {"detach", does_detach}, {"park", does_park}, {"attach", does_attach},
	{"fork", nth_engine_fork_second}, {"detach", does_detach}, {"detach the fork", does_detach_fork}, {"park", does_park},
	{"park the fork", does_park_fork}, {"resume", does_resume}, {"export", does_export}, {"drop", does_drop}, {"import", does_import},
	{"go on", does_go_on}, {"go on with the fork", does_go_on_with_fork}, {"detach", does_detach}, {"park", does_park},
	{"seal", nth_engine_seal}, {"park the prefix", does_park_prefix}, {"begin with it", nth_engine_begin_sealed},
	{"park the prefix again", does_park_prefix}, {"detach the fork", does_detach_fork}, {"park the fork", does_park_fork},
	{"drop the prefix", does_drop_prefix},
};
#define N_ACTS (sizeof(acts) / sizeof(acts[0]))

/* ---- files and descriptors that are left ----------------------------------------------------- */

/* Counts parked files. Unfinished files whose removal fails, too, may stay: the next daemon removes them. */
static unsigned count_files(char *names, size_t size)
{
	const bool unfinished_may_stay = nth_failure.kind == FAIL_FILE && nth_failure.onwards;
	char path[128];
	unsigned n = 0;
	DIR *d;

	*names = 0;
	snprintf(path, sizeof(path), "%s/%u", parked, (unsigned)getuid());
	d = opendir(path);
	for (struct dirent *e; d && (e = readdir(d));)
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && !(unfinished_may_stay && e->d_name[0] == '.')) {
			n++;
			snprintf(names + strlen(names), size - strlen(names), " %s", e->d_name);
		}
	if (d)
		closedir(d);
	return n;
}

/*
 * Counts descriptors of the daemon that parking may have leaked: of folders and files in there, lists, pipes. Its
 * descriptor of the folder itself does not count.
 */
static unsigned count_left(char *names, size_t size)
{
	char path[64], to[512], link[600];
	unsigned n = 0;
	DIR *d;

	*names = 0;
	snprintf(path, sizeof(path), "/proc/%d/fd", (int)manager_daemon());
	d = opendir(path);
	ck_assert_ptr_nonnull(d);
	for (struct dirent *e; (e = readdir(d));) {
		ssize_t bytes;

		if (atoi(e->d_name) <= STDERR_FILENO)
			continue;
		snprintf(link, sizeof(link), "%s/%s", path, e->d_name);
		bytes = readlink(link, to, sizeof(to) - 1);
		to[bytes > 0 ? bytes : 0] = 0;
		if ((!strncmp(to, parked, strlen(parked)) && strcmp(to, parked)) || strstr(to, "skv-list") || !strncmp(to, "pipe:", 5)) {
			n++;
			snprintf(names + strlen(names), size - strlen(names), " %s", to);
		}
	}
	closedir(d);
	return n;
}

static void nothing_is_left(void)
{
	const double until = fix_now() + SOON_S;
	char files[1000], fds[1000];

	nth_world_drop_prefixes();
	while (count_files(files, sizeof(files)) + count_left(fds, sizeof(fds))) {
		ck_assert_msg(fix_now() < until, "files are left:%s, or descriptors:%s", files, fds);
		usleep(2000);
	}
}

/* ---- scenarios ------------------------------------------------------------------------------- */

void nth_parked_begin(const char *const *options)
{
	const char *all[12] = {parked_path};
	int n = 1;

	while (*options)
		all[n++] = *options++;
	snprintf(parked, sizeof(parked), "%s/parked", nth_folder);
	snprintf(parked_path, sizeof(parked_path), "--parked-path=%s", parked);
	ck_assert_int_eq(mkdir(parked, 0700), 0);
	nth_world_is_quiet = nothing_is_left;
	nth_world_begin(all);
}

void nth_parked_travels(uint32_t n)
{
	nth_arm(n);
	nth_world_must_succeed(nth_engine_start_acts(acts, N_ACTS));
	ck_assert_msg(nth_failure.onwards || !nth_engine_result().gave_up, "%s", nth_engine_result().first);
}

void nth_parked_next_daemon(uint32_t n)
{
	nth_world_must_succeed(nth_engine_start_acts(acts, N_ACTS - 2));
	nth_world_next_daemon(n);
}
