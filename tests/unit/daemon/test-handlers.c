/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each request costs the daemon when other users have much: compares the processor time of a daemon with few
 * sequences and parked files with that of one with eight times as many. The two run side by side and are asked in
 * turns, so that other processes on the machine disturb both alike. The table has every request of the protocol, and
 * what bounds its cost.
 */
#include <check.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "common/seqmem.h"
#include "common/wire-table.h"
#include "tests/support/folder.h"
#include "tests/support/raw-engine.h"
#include "tests/support/suite.h"

#define FEW 200u    /* sequences of other users; an eighth of them are parked */
#define FACTOR 8u   /* how many times as many there are in the second daemon */
#define RUNS 7
#define TIMES 10    /* of a request in a run */
#define TOKENS 256u /* of the sequence in requests: two blocks */
#define NAME "mine"

/* A daemon with its users. */
static struct side {
	struct fix fix;
	char *folder;
	struct raw_engine others, own;
	struct raw *operator;
	uint32_t seq; /* held by `own`, and named */
	clockid_t clock;
} sides[2], *at; /* requests go to `at` */

/* ---- requests -------------------------------------------------------------------------------- */

static void ask_session(uint16_t type)
{
	const struct skv_msg_session m = {.session = at->own.session.session};

	raw_ask(at->own.raw, type, &m, sizeof(m), -1);
}

static void ask_seq(uint16_t type, uint32_t of)
{
	const struct skv_msg_seq m = {.session = at->own.session.session, .seq = of};

	raw_ask(at->own.raw, type, &m, sizeof(m), -1);
}

static uint32_t ask_name(uint16_t type, const char *name, uint32_t of, uint32_t max_tokens, uint32_t n_tokens)
{
	struct skv_msg_seq_name m = {.session = at->own.session.session, .seq = of, .max_tokens = max_tokens, .n_tokens = n_tokens};

	skv_wire_string(m.name, sizeof(m.name), name);
	return ((const struct skv_msg_seq_ok *)raw_ask(at->own.raw, type, &m, sizeof(m), -1))->seq;
}

static void hello(void)
{
	struct raw *r = raw_hello(at->fix.socket);
	const uint32_t client = r->client;

	raw_hang_up(r);
	raw_client_end(at->fix.socket, client);
}

static void open_and_close(void)
{
	const struct skv_wire_model m = raw_engine_model(2);
	struct skv_msg_open_ok ok;
	struct skv_msg_session session;

	raw_open_model(at->own.raw, &m, "full", &ok);
	at->own.raw->n_sessions--;
	session = (struct skv_msg_session){.session = ok.session};
	raw_ask(at->own.raw, SKV_MSG_CLOSE, &session, sizeof(session), -1);
}

static void new_and_drop(void)
{
	ask_seq(SKV_MSG_SEQ_DROP, ask_name(SKV_MSG_SEQ_NEW, "", 0, 64, 0));
}

static void detach_and_attach(void)
{
	ask_seq(SKV_MSG_SEQ_DETACH, at->seq);
	at->seq = ask_name(SKV_MSG_SEQ_ATTACH, NAME, 0, 0, 0);
}

static void fork_and_drop(void)
{
	ask_seq(SKV_MSG_SEQ_DROP, ask_name(SKV_MSG_SEQ_FORK, "", at->seq, 0, TOKENS));
}

static void seal(void)
{
	const struct skv_msg_seal m = {.session = at->own.session.session, .seq = at->seq, .n_tokens = TOKENS};

	raw_ask(at->own.raw, SKV_MSG_PREFIX_SEAL, &m, sizeof(m), -1);
}

static void new_of_prefix(void)
{
	ask_seq(SKV_MSG_SEQ_DROP, ask_name(SKV_MSG_PREFIX_NEW, "", at->seq, 0, TOKENS));
}

static void release(void)
{
	const struct skv_msg_runs none = {.session = at->own.session.session, .seq = at->seq};

	raw_ask(at->own.raw, SKV_MSG_SEQ_RELEASE, &none, sizeof(none), -1);
}

static void lease(void)
{
	const struct skv_msg_lease_get get = {.session = at->own.session.session, .least = 8, .most = 8};
	struct {
		struct skv_msg_runs m;
		struct skv_wire_run runs[8];
	} put = {.m = {.session = at->own.session.session}};
	const struct skv_msg_runs *ok = raw_ask(at->own.raw, SKV_MSG_LEASE_GET, &get, sizeof(get), -1);

	put.m.n_runs = ok->n_runs;
	memcpy(put.runs, ok + 1, ok->n_runs * sizeof(*put.runs));
	raw_ask(at->own.raw, SKV_MSG_LEASE_PUT, &put, sizeof(put.m) + put.m.n_runs * sizeof(*put.runs), -1);
}

static void room(void)
{
	ask_session(SKV_MSG_LEASE_ROOM);
}

static void policy(void)
{
	const struct skv_msg_spec spec = {.spec = "full"};
	struct skv_msg_policy_ack ack = {.session = at->own.session.session};

	ask_session(SKV_MSG_POLICY_GET);
	ack.generation = ((const struct skv_msg_policy *)(const void *)(at->own.raw->packet + sizeof(struct skv_msg_header)))->generation;
	raw_ask(at->own.raw, SKV_MSG_POLICY_FIND, &spec, sizeof(spec), -1);
	raw_ask(at->own.raw, SKV_MSG_POLICY_ACK, &ack, sizeof(ack), -1);
}

static void swap(void)
{
	ck_assert_int_eq(raw_policy_swap_client(at->operator, at->own.raw->client, "full"), 0);
}

static void pools(void)
{
	json_decref(raw_query(at->own.raw, SKV_QUERY_POOLS));
}

static void drop_by_name(void)
{
	ck_assert_int_ne(raw_seq_named(at->own.raw, SKV_MSG_SEQ_DROP_NAME, at->own.model.name, "nobody's"), 0);
}

static void park_and_resume(void)
{
	ask_seq(SKV_MSG_SEQ_DETACH, at->seq);
	ck_assert_int_eq(raw_seq_named(at->own.raw, SKV_MSG_SEQ_PARK, at->own.model.name, NAME), 0);
	ck_assert_int_eq(raw_seq_named(at->own.raw, SKV_MSG_SEQ_RESUME, at->own.model.name, NAME), 0);
	at->seq = ask_name(SKV_MSG_SEQ_ATTACH, NAME, 0, 0, 0);
}

/* ---- the table ------------------------------------------------------------------------------- */

/* What bounds the cost of a request. */
enum bound {
	CONSTANT,  /* does not depend on what other users have */
	TURNS,     /* as much as was asked for, in turns with other users */
	ELSEWHERE, /* this test cannot repeat it often: the named test compares its cost, or bounds its turns */
};

static const struct row {
	enum bound bound;
	uint16_t types[3];
	void (*once)(void);
	const char *test;
} table[] = {
	{CONSTANT, {SKV_MSG_HELLO, SKV_MSG_CLIENT_END}, hello, NULL},
	{CONSTANT, {SKV_MSG_OPEN, SKV_MSG_CLOSE}, open_and_close, NULL},
	{CONSTANT, {SKV_MSG_SEQ_NEW}, new_and_drop, NULL},
	{TURNS, {SKV_MSG_SEQ_DETACH, SKV_MSG_SEQ_ATTACH}, detach_and_attach, NULL},
	{TURNS, {SKV_MSG_SEQ_FORK, SKV_MSG_SEQ_DROP}, fork_and_drop, NULL},
	{TURNS, {SKV_MSG_PREFIX_SEAL}, seal, NULL},
	{TURNS, {SKV_MSG_PREFIX_NEW}, new_of_prefix, NULL},
	{CONSTANT, {SKV_MSG_SEQ_RELEASE}, release, NULL},
	{CONSTANT, {SKV_MSG_LEASE_GET, SKV_MSG_LEASE_PUT}, lease, NULL},
	{CONSTANT, {SKV_MSG_LEASE_ROOM}, room, NULL},
	{CONSTANT, {SKV_MSG_POLICY_GET, SKV_MSG_POLICY_FIND, SKV_MSG_POLICY_ACK}, policy, NULL},
	{CONSTANT, {SKV_MSG_POLICY_SWAP}, swap, NULL},
	{CONSTANT, {SKV_MSG_QUERY}, pools, "test-turns: lists take turns, a piece each"},
	{CONSTANT, {SKV_MSG_SEQ_DROP_NAME}, drop_by_name, NULL},
	{TURNS, {SKV_MSG_SEQ_PARK, SKV_MSG_SEQ_RESUME}, park_and_resume, NULL},
	{ELSEWHERE, {SKV_MSG_RECONNECT, SKV_MSG_RECONNECT_SESSION, SKV_MSG_RECONNECT_SEQ}, NULL, "test-core-cost"},
	{ELSEWHERE, {SKV_MSG_RECONNECT_PAGES, SKV_MSG_RECONNECT_DONE}, NULL, "test-core-cost"},
	{ELSEWHERE, {SKV_MSG_SEQ_EXPORT, SKV_MSG_SEQ_IMPORT}, NULL, "test-export"},
	{ELSEWHERE, {SKV_MSG_SEGMENT_ACK}, NULL, "test-turns"},
	{ELSEWHERE, {SKV_MSG_POLICY_LOAD}, NULL, "test-probe: a process of its own tries the file; of operators alone"},
};
#define N_ROWS (sizeof(table) / sizeof(*table))

/* ---- a daemon and what other users have in it ------------------------------------------------ */

static void others_have(uint32_t n)
{
	char name[16];

	raw_engine_open(&at->others, at->fix.socket, 2);
	for (uint32_t i = 0; i < n; i++) {
		struct skv_msg_seq m = {.session = at->others.session.session};

		snprintf(name, sizeof(name), "s%u", i);
		m.seq = raw_engine_seq(&at->others, name, 64);
		if (i % 2 == 0) /* the others stay attached */
			raw_ask(at->others.raw, SKV_MSG_SEQ_DETACH, &m, sizeof(m), -1);
		if (i % 8 == 0)
			ck_assert_int_eq(raw_seq_named(at->others.raw, SKV_MSG_SEQ_PARK, at->others.model.name, name), 0);
	}
}

static void begin(struct side *side, uint32_t n)
{
	char parked[96];
	const char *const options[] = {parked, "--pool-bytes=1G", "--account-bytes=2G", "--account-sequences=4096", NULL};

	at = side;
	at->folder = fx_folder();
	snprintf(parked, sizeof(parked), "--parked-path=%s", at->folder);
	fix_start_process(&at->fix, options);
	ck_assert_int_eq(clock_getcpuclockid(at->fix.pid, &at->clock), 0);
	at->operator = raw_operator(at->fix.socket);
	others_have(n);
	raw_engine_open(&at->own, at->fix.socket, 2);
	at->seq = raw_engine_seq(&at->own, NAME, TOKENS);
}

static void end(struct side *side)
{
	char command[128];

	at = side;
	raw_close(at->own.raw);
	raw_close(at->others.raw);
	raw_close(at->operator);
	fix_stop(&at->fix);
	snprintf(command, sizeof(command), "rm -rf '%s'", at->folder);
	ck_assert_int_eq(system(command), 0);
	free(at->folder);
}

/* ---- measured -------------------------------------------------------------------------------- */

static double cpu_ms(void)
{
	struct timespec t;

	ck_assert_int_eq(clock_gettime(at->clock, &t), 0);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* Stores the processor time of each daemon for one request, in ms: the minimum of some runs, since ticks are included. */
static void cost(void (*once)(void), double ret[2])
{
	ret[0] = ret[1] = 1e9;
	for (int run = 0; run < 2 * RUNS; run++) {
		double from, took;

		at = &sides[run % 2];
		from = cpu_ms();
		for (int i = 0; i < TIMES; i++)
			once();
		took = (cpu_ms() - from) / TIMES;
		ret[run % 2] = took < ret[run % 2] ? took : ret[run % 2];
	}
}

/* Is a request dearer beside many others? */
static bool too_dear(const struct row *row)
{
	double ms[2];
	bool is;

	cost(row->once, ms);
	is = ms[1] > 2 * ms[0] + 0.05;
	printf("%-16s %.3f ms, beside %u times as much %.3f ms%s\n", skv_wire_name(row->types[0]), ms[0], FACTOR, ms[1], is ? ": too much" : "");
	fflush(stdout);
	return is;
}

/*
 * Keeps this process and the daemons that it starts on one processor: a daemon that shares one with a compiler pays for
 * a switch between the two at each request.
 */
static void stay_on_one_processor(void)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET((unsigned)sched_getcpu(), &one);
	ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
}

START_TEST(others_cost_nothing)
{
	unsigned dear = 0;

	stay_on_one_processor();
	begin(&sides[0], FEW);
	begin(&sides[1], FEW * FACTOR);
	for (size_t i = 0; i < N_ROWS; i++)
		dear += table[i].once && too_dear(&table[i]);
	end(&sides[0]);
	end(&sides[1]);
	ck_assert_uint_eq(dear, 0);
}
END_TEST

/* Every request of the protocol is in the table, and what is not measured here has another test. */
START_TEST(all_are_known)
{
	for (uint16_t type = 1; type < 256; type++) {
		const struct rule *rule = skv_wire_rule_of(type);
		unsigned found = 0;

		for (size_t i = 0; i < N_ROWS; i++)
			for (unsigned k = 0; k < 3; k++)
				found += table[i].types[k] == type;
		ck_assert_msg(found == (rule && rule->request.body), "%s, %u, is %u times in the table", skv_wire_name(type), type, found);
	}
	for (size_t i = 0; i < N_ROWS; i++)
		ck_assert((table[i].bound == ELSEWHERE) == !table[i].once && (table[i].once || table[i].test));
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-handlers");

	add_case(s, "handlers", 120, NULL, NULL, all_are_known, others_cost_nothing, NULL);
	return run_suite(s);
}
