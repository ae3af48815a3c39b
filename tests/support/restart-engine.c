/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/restart-engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/client-test.h"
#include "tests/support/output-hash.h"
#include "tests/support/policies.h"

#define TOKENS RESTART_ENGINE_TOKENS
#define PROMPT 100u
#define SPEC POLICY_BOUNDS "?budget=6&dense=1"
#define NAME "chat"
#define PACE_US 4000
#define NO_DAEMON_S 0.04 /* a restart of the daemon takes longer than this */

static const char *socket_path;
static struct refmodel w;
static uint64_t content[TOKENS];
static bool disturbed;

/* Written by the children, read by the test. */
static struct shared {
	_Atomic uint32_t len;
	struct restart_engine_steps steps[2]; /* undisturbed, disturbed; written by one process at a time */
	uint64_t hash[TOKENS]; /* outputs of the step at that length in an undisturbed run */
} *shared;

static void record_time(double took)
{
	static bool any; /* step of this engine */
	struct restart_engine_steps *s = &shared->steps[disturbed];

	if (!any) {
		s->first = took > s->first ? took : s->first;
		any = true;
		return;
	}
	s->longest = took > s->longest ? took : s->longest;
	s->paused += took > NO_DAEMON_S;
}

/* Runs the prompt or one token; returns the library's error. */
static int step(struct skv_seq *q, uint32_t len, uint64_t *ret_hash, uint32_t *ret_n)
{
	const uint32_t n = len == 0 ? PROMPT : 1;
	const size_t size = (size_t)w.model.n_layers * n * w.model.n_heads * w.model.head_dim;
	float *out = malloc(size * sizeof(*out));
	const double begin = fix_now();
	int e = refmodel_run(&w, q, content + len, n, len == 0, out, NULL);

	record_time(fix_now() - begin);
	*ret_hash = output_hash(OUTPUT_HASH_NONE, out, size);
	*ret_n = n;
	free(out);
	return e;
}

/* Attaches the sequence that the previous engine left, or makes it. */
static struct skv_seq *take_over(void)
{
	struct skv_client *c;
	struct skv_seq *q;
	const int32_t *ids;
	uint32_t len;
	int e;

	OK(skv_connect(&c, socket_path));
	skv_set_timeout(c, 20000);
	OK(skv_open(c, &w.model, SPEC, &w.session));
	e = skv_seq_attach(w.session, NAME, &q);
	if (e == -ENOENT && shared->len == 0)
		e = skv_seq_new(w.session, NAME, 0, &q);
	ck_assert_msg(e == 0, "at %u the sequence cannot be had: %s", shared->len, skv_last_error());
	ids = skv_seq_tokens(q, &len);
	ck_assert_msg(len >= shared->len, "%u tokens, %u were committed", len, shared->len);
	for (uint32_t i = 0; i < len; i++)
		ck_assert_msg(ids[i] == refmodel_token(content[i]), "token %u of %u is %d, expected %d", i, len, ids[i],
		              refmodel_token(content[i]));
	return q;
}

static void engine(void)
{
	struct skv_seq *q = take_over();

	disturbed = true;
	for (uint32_t len = skv_seq_len(q), n; len < TOKENS; len += n) {
		uint64_t hash;

		ck_assert_msg(step(q, len, &hash, &n) == 0, "the step at %u: %s", len, skv_last_error());
		ck_assert_msg(hash == shared->hash[len], "other outputs at %u", len);
		shared->len = len + n;
		usleep(PACE_US);
	}
	_exit(0);
}

pid_t restart_engine_start(void)
{
	pid_t pid = child_fork();

	if (pid == 0)
		engine();
	return pid;
}

/* ---- tests ---------------------------------------------------------------------------------- */

void restart_engine_setup(const char *socket)
{
	socket_path = socket;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(shared, MAP_FAILED);
	refmodel_model(&w.model, "restarted", SKV_F32, TOKENS + 1);
	for (uint32_t i = 0; i < TOKENS; i++)
		content[i] = refmodel_content(7, i);
}

/* Runs in a process of its own: CUDA does not survive a fork. */
static void run_undisturbed(void)
{
	struct skv_client *c;
	struct skv_seq *q;

	OK(skv_connect(&c, socket_path));
	OK(skv_open(c, &w.model, SPEC, &w.session));
	OK(skv_seq_new(w.session, NULL, 0, &q));
	for (uint32_t len = 0, n; len < TOKENS; len += n)
		OK(step(q, len, &shared->hash[len], &n));
	OK(skv_seq_drop(q));
	skv_disconnect(c);
}

void restart_engine_undisturbed(void)
{
	pid_t pid = child_fork();

	if (pid == 0) {
		run_undisturbed();
		_exit(0);
	}
	child_wait(pid);
}

bool restart_engine_has_ended(pid_t pid)
{
	int status;

	if (waitpid(pid, &status, WNOHANG) == 0)
		return false;
	ck_assert_msg(status == 0, "the engine failed: %s", child_problem());
	return true;
}

uint32_t restart_engine_tokens(void)
{
	return shared->len;
}

struct restart_engine_steps restart_engine_steps(bool were_disturbed)
{
	return shared->steps[were_disturbed];
}

void restart_engine_check_log(const char *log)
{
	static const char *const bad[] = {"cannot be restored", "cannot be taken", "state is inconsistent",
	                                  "memory is not valid", "cannot be told"};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		const char *at = strstr(log, bad[i]);

		ck_assert_msg(!at, "%.300s", at > log + 100 ? at - 100 : at);
	}
}
