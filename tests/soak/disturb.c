/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/soak/disturb.c - kills engines, kills and stops daemons under a service manager, swaps policies, asks for
 * sequences by name (by-name.c), disturbs the prefix store (prefixes.c), reloads the configuration, and queries the
 * state. The table is at the end.
 */
#include "tests/soak/soak.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/manager.h"
#include "tests/support/run-program.h"

#define HANGS_S 60 /* an action of an engine: calls wait 20 s at most */
#define FORGET_S 20

static char most_sequences[40];
static const char *options[] = {"--pool-bytes=400M", "--segment-bytes=1M", "--account-bytes=320M", "--cuda=off",
                                "--client-sessions=8",
                                most_sequences, NULL, NULL, NULL, NULL, NULL};
#define MORE_OPTIONS 6u
static uint32_t n_engines;
static pid_t pids[SOAK_ENGINES];

/* ---- engines --------------------------------------------------------------------------------- */

uint32_t disturb_engines(void)
{
	return n_engines;
}

pid_t disturb_engine(uint32_t i)
{
	return pids[i];
}

static void start_engine(uint32_t i)
{
	const uint32_t process = ++soak->n_processes;

	ck_assert_uint_lt(process, SOAK_PROCESSES);
	soak->engine[i].idle = false;
	soak->engine[i].process = process;
	soak->engine[i].since = fix_now();
	pids[i] = child_fork();
	if (pids[i] == 0)
		engine_run((int)i, process);
}

/* Ends the lives of the process that have no name. */
static void bury(uint32_t process)
{
	bool named[SOAK_LIVES] = {false};

	for (uint32_t i = 0; i < SOAK_NAMES; i++)
		if (soak->name[i].life != SOAK_NONE)
			named[soak->name[i].life] = true;
	for (uint32_t i = 0; i < SOAK_LIVES; i++) {
		struct life *l = &soak->life[i];

		if (life_state(l) != SOAK_LIVE || life_owner(l) != process || named[i])
			continue;
		life_over(l);
	}
	soak->fate[process] = SOAK_GONE;
}

/* Waits until the daemon has nothing of the process; returns seconds. */
static double forgotten(struct raw *r, pid_t pid)
{
	const double begin = fix_now();

	while (raw_clients_of(r, pid, NULL))
		ck_assert_msg(fix_now() < begin + FORGET_S, "process %d is not forgotten", (int)pid);
	return fix_now() - begin;
}

static void reap(pid_t pid)
{
	int status;

	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(WIFSIGNALED(status), "an engine ended before it was killed: %s", child_problem());
}

static uint32_t any_engine(void)
{
	return SOAK_LASTING + rnd_below(n_engines - SOAK_LASTING);
}

static void kill_engine(void)
{
	const uint32_t i = any_engine(), process = soak->engine[i].process;
	struct raw *r = raw_hello(manager_socket);

	soak->fate[process] = SOAK_DOOMED;
	ck_assert_int_eq(kill(pids[i], SIGKILL), 0);
	reap(pids[i]);
	times_add(&soak->freed, forgotten(r, pids[i]));
	raw_close(r);
	bury(process);
	ADD(KILLED_ENGINES, 1);
	start_engine(i);
}

/* ---- daemons --------------------------------------------------------------------------------- */

/* Sometimes an engine is killed as well, before the next daemon starts. */
static void end_daemon(void)
{
	const int sig = rnd_below(4) ? SIGKILL : SIGTERM;
	const uint32_t i = rnd_below(3) ? SOAK_NONE : any_engine(), process = i == SOAK_NONE ? 0 : soak->engine[i].process;
	struct raw *r;
	double at;

	ck_assert_int_eq(manager_end_at_work(sig, &soak->mute, &at), sig == SIGTERM ? 0 : SIGKILL);
	if (i != SOAK_NONE) {
		soak->fate[process] = SOAK_DOOMED;
		ck_assert_int_eq(kill(pids[i], SIGKILL), 0);
	}
	if (rnd_below(4) == 0) {
		prefixes_other_secret();
		ADD(SECRETS, 1);
	}
	manager_start(options);
	r = raw_hello(manager_socket);
	times_add(&soak->served, fix_now() - at);
	if (sig == SIGKILL)
		ADD(KILLED_DAEMONS, 1);
	else
		ADD(STOPPED_DAEMONS, 1);
	if (i != SOAK_NONE) {
		reap(pids[i]);
		(void)forgotten(r, pids[i]);
		bury(process);
		ADD(KILLED_ENGINES, 1);
		start_engine(i);
	}
	raw_close(r);
}

static void reload(void)
{
	ck_assert_int_eq(kill(manager_daemon(), SIGHUP), 0);
	ADD(RELOADS, 1);
}

/* ---- operators ------------------------------------------------------------------------------- */

/* Swaps with sparsekvctl or by hand. Returns the errno; for the program, ENOENT if it fails. */
static int swap(uint32_t client, const char *spec)
{
	char number[16];
	const char *const argv[] = {"daemon/ctl/sparsekvctl", "--socket", manager_socket, "policy", "swap", spec,
	                            "--client", number, NULL};
	struct raw *r;
	int e;

	snprintf(number, sizeof(number), "%u", client);
	if (rnd_below(8) == 0)
		return run(manager_folder(), argv, 30) == 0 ? 0 : ENOENT;
	r = raw_operator(manager_socket);
	e = raw_policy_swap_client(r, client, spec);
	raw_close(r);
	return e;
}

/* Swaps the policy of one engine's sessions. The engine may end or close them before. */
static void swap_policy(void)
{
	const uint32_t i = rnd_below(n_engines), process = soak->engine[i].process, spec = rnd_below(soak->n_specs);
	struct raw *r = raw_hello(manager_socket);
	uint32_t client = 0;
	int e;

	(void)raw_clients_of(r, pids[i], &client);
	raw_close(r);
	if (!client || soak->engine[i].process != process)
		return;
	soak->engine[i].target = (uint8_t)spec;
	e = swap(client, soak->spec[spec]);
	ck_assert_msg(e == 0 || e == ENOENT, "swap to %s: %s", soak->spec[spec], strerror(e));
	if (e == 0)
		ADD(SWAPS, 1);
	else
		ADD(SWAP_GONE, 1);
}

static void ask(void)
{
	const bool all = rnd_below(2);
	struct raw *r = all ? raw_operator(manager_socket) : raw_hello(manager_socket);
	const enum skv_query what = SKV_QUERY_STATUS + rnd_below(SKV_QUERY_SESSIONS - SKV_QUERY_STATUS + 1);
	json_t *answer = raw_query(r, what);

	if (all && what == SKV_QUERY_STATUS)
		prefixes_look(answer);
	json_decref(answer);
	raw_close(r);
	ADD(QUERIES, 1);
}

/* ---- the table ---------------------------------------------------------------------------------- */

static const struct disturbance {
	uint32_t weight;
	void (*act)(void);
} disturbances[] = {
	{30, kill_engine},  {12, end_daemon},   {20, swap_policy},       {3, reload},          {10, ask},
	{20, by_name_drop}, {15, by_name_park}, {15, by_name_park_some}, {15, by_name_resume}, {15, by_name_export},
	{15, prefixes_disturb_store},
};

void disturb_once(void)
{
	const struct disturbance *d = disturbances;
	uint32_t all = 0, at;

	for (size_t i = 0; i < sizeof(disturbances) / sizeof(disturbances[0]); i++)
		all += disturbances[i].weight;
	for (at = rnd_below(all); at >= d->weight; d++)
		at -= d->weight;
	d->act();
}

void disturb_check(void)
{
	int status;

	for (uint32_t i = 0; i < n_engines; i++) {
		ck_assert_msg(waitpid(pids[i], &status, WNOHANG) == 0, "engine %u ended: %s", i, child_problem());
		if (fix_now() > soak->engine[i].since + HANGS_S)
			soak->failed = (int32_t)i + 1;
		ck_assert_msg(fix_now() < soak->engine[i].since + HANGS_S, "engine %u hangs", i);
	}
	ck_assert_msg(waitpid(manager_daemon(), &status, WNOHANG) == 0, "the daemon ended: wait status %#x",
	              (unsigned)status);
}

void disturb_begin(uint32_t engines)
{
	n_engines = engines;
	soak->most_sequences = 5 * engines + 12;
	snprintf(most_sequences, sizeof(most_sequences), "--account-sequences=%u", soak->most_sequences);
	options[MORE_OPTIONS] = by_name_begin();
	for (const char *const *o = prefixes_begin(), **to = &options[MORE_OPTIONS + 1]; *o; o++)
		*to++ = *o;
	manager_start(options);
}

void disturb_start(void)
{
	for (uint32_t i = 0; i < n_engines; i++)
		start_engine(i);
}

void disturb_end(void)
{
	struct raw *r = raw_hello(manager_socket);
	pid_t pid;

	soak->stop = true;
	for (uint32_t i = 0; i < n_engines; i++) {
		child_wait(pids[i]);
		(void)forgotten(r, pids[i]);
		bury(soak->engine[i].process);
	}
	soak->stop = false;
	pid = child_fork();
	if (pid == 0)
		engine_sweep(++soak->n_processes);
	child_wait(pid);
	raw_close(r);
	ck_assert_int_eq(manager_end(SIGTERM), 0);
	prefixes_other_secret(); /* everything that is sealed is lost */
	manager_start(options);
	prefixes_end();
}
