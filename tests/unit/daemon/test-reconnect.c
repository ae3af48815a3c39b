/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eight engines run, and none of their calls may fail, while the daemon is killed and stopped at random instants and
 * restarted by a service manager; engines are killed and restarted, too.
 *
 * An engine has named and anonymous sequences. It steps, forks, truncates, detaches, attaches, drops, and opens and
 * closes sessions. The outputs of each step are those of an undisturbed run, bit for bit. A new engine finds each named
 * sequence at a commit of the previous engine: the last one that it knew, or the next. At the end the state balances,
 * and nothing without an owner is left.
 *
 * SKV_KILLS: number of killed engines; the daemon is killed a third as often.
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
#include "tests/support/mute-proxy.h"
#include "tests/support/output-hash.h"
#include "tests/support/policies.h"
#include "tests/support/restart-engine.h"
#include "tests/support/times.h"

#define ENGINES 8
#define NAMED 3 /* sequences of an engine */
#define HELD 6  /* named ones, and others */
#define KEYS 4  /* contents of sequences */
#define TOKENS 400u
#define PROMPT 40u

static const char *specs[] = {"full", POLICY_BOUNDS "?budget=6&dense=1"};
#define SPECS 2

static const char *options[] = {"--pool-bytes=64M", "--segment-bytes=1M", "--account-bytes=60M", "--cuda=off", "--cuda-segment-bytes=2M", NULL};

static struct refmodel w;
static uint64_t content[KEYS][TOKENS];

/* What is known of a named sequence, in memory shared by all processes. */
enum state { ABSENT, THERE, MAYBE /* it is being made, or dropped */ };
struct record {
	_Atomic enum state state;
	uint32_t key;
	_Atomic uint32_t len; /* at least so many tokens are committed, unless it is being truncated ... */
	_Atomic uint32_t least; /* ... and in any case so many */
};
static struct shared {
	_Atomic bool stop, mute; /* mute: the daemon's replies to all engines */
	_Atomic uint64_t steps, calls;
	struct record named[ENGINES][NAMED];
	uint64_t hash[SPECS][KEYS][TOKENS]; /* outputs of the step at that length in an undisturbed run */
} *shared;

/* A sequence that the engine holds. */
struct mine {
	struct skv_seq *seq; /* NULL: none */
	struct record *record; /* NULL: it has no name */
	uint32_t key;
	uint32_t len;
	struct record own; /* used if it has no name */
};

static int me; /* the engine's number */
static struct skv_client *client;
static struct mine mine[HELD];

/* Runs the prompt, or one token; returns the hash of the outputs. */
static uint64_t step(struct skv_seq *q, uint32_t key, uint32_t len, uint32_t *ret_n)
{
	const uint32_t n = len == 0 ? PROMPT : 1;
	const size_t size = (size_t)w.model.n_layers * n * w.model.n_heads * w.model.head_dim;
	float *out = malloc(size * sizeof(*out));
	uint64_t h;

	OK(refmodel_run(&w, q, content[key] + len, n, len == 0, out, NULL));
	h = output_hash(OUTPUT_HASH_NONE, out, size);
	free(out);
	*ret_n = n;
	return h;
}

/* ---- an engine ------------------------------------------------------------------------------- */

static const char *name_of(const struct record *r, char name[16])
{
	snprintf(name, 16, "e%d-%d", me, (int)(r - shared->named[me]));
	return name;
}

static int spec_of(int engine)
{
	return engine % SPECS;
}

/* Returns a random entry with or without a sequence; NULL: there is none. */
static struct mine *any(bool held)
{
	const uint32_t first = rnd_below(HELD);

	for (uint32_t i = 0; i < HELD; i++)
		if ((mine[(first + i) % HELD].seq != NULL) == held)
			return &mine[(first + i) % HELD];
	return NULL;
}

static struct record *any_record(enum state state)
{
	const uint32_t first = rnd_below(NAMED);

	for (uint32_t i = 0; i < NAMED; i++) {
		struct record *r = &shared->named[me][(first + i) % NAMED];
		bool held = false;

		for (int k = 0; k < HELD; k++)
			held |= mine[k].seq && mine[k].record == r;
		if (r->state == state && !held)
			return r;
	}
	return NULL;
}

static void hold(struct mine *m, struct skv_seq *q, struct record *r, uint32_t key)
{
	*m = (struct mine){.seq = q, .record = r ? r : &m->own, .key = key};
	m->len = skv_seq_len(q);
	m->record->len = m->record->least = m->len;
	m->record->key = key;
	m->record->state = THERE;
}

/* Checks that the sequence is as committed. */
static void check(struct mine *m)
{
	uint32_t len;
	const int32_t *ids = skv_seq_tokens(m->seq, &len);

	for (uint32_t i = 0; i < len; i++)
		ck_assert_msg(ids[i] == refmodel_token(content[m->key][i]), "token %u of %u is %d", i, len, ids[i]);
}

static void one_step(void)
{
	struct mine *m = any(true);
	uint64_t h;
	uint32_t n;

	if (!m || m->len == TOKENS)
		return;
	h = step(m->seq, m->key, m->len, &n);
	ck_assert_msg(h == shared->hash[spec_of(me)][m->key][m->len], "engine %d: other outputs at %u", me, m->len);
	m->len += n;
	m->record->len = m->record->least = m->len;
	shared->steps++;
}

/* The sequence is about to be made; its length is unknown until then. */
static void about_to_be(struct record *r, uint32_t key)
{
	r->key = key;
	r->least = 0;
	r->len = 1;
	r->state = MAYBE;
}

static void make(void)
{
	struct record *r = rnd_below(2) ? any_record(ABSENT) : NULL;
	struct mine *m = any(false);
	struct skv_seq *q;
	char name[16];

	if (!m)
		return;
	if (r)
		about_to_be(r, 0);
	OK(skv_seq_new(w.session, r ? name_of(r, name) : NULL, 0, &q));
	hold(m, q, r, rnd_below(KEYS));
}

static void fork_one(void)
{
	struct record *r = rnd_below(2) ? any_record(ABSENT) : NULL;
	struct mine *m = any(false), *parent = any(true);
	uint32_t n;
	struct skv_seq *q;
	char name[16];

	if (!m || !parent || parent->len < PROMPT)
		return;
	n = rnd_below(2) ? SKV_ALL : PROMPT + rnd_below(parent->len - PROMPT + 1);
	if (r)
		about_to_be(r, parent->key);
	OK(skv_seq_fork(parent->seq, r ? name_of(r, name) : NULL, n, &q));
	hold(m, q, r, parent->key);
	ck_assert_uint_eq(m->len, n == SKV_ALL ? parent->len : n);
	check(m);
}

static void truncate_one(void)
{
	struct mine *m = any(true);
	uint32_t n;

	if (!m || m->len < PROMPT)
		return;
	n = PROMPT + rnd_below(m->len - PROMPT + 1);
	m->record->least = n;
	OK(skv_seq_truncate(m->seq, n, refmodel_token(content[m->key][n])));
	m->record->len = m->len = n;
}

static void detach(struct mine *m)
{
	OK(skv_seq_detach(m->seq));
	m->seq = NULL;
}

static void attach(struct record *r)
{
	struct mine *m = any(false);
	struct skv_seq *q;
	char name[16];
	int e;

	if (!r || !m)
		return;
	e = skv_seq_attach(w.session, name_of(r, name), &q);
	if (e == -ENOENT && r->state == MAYBE) {
		r->state = ABSENT;
		return;
	}
	ck_assert_msg(e == 0, "engine %d: attach %s: %d %s", me, name, e, skv_last_error());
	ck_assert_msg(skv_seq_len(q) >= r->least && (r->least < r->len || skv_seq_len(q) <= r->len + PROMPT), "engine %d: %s has %u tokens, expected %u to %u",
	              me, name, skv_seq_len(q), r->least, r->len);
	hold(m, q, r, r->key);
	check(m);
}

static void drop(void)
{
	struct mine *m = any(true);

	if (!m)
		return;
	m->record->state = MAYBE;
	OK(skv_seq_drop(m->seq));
	m->record->state = ABSENT;
	m->seq = NULL;
}

/* All sequences end with the session. */
static void reopen(void)
{
	for (int i = 0; i < HELD; i++)
		mine[i].seq = NULL;
	skv_close(w.session);
	OK(skv_open(client, &w.model, specs[spec_of(me)], &w.session));
	while (any_record(THERE))
		attach(any_record(THERE));
}

/* Opens another session for a moment. */
static void other_session(void)
{
	struct skv_session *was = w.session;
	struct skv_seq *q;
	uint32_t n;

	OK(skv_open(client, &w.model, specs[spec_of(me)], &w.session));
	OK(skv_seq_new(w.session, NULL, 0, &q));
	ck_assert(step(q, 1, 0, &n) == shared->hash[spec_of(me)][1][0]);
	skv_close(w.session);
	w.session = was;
}

static void act(void)
{
	const uint32_t what = rnd_below(100);
	struct mine *m = any(true);

	if (what < 40)
		one_step();
	else if (what < 50)
		make();
	else if (what < 65)
		fork_one();
	else if (what < 68)
		truncate_one();
	else if (what < 76 && m && m->record != &m->own)
		detach(m);
	else if (what < 84)
		attach(any_record(THERE));
	else if (what < 96)
		drop();
	else if (what < 98)
		reopen();
	else
		other_session();
	shared->calls++;
}

/*
 * Returns the largest value of a field in this process's rows of clients or sessions; rows of the raw client are
 * smaller.
 */
static int64_t figure(struct raw *r, enum skv_query what, const char *list, const char *key, int64_t value, const char *field)
{
	json_t *answer = raw_query(r, what), *row;
	int64_t found = -1;
	size_t i;

	json_array_foreach(json_object_get(answer, list), i, row)
		if (json_integer_value(json_object_get(row, key)) == value && json_integer_value(json_object_get(row, field)) > found)
			found = json_integer_value(json_object_get(row, field));
	json_decref(answer);
	return found;
}

/* The pages that the daemon has leased to this process are those of its stock and of the one sequence that it holds. */
static void check_leases(void)
{
	struct raw *r = raw_hello(manager_socket);
	int64_t id, lease, stock;
	uint64_t resident, total;
	struct skv_seq *q;
	uint32_t n;

	OK(skv_seq_new(w.session, NULL, 0, &q));
	do {
		const uint32_t len = skv_seq_len(q);

		ck_assert(step(q, 0, len, &n) == shared->hash[spec_of(me)][0][len]);
		skv_seq_pages(q, &resident, &total);
		lease = figure(r, SKV_QUERY_STATUS, "clients", "pid", getpid(), "lease_pages");
		id = figure(r, SKV_QUERY_STATUS, "clients", "lease_pages", lease, "client");
		stock = figure(r, SKV_QUERY_SESSIONS, "sessions", "client", id, "stock_pages");
		ck_assert_msg(skv_seq_len(q) < TOKENS, "engine %d has %d pages on lease, %d in stock and %d in use", me, (int)lease, (int)stock, (int)resident);
	} while (lease != stock + (int64_t)resident);
	OK(skv_seq_drop(q));
	raw_close(r);
}

static void engine(int number)
{
	char path[96];

	me = number;
	rnd_begin((uint64_t)getpid());
	mute_proxy_start(manager_socket, &shared->mute, path);
	OK(skv_connect(&client, path));
	skv_set_timeout(client, 20000);
	OK(skv_open(client, &w.model, specs[spec_of(me)], &w.session));
	for (int i = 0; i < NAMED; i++)
		if (shared->named[me][i].state != ABSENT)
			attach(&shared->named[me][i]);
	while (!shared->stop)
		act();
	while (any(true))
		drop();
	while (any_record(THERE)) {
		attach(any_record(THERE));
		drop();
	}
	if (spec_of(me) == 0) /* other policies have state pages, too */
		check_leases();
	skv_close(w.session);
	skv_disconnect(client);
	_exit(0);
}

/* ---- the test -------------------------------------------------------------------------------- */

static pid_t engines[ENGINES];
static struct times freed, served;

static void start_engine(int i)
{
	engines[i] = child_fork();
	if (engines[i] == 0)
		engine(i);
}

static void check_engines(void)
{
	int status;

	for (int i = 0; i < ENGINES; i++)
		ck_assert_msg(waitpid(engines[i], &status, WNOHANG) == 0, "an engine ended: %s", child_problem());
}

/* Kills an engine; returns the time until all that it had is free. */
static double kill_engine(int i)
{
	const pid_t pid = engines[i];
	struct raw *r = raw_hello(manager_socket);
	double begin;

	ck_assert_int_eq(kill(pid, SIGKILL), 0);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	begin = fix_now();
	while (raw_clients_of(r, pid, NULL))
		ck_assert_msg(fix_now() < begin + 10, "an engine is not forgotten");
	begin = fix_now() - begin;
	raw_close(r);
	start_engine(i);
	return begin;
}

/*
 * Kills the daemon; returns the time until another one answers. Sometimes an engine dies in between, or is killed with
 * it.
 */
static double kill_daemon(void)
{
	const int engine = rnd_below(3) ? -1 : (int)rnd_below(ENGINES);
	const int sig = rnd_below(5) ? SIGKILL : SIGTERM;
	double begin;

	ck_assert_int_eq(manager_end_at_work(sig, &shared->mute, &begin), sig == SIGTERM ? 0 : SIGKILL);
	if (engine >= 0)
		ck_assert_int_eq(kill(engines[engine], SIGKILL), 0);
	manager_start(options);
	raw_close(raw_hello(manager_socket));
	begin = fix_now() - begin;
	if (engine >= 0) {
		ck_assert_int_eq(waitpid(engines[engine], NULL, 0), engines[engine]);
		start_engine(engine);
	}
	return begin;
}

/* Runs in a process of its own: CUDA does not survive a fork. */
static void undisturbed(void)
{
	struct skv_client *c;
	struct skv_seq *q;
	const pid_t pid = child_fork();

	if (pid > 0) {
		child_wait(pid);
		return;
	}
	OK(skv_connect(&c, manager_socket));
	for (int spec = 0; spec < SPECS; spec++) {
		OK(skv_open(c, &w.model, specs[spec], &w.session));
		for (uint32_t key = 0; key < KEYS; key++) {
			OK(skv_seq_new(w.session, NULL, 0, &q));
			for (uint32_t len = 0, n; len < TOKENS; len += n)
				shared->hash[spec][key][len] = step(q, key, len, &n);
			OK(skv_seq_drop(q));
		}
		skv_close(w.session);
	}
	skv_disconnect(c);
	_exit(0);
}

static void setup(void)
{
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(shared, MAP_FAILED);
	refmodel_model(&w.model, "reconnected", SKV_F32, TOKENS + 1);
	for (uint32_t key = 0; key < KEYS; key++)
		for (uint32_t i = 0; i < TOKENS; i++)
			content[key][i] = refmodel_content(key, i);
	if (devmem_is_device())
		options[3] = "--cuda=required";
	manager_open();
	manager_start(options);
	undisturbed();
}

static void check_log(void)
{
	char *log = manager_log();

	restart_engine_check_log(log);
	ck_assert_msg(!strstr(log, "malformed"), "somebody sent something malformed");
	free(log);
}

START_TEST(no_call_fails)
{
	const char *given = getenv("SKV_KILLS");
	const int kills = given ? atoi(given) : rnd_hurried() ? 15 : rnd_takes_all() ? 60 : 24;

	setup();
	for (int i = 0; i < ENGINES; i++)
		start_engine(i);
	for (int n = 0, deaths = 0; n < kills || deaths < kills / 3;) {
		usleep(rnd_below(60000));
		check_engines();
		if (n == kills || (rnd_below(4) == 0 && deaths < kills / 3)) {
			times_add(&served, kill_daemon());
			deaths++;
		} else {
			times_add(&freed, kill_engine((int)rnd_below(ENGINES)));
			n++;
		}
	}
	shared->stop = true;
	for (int i = 0; i < ENGINES; i++)
		child_wait(engines[i]);
	printf("%llu calls, %llu steps\n", (unsigned long long)shared->calls, (unsigned long long)shared->steps);
	times_print(&freed, "from an engine's death until all that it had is free");
	times_print(&served, "from a daemon's death until another answers");
	fflush(stdout);
	manager_expect_kept(0);
	ck_assert_int_eq(manager_end(SIGTERM), 0);
	check_log();
	manager_close();
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-reconnect");

	rnd_seed("test-reconnect");
	add_case(s, "reconnect", 3600, NULL, NULL, no_call_fails, NULL);
	return run_suite(s);
}
