/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One client with a session in each of several threads, while daemons are killed: threads wait for replies, hold pages,
 * fork and drop at any moment of the reconnection, which one of them performs. No call fails, and outputs are those of
 * an undisturbed run.
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/client-test.h"
#include "tests/support/manager.h"
#include "tests/support/output-hash.h"
#include "tests/support/restart-engine.h"

#define THREADS 5
#define TOKENS 200u
#define PROMPT 30u
#define RESTARTS (rnd_hurried() ? 5 : 30)

static const char *options[] = {"--pool-bytes=64M", "--segment-bytes=1M", "--account-bytes=60M", "--cuda=off", NULL};

static struct skv_client *client;
static struct skv_model model;
static uint64_t content[TOKENS], hash[TOKENS]; /* hash: of the outputs of the step at that length */
static _Atomic bool stop;
static _Atomic unsigned rounds;

static uint64_t step(struct refmodel *w, struct skv_seq *q, uint32_t len, uint32_t *ret_n)
{
	const uint32_t n = len == 0 ? PROMPT : 1;
	const size_t size = (size_t)model.n_layers * n * model.n_heads * model.head_dim;
	float *out = malloc(size * sizeof(*out));
	uint64_t h;

	OK(refmodel_run(w, q, content + len, n, len == 0, out, NULL));
	h = output_hash(OUTPUT_HASH_NONE, out, size);
	free(out);
	*ret_n = n;
	return h;
}

/* Runs a sequence from its beginning to its end; on the way a fork takes its place. */
static void one_round(struct refmodel *w, bool record)
{
	const uint32_t forked = PROMPT + rnd_below(TOKENS - PROMPT);
	struct skv_seq *q, *child;

	OK(skv_seq_new(w->session, NULL, 0, &q));
	for (uint32_t len = 0, n; len < TOKENS; len += n) {
		const uint64_t h = step(w, q, len, &n);

		if (record)
			hash[len] = h;
		ck_assert_msg(h == hash[len], "other outputs at %u", len);
		if (len != forked)
			continue;
		OK(skv_seq_fork(q, NULL, SKV_ALL, &child));
		OK(skv_seq_drop(q));
		q = child;
	}
	OK(skv_seq_drop(q));
}

static void *work(void *unused)
{
	struct refmodel w = {.model = model};

	(void)unused;
	while (!stop) {
		OK(skv_open(client, &model, "full", &w.session));
		one_round(&w, false);
		skv_close(w.session);
		rounds++;
	}
	return NULL;
}

START_TEST(of_one_client)
{
	struct refmodel w = {0};
	pthread_t threads[THREADS];
	char *log;

	refmodel_model(&w.model, "threads", SKV_F32, TOKENS + 1);
	model = w.model;
	for (uint32_t i = 0; i < TOKENS; i++)
		content[i] = refmodel_content(3, i);
	manager_open();
	manager_start(options);
	OK(skv_connect(&client, manager_socket));
	skv_set_timeout(client, 20000);
	OK(skv_open(client, &model, "full", &w.session));
	one_round(&w, true);
	for (int i = 0; i < THREADS; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, work, NULL), 0);
	for (int i = 0; i < RESTARTS; i++) {
		usleep(rnd_below(80000));
		(void)manager_end(SIGKILL);
		manager_start(options);
	}
	stop = true;
	for (int i = 0; i < THREADS; i++)
		ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
	one_round(&w, false); /* in a session that was idle all the time */
	printf("%u sequences in %d threads, %d restarts\n", rounds, THREADS, RESTARTS);
	skv_disconnect(client);
	manager_expect_kept(0);
	ck_assert_int_eq(manager_end(SIGTERM), 0);
	log = manager_log();
	restart_engine_check_log(log);
	free(log);
	manager_close();
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-reconnect-threads");

	rnd_seed("test-reconnect-threads");
	add_case(s, "threads", 120, NULL, NULL, of_one_client, NULL);
	return run_suite(s);
}
