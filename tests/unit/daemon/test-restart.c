/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon is killed and stopped, at random, and started again by a service manager that keeps its descriptors, while an engine
 * generates; now and then the engine is killed, too. Each engine takes the named sequence over where the last one left it, and its outputs
 * are those of a run that nobody disturbed, bit by bit. At the end the state balances, and nothing is kept that is not needed.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/fd.h"
#include "tests/support/child.h"
#include "tests/support/client-test.h"
#include "tests/support/manager.h"

#define TOKENS 3000u
#define PROMPT 100u
#define RESTARTS 60
#define SPEC "quest?budget=6&dense=1"
#define NAME "chat"

static const char *options[] = {"--pool-bytes=64M", "--segment-bytes=1M", "--account-bytes=48M", "--cuda=off", "--cuda-segment-bytes=2M", NULL};

static struct refmodel w;
static uint64_t content[TOKENS];

/* Written by the children, read here. */
static struct shared {
	_Atomic uint32_t len, connections;
	uint64_t hash[TOKENS]; /* of the outputs of the step at that length, in an undisturbed run */
} *shared;

static uint64_t hash_of(const float *x, size_t n)
{
	uint64_t h = 0xcbf29ce484222325u;

	for (size_t i = 0; i < n; i++) {
		uint32_t bits;

		memcpy(&bits, &x[i], sizeof(bits));
		h = (h ^ bits) * 0x100000001b3u;
	}
	return h;
}

/* The prompt, or one token. An error of the library. */
static int step(struct skv_seq *q, uint32_t len, uint64_t *ret_hash, uint32_t *ret_n)
{
	const uint32_t n = len == 0 ? PROMPT : 1;
	const size_t size = (size_t)w.model.n_layers * n * w.model.n_heads * w.model.head_dim;
	float *out = malloc(size * sizeof(*out));
	int e = refmodel_run(&w, q, content + len, n, len == 0, out, NULL);

	*ret_hash = hash_of(out, size);
	*ret_n = n;
	free(out);
	return e;
}

/* ---- an engine ------------------------------------------------------------------------------- */

/* A connection, and the sequence; NULL: there is no daemon right now, or it does not give it yet. */
static struct skv_seq *take_over(struct skv_client **c)
{
	struct skv_seq *q = NULL;
	uint32_t len;
	const int32_t *ids;
	int e = skv_connect(c, manager_socket);

	if (e < 0) {
		*c = NULL;
		return NULL;
	}
	e = skv_open(*c, &w.model, SPEC, &w.session);
	if (e == 0)
		e = skv_seq_attach(w.session, NAME, &q);
	if (e == -ENOENT && shared->len == 0)
		e = skv_seq_new(w.session, NAME, 0, &q);
	if (e == -ENOENT || e == -EBADMSG)
		ck_abort_msg("at %u the sequence is lost: %s", shared->len, skv_last_error());
	if (e < 0)
		return NULL;
	ids = skv_seq_tokens(q, &len);
	if (len < shared->len)
		ck_abort_msg("%u tokens, %u were committed", len, shared->len);
	for (uint32_t i = 0; i < len; i++)
		if (ids[i] != refmodel_token(content[i]))
			ck_abort_msg("token %u of %u is %d, expected %d", i, len, ids[i], refmodel_token(content[i]));
	shared->connections++;
	return q;
}

/* Until it is done, or the library fails. */
static void generate(struct skv_seq *q)
{
	for (uint32_t len = skv_seq_len(q), n; len < TOKENS; len += n) {
		uint64_t hash;

		if (step(q, len, &hash, &n) < 0)
			return;
		if (hash != shared->hash[len])
			ck_abort_msg("other outputs at %u", len);
		shared->len = len + n;
		usleep(1500);
	}
}

static void engine(void)
{
	while (shared->len < TOKENS) {
		struct skv_client *c;
		struct skv_seq *q = take_over(&c);

		if (q)
			generate(q);
		else
			usleep(2000);
		skv_disconnect(c);
	}
	_exit(0);
}

static pid_t engine_start(void)
{
	pid_t pid = child_fork();

	if (pid == 0)
		engine();
	return pid;
}

/* ---- the test -------------------------------------------------------------------------------- */

/* In a process of its own: CUDA does not survive a fork. */
static void run_undisturbed(void)
{
	struct skv_client *c;
	struct skv_seq *q;

	OK(skv_connect(&c, manager_socket));
	OK(skv_open(c, &w.model, SPEC, &w.session));
	OK(skv_seq_new(w.session, NULL, 0, &q));
	for (uint32_t len = 0, n; len < TOKENS; len += n)
		OK(step(q, len, &shared->hash[len], &n));
	OK(skv_seq_drop(q));
	skv_disconnect(c);
}

static void undisturbed(void)
{
	pid_t pid = child_fork();

	if (pid == 0) {
		run_undisturbed();
		_exit(0);
	}
	child_wait(pid);
}

static void setup(void)
{
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(shared, MAP_FAILED);
	refmodel_model(&w.model, "restarted", SKV_F32, TOKENS + 1);
	for (uint32_t i = 0; i < TOKENS; i++)
		content[i] = refmodel_content(7, i);
	if (devmem_is_device())
		options[3] = "--cuda=required";
	manager_open();
	manager_start(options);
}

static bool has_ended(pid_t pid)
{
	int status;

	if (waitpid(pid, &status, WNOHANG) == 0)
		return false;
	ck_assert_msg(status == 0, "the engine failed: %s", child_problem());
	return true;
}

static void check_log(void)
{
	static const char *const bad[] = {"cannot be had back", "cannot be taken", "does not balance", "not believable", "cannot be told"};
	char *log = manager_log();

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		const char *at = strstr(log, bad[i]);

		ck_assert_msg(!at, "%.300s", at > log + 100 ? at - 100 : at);
	}
	free(log);
}

/* Once the end of clients has been dealt with. */
static void expect_kept(unsigned n)
{
	for (double end = fix_now() + 10; manager_kept() != n && fix_now() < end;)
		usleep(1000);
	ck_assert_uint_eq(manager_kept(), n);
}

START_TEST(nothing_is_lost)
{
	int restarts = 0;
	double down, longest = 0;
	pid_t pid;

	setup();
	undisturbed();
	pid = engine_start();
	while (!has_ended(pid)) {
		usleep(rnd_below(80000));
		if (restarts == RESTARTS)
			continue;
		down = fix_now();
		if (restarts % 3 == 2) {
			ck_assert_int_eq(manager_end(SIGTERM), 0);
		} else {
			(void)manager_end(SIGKILL);
		}
		if (rnd_below(5) == 0 && !has_ended(pid)) {
			ck_assert_int_eq(kill(pid, SIGKILL), 0);
			ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
			pid = engine_start();
		}
		manager_start(options);
		down = fix_now() - down;
		longest = down > longest ? down : longest;
		restarts++;
	}
	printf("%d restarts, the longest took %.0f ms; %u connections\n", restarts, longest * 1e3, shared->connections);
	fflush(stdout);
	ck_assert_uint_eq(shared->len, TOKENS);
	ck_assert_int_ge(restarts, 5);
	check_log();
	if (!devmem_is_device()) /* whose segments are stored one by one */
		expect_kept(2); /* the pool and the sequence */
	ck_assert_int_eq(manager_end(SIGTERM), 0);
	check_log();
	manager_close();
}
END_TEST

/* ---- what cannot be taken -------------------------------------------------------------------- */

static int sequences(void)
{
	struct raw *r = raw_hello(manager_socket);
	json_t *seqs = raw_query(r, SKV_QUERY_SEQS);
	const int n = (int)json_array_size(json_object_get(seqs, "sequences"));

	json_decref(seqs);
	raw_close(r);
	return n;
}

/* A named sequence of a client that is gone. */
static void leave_one(const char *name)
{
	struct raw *r = raw_hello(manager_socket);
	const uint32_t session = raw_open(r, "m", "full", NULL);

	(void)raw_seq_new(r, session, name);
	raw_close(r);
}

static void expect_log(const char *what)
{
	char *log = manager_log();

	ck_assert_msg(strstr(log, what), "the log does not say \"%s\"", what);
	free(log);
}

/* Then all begins anew, and nothing of it is kept. */
START_TEST(no_state)
{
	manager_open();
	manager_start(options);
	leave_one("first");
	ck_assert_int_eq(sequences(), 1);
	(void)manager_end(SIGKILL);
	manager_replace("state", _i == 0 ? skv_memfd_new("state", 65536) : _i == 1 ? skv_memfd_new("state", 16) : -1);
	manager_start(options);
	expect_log("cannot be taken, all sequences are lost");
	ck_assert_int_eq(sequences(), 0);
	expect_kept(0);
	leave_one("second");
	(void)manager_end(SIGKILL);
	manager_start(options);
	ck_assert_int_eq(sequences(), 1);
	ck_assert_int_eq(manager_end(SIGTERM), 0);
	manager_close();
}
END_TEST

/* What is no socket and was not kept by a name of ours is no business of ours. */
START_TEST(of_another_name)
{
	manager_open();
	manager_replace("seq-ffffffff", skv_memfd_new("x", 4096));
	manager_start(options);
	expect_log("no state was kept");
	expect_kept(0);
	ck_assert_int_eq(manager_end(SIGTERM), 0);
	manager_close();
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-restart");
	TCase *c;

	rnd_seed("test-restart");
	add_case(s, "restart", 240, NULL, NULL, nothing_is_lost, of_another_name, NULL);
	c = tcase_create("states");
	tcase_add_loop_test(c, no_state, 0, 3);
	suite_add_tcase(s, c);
	return run_suite(s);
}
