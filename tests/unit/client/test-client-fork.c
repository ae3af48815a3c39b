/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A child of fork(2) with its parent's handles: every public function fails there or does nothing, whatever the
 * parent's threads did when it forked, and the parent goes on as if it had not forked.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/client-fixture.h"
#include "tests/support/policies.h"

/*
 * AddressSanitizer's allocator does not take its locks around fork(): a child waits for ever for a lock that another
 * thread held. So under it no other thread may run while this one forks.
 */
#if SANITIZED
#define THREADS 1
#else
#define THREADS 2
#endif

#define STEPS 40u
#define ROW 8192 /* floats of a row, at most */

static struct skv_model model;
static struct skv_session *session, *other; /* `other` is another thread's */
static struct skv_seq *seq, *others;
static float rows[ROW], out[ROW];

static const struct skv_attn attn = {.size = sizeof(attn), .q = rows, .k = rows, .v = rows, .out = out};

/* ---- everything that there is ---------------------------------------------------------------- */

/* Calls each function with these handles; status 0 if it did what it must. */
static struct skv_session *s;
static struct skv_seq *q;

#define REFUSED(name, call)                                                                                  \
	static void name(void)                                                                               \
	{                                                                                                    \
		struct skv_seq *new_seq = NULL;                                                              \
		struct skv_session *new_session = NULL;                                                      \
		struct skv_stats stats = {.size = sizeof(stats)};                                            \
		struct skv_selection_info info = {.size = sizeof(info)};                                     \
		struct skv_room room = {.size = sizeof(room)};                                               \
		struct skv_step_item item = SKV_STEP_ITEM(.seq = q, .n_tokens = 1);                                       \
		uint64_t pages;                                                                              \
		uint32_t ids[4] = {0};                                                                       \
		(void)new_seq, (void)new_session, (void)stats, (void)info, (void)item, (void)ids, (void)room, (void)pages; \
		FAILS(call, EPERM, "fork");                                                                  \
	}
#define DOES_NOTHING(name, what)                                                                             \
	static void name(void)                                                                               \
	{                                                                                                    \
		uint64_t a = 1, b = 1;                                                                       \
		double sum = 1;                                                                              \
		uint32_t len = 1;                                                                            \
		(void)a, (void)b, (void)sum, (void)len;                                                      \
		what;                                                                                        \
	}

REFUSED(open_, skv_open(client, &model, "full", &new_session))
REFUSED(set_threads, skv_set_threads(client, 1))
REFUSED(seq_new, skv_seq_new(s, NULL, 0, &new_seq))
REFUSED(seq_new_from, skv_seq_new_from(s, NULL, 0, (int32_t[]){1}, 1, &new_seq))
REFUSED(seq_seal, skv_seq_seal(q, SKV_ALL, NULL))
REFUSED(seq_attach, skv_seq_attach(s, "any", &new_seq))
REFUSED(seq_fork, skv_seq_fork(q, NULL, SKV_ALL, &new_seq))
REFUSED(seq_truncate, skv_seq_truncate(q, 0, -1))
REFUSED(seq_detach, skv_seq_detach(q))
REFUSED(seq_drop, skv_seq_drop(q))
REFUSED(seq_policy, skv_seq_policy(q, POLICY_BOUNDS))
REFUSED(step_begin, skv_step_begin(s, &item, 1, NULL))
REFUSED(attend, skv_attend(s, 0, &attn))
REFUSED(step_tokens, skv_step_tokens(s, 0, (const int32_t *)ids))
REFUSED(step_replayed, skv_step_replayed(s, 1))
REFUSED(step_end, skv_step_end(s, NULL, NULL))
REFUSED(pad_steps, skv_pad_steps(s, 1, 0))
REFUSED(session_stats, skv_session_stats(s, &stats))
REFUSED(selection, skv_selection(s, 0, 0, 0, &info, ids, 4))
REFUSED(session_room, skv_session_room(s, &room))
REFUSED(seq_need, skv_seq_need(s, 100, 0, &pages))
DOES_NOTHING(seq_len, ck_assert_uint_eq(skv_seq_len(q), 0))
DOES_NOTHING(seq_tokens, ck_assert_ptr_null(skv_seq_tokens(q, &len)); ck_assert_uint_eq(len, 0))
DOES_NOTHING(seq_pages, skv_seq_pages(q, &a, &b); ck_assert_uint_eq(a + b, 0))
DOES_NOTHING(seq_attended, skv_seq_attended(q, &a, &b); ck_assert_uint_eq(a + b, 0))
DOES_NOTHING(seq_recall, skv_seq_recall(q, &a, &sum); ck_assert(a == 0 && sum == 0))
DOES_NOTHING(seq_policy_spec, RUNS_SPEC(skv_seq_policy_spec(q), "full"))
DOES_NOTHING(seq_keeps_all, ck_assert_int_eq(skv_seq_keeps_all(q), 1))
DOES_NOTHING(step_key, ck_assert_uint_eq(skv_step_key(s), 0))
DOES_NOTHING(step_abort, skv_step_abort(s))
DOES_NOTHING(set_recall, skv_set_recall(s, 1))
DOES_NOTHING(set_timeout, skv_set_timeout(client, 100))
DOES_NOTHING(policy_spec, RUNS_SPEC(skv_policy_spec(s), "full"))
DOES_NOTHING(policy_error, ck_assert_str_eq(skv_policy_error(s), ""))
DOES_NOTHING(policy_depends, ck_assert_int_eq(skv_policy_depends_on_prefill(s), 0))
DOES_NOTHING(backend, ck_assert_ptr_nonnull(skv_backend(s)))
DOES_NOTHING(version, ck_assert_ptr_nonnull(skv_version()))
DOES_NOTHING(last_error, ck_assert_ptr_nonnull(skv_last_error()))
DOES_NOTHING(rope_frequency, ck_assert(skv_rope_frequency(&model.rope, 64, 0) >= 0))
DOES_NOTHING(rope_scale, ck_assert(skv_rope_scale(&model.rope) > 0))
DOES_NOTHING(identity, struct skv_identity id = SKV_IDENTITY_INIT; char name[SKV_NAME_MAX]; const float one = 1;
	     skv_identity_add(&id, "a", "b", 1); skv_identity_add_text(&id, "c", "d"); skv_identity_add_number(&id, "e", 1);
	     skv_identity_add_shape(&id, &model); OK(skv_identity_add_tensor(&id, "f", SKV_F32, 1, &one)); skv_identity_name(&id, "g", name);
	     FAILS(skv_identity_add_files(&id, "/nonexistent"), ENOENT, "model.safetensors"))
DOES_NOTHING(close_, skv_close(s))
DOES_NOTHING(disconnect, skv_disconnect(client))
/* last: what a child must do */
DOES_NOTHING(connect_, OK(skv_connect(&client, daemon_.socket)); skv_disconnect(client))

static const struct {
	const char *name;
	void (*run)(void);
} calls[] = {
        {"skv_open", open_}, {"skv_set_threads", set_threads}, {"skv_seq_new", seq_new}, {"skv_seq_new_from", seq_new_from}, {"skv_seq_seal", seq_seal},
        {"skv_seq_attach", seq_attach}, {"skv_seq_fork", seq_fork}, {"skv_seq_truncate", seq_truncate}, {"skv_seq_detach", seq_detach},
        {"skv_seq_drop", seq_drop}, {"skv_seq_policy", seq_policy}, {"skv_step_begin", step_begin},
        {"skv_attend", attend}, {"skv_step_replayed", step_replayed}, {"skv_step_tokens", step_tokens}, {"skv_step_end", step_end}, {"skv_pad_steps", pad_steps},
        {"skv_session_stats", session_stats}, {"skv_selection", selection}, {"skv_session_room", session_room},
        {"skv_seq_need", seq_need}, {"skv_seq_len", seq_len}, {"skv_seq_tokens", seq_tokens},
        {"skv_seq_pages", seq_pages}, {"skv_seq_attended", seq_attended}, {"skv_seq_recall", seq_recall},
        {"skv_seq_policy_spec", seq_policy_spec}, {"skv_seq_keeps_all", seq_keeps_all}, {"skv_step_key", step_key}, {"skv_step_abort", step_abort},
        {"skv_set_recall", set_recall}, {"skv_set_timeout", set_timeout}, {"skv_policy_spec", policy_spec},
        {"skv_policy_error", policy_error}, {"skv_policy_depends_on_prefill", policy_depends},
        {"skv_backend", backend}, {"skv_version", version}, {"skv_last_error", last_error},
        {"skv_identity_add", identity}, {"skv_identity_add_text", identity}, {"skv_identity_add_number", identity},
        {"skv_identity_add_shape", identity}, {"skv_identity_add_tensor", identity}, {"skv_identity_add_files", identity},
        {"skv_identity_name", identity}, {"skv_rope_frequency", rope_frequency}, {"skv_rope_scale", rope_scale}, {"skv_close", close_},
        {"skv_disconnect", disconnect}, {"skv_connect", connect_},
};
#define N_CALLS (sizeof(calls) / sizeof(calls[0]))

/* All exported functions are in the table. */
START_TEST(the_table_is_complete)
{
	FILE *map = fopen(SKV_SRCDIR "/libclient/sparsekv-client.map", "r");
	char line[128], name[64];

	ck_assert_ptr_nonnull(map);
	while (fgets(line, sizeof(line), map)) {
		size_t i = 0;

		if (sscanf(line, " skv_%50[a-z_];", name) != 1 || strstr(name, "_init"))
			continue; /* these fill a struct of the caller's */
		while (i < N_CALLS && strcmp(calls[i].name + 4, name) != 0)
			i++;
		ck_assert_msg(i < N_CALLS, "skv_%s is not called in a child of fork", name);
	}
	fclose(map);
}
END_TEST

/* ---- a child --------------------------------------------------------------------------------- */

static void *call_all(void *unused)
{
	(void)unused;
	for (size_t i = 0; i < N_CALLS; i++)
		calls[i].run();
	return NULL;
}

/* Make all calls with the handles, from the child's first thread or another; then exit, with all exit handlers. */
static void in_a_child(struct skv_session *its, struct skv_seq *its_seq, bool from_thread)
{
	pid_t pid;

	fflush(NULL);
	pid = child_fork();
	if (pid == 0) {
		pthread_t thread;

		alarm(20); /* a call that waits for a lock is killed */
		s = its;
		q = its_seq;
		if (!from_thread)
			call_all(NULL);
		else if (pthread_create(&thread, NULL, call_all, NULL) || pthread_join(thread, NULL))
			_exit(2);
		exit(0);
	}
	child_wait(pid);
}

/* ---- the parent ------------------------------------------------------------------------------ */

/* A token's rows follow from its position. */
static void fill_rows(uint32_t token, uint32_t layer)
{
	for (uint32_t i = 0; i < ROW; i++)
		rows[i] = (float)((i * 31 + token * 17 + layer * 7) % 101) / 50 - 1;
}

/* A step of one token; with `forking` it calls fork() at various points. Outputs of all layers go to ret. */
static void step(struct skv_seq *of, uint32_t token, bool forking, float *ret)
{
	struct skv_step_item item = SKV_STEP_ITEM(.seq = of, .n_tokens = 1, .tokens = (const int32_t *)&token);
	int32_t next = (int32_t)token + 1;

	OK(skv_step_begin(session, &item, 1, NULL));
	for (uint32_t layer = 0; layer < model.n_layers; layer++) {
		fill_rows(token, layer);
		OK(skv_attend(session, layer, &attn));
		memcpy(ret + layer * model.n_heads * model.head_dim, out, model.n_heads * model.head_dim * sizeof(float));
		if (forking && layer == token % model.n_layers && token % 8 == 3) /* in the middle of the step */
			in_a_child(session, of, token % 16 == 3);
	}
	OK(skv_step_end(session, &next, NULL));
	if (forking && token % 8 == 5) /* between two steps */
		in_a_child(session, of, token % 16 == 5);
}

/* Two sequences of the same tokens, one of them through forks: the same outputs and ids. */
START_TEST(the_parent_goes_on)
{
	size_t n = model.n_layers * model.n_heads * model.head_dim;
	float *with = malloc(n * sizeof(float)), *without = malloc(n * sizeof(float));
	struct skv_seq *twin;
	const int32_t *ids, *ids_of_twin;
	uint32_t len;

	OK(skv_seq_new(session, "twin", 0, &twin));
	for (uint32_t token = 0; token < STEPS; token++) {
		step(seq, token, true, with);
		step(twin, token, false, without);
		ck_assert_mem_eq(with, without, n * sizeof(float));
	}
	ids = skv_seq_tokens(seq, &len);
	ids_of_twin = skv_seq_tokens(twin, NULL);
	ck_assert_uint_eq(len, STEPS);
	ck_assert_mem_eq(ids, ids_of_twin, (STEPS + 1) * sizeof(*ids));
	free(with);
	free(without);
}
END_TEST

#if THREADS > 1
static atomic_bool enough;

static void *step_on(void *unused)
{
	static float in[ROW], result[ROW];
	const struct skv_attn a = SKV_ATTN(.q = in, .k = in, .v = in, .out = result);

	(void)unused;
	while (!atomic_load(&enough)) {
		OK(skv_step_begin(other, &SKV_STEP_ITEM(.seq = others, .n_tokens = 1), 1, NULL));
		for (uint32_t layer = 0; layer < model.n_layers; layer++)
			OK(skv_attend(other, layer, &a));
		if (skv_seq_len(others) < 200)
			OK(skv_step_end(other, NULL, NULL));
		else
			skv_step_abort(other);
	}
	return NULL;
}

/* Fork while another thread steps, and while one holds its session's lock because it waits for a stopped daemon. */
START_TEST(other_threads_do_not_matter)
{
	pthread_t thread;

	ck_assert_int_eq(pthread_create(&thread, NULL, step_on, NULL), 0);
	for (int i = 0; i < 20; i++)
		in_a_child(i % 2 ? session : other, i % 2 ? seq : others, i % 4 > 1);
	atomic_store(&enough, true);
	pthread_join(thread, NULL);
}
END_TEST
#endif

static void *wait_for_daemon(void *unused)
{
	struct skv_seq *third = NULL;

	(void)unused;
	OK(skv_seq_new(other, NULL, 0, &third));
	return NULL;
}

START_TEST(locks_that_others_hold_do_not_matter)
{
	pthread_t thread;
	pid_t pid;

	skv_set_timeout(client, 60000);
	ck_assert_int_eq(kill(daemon_.pid, SIGSTOP), 0);
	ck_assert_int_eq(pthread_create(&thread, NULL, wait_for_daemon, NULL), 0);
	fix_sleep_ms(100);
	fflush(NULL);
	pid = child_fork();
	if (pid == 0) {
		alarm(20);
		s = other;
		q = others;
		for (size_t i = 0; i < N_CALLS - 1; i++) /* without skv_connect: the daemon is stopped */
			calls[i].run();
		exit(0);
	}
	child_wait(pid);
	ck_assert_int_eq(kill(daemon_.pid, SIGCONT), 0);
	pthread_join(thread, NULL);
}
END_TEST

static void setup(void)
{
	client_begin((const char *[]){"--pool-bytes=16M", "--segment-bytes=64K", NULL});
	refmodel_model(&model, "fork", SKV_F32, 2000);
	ck_assert_uint_le(model.n_heads * model.head_dim, ROW);
	OK(skv_set_threads(client, THREADS));
	OK(skv_open(client, &model, "full", &session));
	OK(skv_open(client, &model, "full", &other));
	OK(skv_seq_new(session, "forking", 0, &seq));
	OK(skv_seq_new(other, NULL, 0, &others));
}

static void teardown(void)
{
	skv_disconnect(client);
	for (double end = fix_now() + 5; raw_leased(op) > 0;)
		ck_assert_double_lt(fix_now(), end);
	raw_close(op);
	fix_stop(&daemon_);
}

int main(void)
{
	Suite *suite = begin_suite("test-client-fork");

	add_case(suite, "fork", 120, setup, teardown, the_table_is_complete, the_parent_goes_on,
	         locks_that_others_hold_do_not_matter, NULL);
#if THREADS > 1
	add_case(suite, "threads", 120, setup, teardown, other_threads_do_not_matter, NULL);
#endif
	return run_suite(suite);
}
