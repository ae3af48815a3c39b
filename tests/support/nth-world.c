/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/nth-world.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/client-test.h"
#include "tests/support/manager.h"
#include "tests/support/nth-engine.h"
#include "tests/support/policies.h"

#define PATIENCE_S 30

void (*nth_world_is_quiet)(void);
static const char *options[16];
static pid_t bystander;
static unsigned ended; /* daemons that ended because of a failure */

static void start_daemon(void)
{
	nth_preload(true);
	manager_start(options);
	nth_preload(false);
}

void nth_world_begin(const char *const *more)
{
	int n = 0;

	while (*more)
		options[n++] = *more++;
	options[n++] = nth_policy_path;
	manager_open();
	nth_engine_setup(manager_socket);
	start_daemon();
	nth_engine_undisturbed();
	bystander = nth_engine_start_bystander();
}

static void check_log(void)
{
	char *log = manager_log();

	nth_check_log(log);
	free(log);
	manager_forget_log();
}

void nth_world_drop_prefixes(void)
{
	struct raw *r = raw_operator(manager_socket);
	json_t *all = raw_query(r, SKV_QUERY_SEQS), *seq;
	size_t i;

	json_array_foreach(json_object_get(all, "sequences"), i, seq)
	{
		const char *name = json_string_value(json_object_get(seq, "name"));

		if (skv_prefix_name_valid(name))
			ck_assert_int_eq(raw_seq_named(r, SKV_MSG_SEQ_DROP_NAME, json_string_value(json_object_get(seq, "model")), name), 0);
	}
	json_decref(all);
	raw_close(r);
}

void nth_world_end(void)
{
	nth_engine_tell_bystander_to_end();
	child_wait(bystander);
	nth_world_drop_prefixes();
	manager_expect_kept(0);
	ck_assert_int_eq(manager_end(SIGTERM), 0);
	check_log();
	manager_close();
}

void nth_world_follow_daemon(void)
{
	int status;

	nth_note_where();
	if (!manager_has_ended(&status))
		return;
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_FAILURE && nth_fails->fired, "the daemon ended with wait status %#x: %s",
	              (unsigned)status, manager_log());
	nth_disarm();
	ended++;
	start_daemon();
}

int nth_world_wait(pid_t pid)
{
	const double until = fix_now() + PATIENCE_S;
	int status;

	while (waitpid(pid, &status, WNOHANG) == 0) {
		ck_assert_msg(fix_now() < until, "a process does not end; daemons said:\n%s", manager_log());
		nth_world_follow_daemon();
		usleep(200);
	}
	return status;
}

void nth_world_must_succeed(pid_t pid)
{
	int status = nth_world_wait(pid);

	ck_assert_msg(status == 0, "wait status %#x: %s; daemons said:\n%s", (unsigned)status, child_problem(), manager_log());
}

void nth_world_bystander_goes_on(void)
{
	const uint32_t n = nth_engine_bystander_steps();
	const double until = fix_now() + PATIENCE_S;

	while (nth_engine_bystander_steps() < n + 2) {
		ck_assert_msg(waitpid(bystander, NULL, WNOHANG) == 0, "the bystander: %s", child_problem());
		ck_assert_msg(fix_now() < until, "the bystander does not go on");
		nth_world_follow_daemon();
		usleep(200);
	}
}

void nth_world_next_daemon(uint32_t n)
{
	int status;

	if (n % 2)
		ck_assert_int_eq(manager_end(SIGTERM), 0);
	else
		(void)manager_end(SIGKILL);
	nth_arm(n);
	nth_preload(true);
	if (!manager_try_start(options, nth_failure.onwards ? 0.5 : 20, &status)) {
		ck_assert_msg(status == EXIT_FAILURE << 8 || (nth_failure.onwards && status == SIGKILL), "the daemon ended with wait status %#x",
		              (unsigned)status);
		nth_disarm();
		ended++;
		manager_start(options);
	}
	nth_preload(false);
	nth_world_bystander_goes_on();
}

/* Reads the last daemon's "policies:" line. If the log has none since it was truncated, that daemon had no failure. */
static bool has_policy(const char *log, const char *file)
{
	const char *said = NULL;

	for (const char *p = log; (p = strstr(p, "; policies: ")); p++)
		said = p;
	return !said || memmem(said, strcspn(said, "\n"), file, strcspn(file, "."));
}

static void reload_until(size_t at, const char *said)
{
	const double until = fix_now() + PATIENCE_S;

	if (manager_daemon())
		kill(manager_daemon(), SIGHUP);
	for (;;) {
		size_t from = at;
		char *more = manager_log_since(&from);
		const bool is_said = strstr(more, said);

		ck_assert_msg(is_said || fix_now() < until, "a reload does not lead to \"%s\":\n%s", said, manager_log());
		free(more);
		if (is_said)
			return;
		usleep(2000);
	}
}

/* A daemon that cannot read a policy or a parked sequence starts without it and logs that; a reload reads it. */
static void reload(void)
{
	char *log = manager_log(), loaded[64];
	const size_t len = strlen(log);
	const bool unread = strstr(log, "(a reload tries again)"), prefix = strstr(log, ".prefix is left alone");

	if (unread && !prefix && has_policy(log, POLICY_BOUNDS ".so")) /* its name is still taken */
		nth_world_must_succeed(nth_engine_start_refused());
	for (int i = 0; i < NTH_POLICIES; i++)
		if (!has_policy(log, nth_engine_policy_files[i])) {
			snprintf(loaded, sizeof(loaded), "%s is loaded: policy ", nth_engine_policy_files[i]);
			reload_until(len, loaded);
		}
	if (unread)
		reload_until(len, "are known; 0 files and folders cannot be read");
	free(log);
}

void nth_world_check(void)
{
	nth_world_bystander_goes_on();
	reload();
	nth_world_must_succeed(nth_engine_start_witness());
	nth_world_follow_daemon();
	if (nth_world_is_quiet)
		nth_world_is_quiet();
	ck_assert_int_eq(manager_end(SIGTERM), 0);
	start_daemon();
	check_log();
}

void nth_world_tell(char *to, size_t size)
{
	snprintf(to, size, "; daemons ended %u, errors of the bystander %u", ended, nth_engine_bystander_errors());
}
