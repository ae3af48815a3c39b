/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work that grows with the number of tokens, while another client leases and returns pages: that client does not wait
 * for it. A client with many long sequences dies; a large sequence is forked, detached, attached and dropped; other
 * clients ask for lists without end, and for the status of many sessions.
 *
 * Tables are written as a client writes them, and pages are never touched: the machine needs memory for tables only.
 * TURNS=full (make check-hostile): 4,096 sequences of 128k tokens, 20 of 131,072 tokens in 32 layers, a fork of 8
 * million pages and 670 MiB, with the time limits for an idle machine. Under a sanitizer, where everything takes longer
 * and other tests run at the same time, a turn may take a second.
 */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/support/child.h"
#include "tests/support/daemon-fixture.h"
#include "tests/support/pauses.h"
#include "tests/support/privilege.h"
#include "tests/support/raw-engine.h"
#include "tests/support/suite.h"

#define TOKENS (128u << 10)
#define OTHERS_PAGES 64u

static struct fix fix;
static struct raw *other; /* the client that must not wait */
static uint32_t others_session;

static bool is_full(void)
{
	return getenv("TURNS") != NULL;
}

static void setup(void)
{
	static const char *const options[] = {"--pool-bytes=48G", "--account-bytes=48G", "--segment-bytes=64M",
	                                      "--account-sequences=5000", "--max-sequences=16384", "--account-clients=600",
	                                      "--max-sessions=16384", NULL};

	pauses_begin();
	fix_start_process(&fix, options);
	other = raw_operator(fix.socket); /* which sees what the daemon does for all users */
}

static void teardown(void)
{
	raw_close(other);
	fix_stop(&fix);
	pauses_end();
}

/* A time limit in ms: with TURNS=full, without it, and under a sanitizer or valgrind. */
static double limit(double full, double quick, double slow)
{
	return is_full() ? full : slowed() ? slow : quick;
}

/* ---- the other client ------------------------------------------------------------------------ */

static struct {
	unsigned n;
	double most; /* seconds that a lease and its return took */
	double begun, gone; /* gone: clients that were gone at the beginning */
} live;

static double counter(const char *name)
{
	json_t *status = raw_query(other, SKV_QUERY_STATUS), *figure = json_object_get(json_object_get(status, "counters"), name);
	double x = json_number_value(figure);

	ck_assert_ptr_nonnull(figure);
	json_decref(status);
	return x;
}

static void live_begin(void)
{
	live.n = 0;
	live.most = 0;
	live.gone = counter("clients_gone");
	live.begun = fix_now();
}

static void live_once(void)
{
	struct skv_msg_lease_get get = {.session = others_session, .least = 1, .most = OTHERS_PAGES};
	struct {
		struct skv_msg_runs m;
		struct skv_wire_run runs[OTHERS_PAGES];
	} put = {.m = {.session = others_session}};
	double begin = fix_now(), took;
	const struct skv_msg_runs *ok = raw_ask(other, SKV_MSG_LEASE_GET, &get, sizeof(get), -1);

	put.m.n_runs = ok->n_runs;
	memcpy(put.runs, ok + 1, ok->n_runs * sizeof(*put.runs));
	raw_ask(other, SKV_MSG_LEASE_PUT, &put, sizeof(put.m) + put.m.n_runs * sizeof(*put.runs), -1);
	took = fix_now() - begin;
	live.most = took > live.most ? took : live.most;
	live.n++;
}

/* The other client has not waited long, and the daemon had no long turn. */
static void live_end(const char *what)
{
	double took = fix_now() - live.begun, turn = counter("turn_max_ms"), cpu = counter("turn_cpu_max_ms");
	const double pause = pauses_longest_ms(); /* any turn may have been so much longer; a guest counts it as its own work */
	unsigned n_long;

	printf("%s: %.1f ms; %u leases meanwhile, %.2f ms at most; the longest turn so far %.2f ms, %.2f ms of the processor's time; a "
	       "processor paused for %.2f ms\n", what, took * 1e3, live.n, live.most * 1e3, turn, cpu, pause);
	n_long = raw_print_turns(other);
	fflush(stdout);
	ck_assert_double_lt(turn, limit(20, 100, 1000) + pause);
	if (!is_full() || n_long > RAW_RARE_TURNS)
		ck_assert_double_lt(cpu, limit(2, 50, 500) + pause);
	/* part of it is the client's own work: it acknowledges the end of every segment */
	ck_assert_double_lt(live.most * 1e3, limit(50, 300, 3000) + pause);
}

/* ---- death ----------------------------------------------------------------------------------- */

/* Returns how many bytes of pages the client had leased. */
static uint64_t die_with(uint32_t n, uint32_t n_layers, bool named)
{
	pid_t pid = child_fork();
	uint64_t leased;
	int status;

	if (pid == 0) {
		struct raw_engine e;
		char name[16] = "";

		raw_engine_open(&e, fix.socket, n_layers);
		for (uint32_t i = 0; i < n; i++) {
			if (named && i % 2)
				snprintf(name, sizeof(name), "s%u", i);
			else
				*name = 0;
			raw_engine_seq(&e, name, TOKENS);
		}
		raise(SIGSTOP);
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
	ck_assert_msg(WIFSTOPPED(status), "%s", child_problem());
	leased = raw_leased(other);
	live_begin();
	kill(pid, SIGKILL);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	return leased;
}

static void others_open(uint32_t n_layers)
{
	struct skv_wire_model m = raw_engine_model(n_layers);

	others_session = raw_open_model(other, &m, "full", NULL);
}

START_TEST(death_of_many_sequences)
{
	const uint32_t n = is_full() ? 4096 : 96;

	others_open(1);
	die_with(n, 1, true);
	while (counter("clients_gone") == live.gone)
		live_once();
	live_end("death with sequences of 131,072 tokens");
	ck_assert_uint_eq(raw_leased(other), 0);
}
END_TEST

/* The pages of a client, all leased at its death, are soon free again. */
START_TEST(first_pages_back)
{
	const uint32_t n = is_full() ? 20 : 2, n_layers = 32;
	double first = 0;
	uint64_t all;

	others_open(n_layers);
	all = die_with(n, n_layers, false);
	ck_assert_uint_ge(all, (uint64_t)n * n_layers * TOKENS / SKV_PAGE_TOKENS * 1024);
	while (counter("clients_gone") == live.gone) {
		live_once();
		if (first == 0 && raw_leased(other) < all)
			first = fix_now() - live.begun;
	}
	live_end("death with 32 layers of 131,072 tokens each");
	printf("%u sequences, the first pages back after %.1f ms\n", n, first * 1e3);
	ck_assert_double_lt(first * 1e3, limit(100, 1000, 5000));
}
END_TEST

/* ---- one large sequence ---------------------------------------------------------------------- */

/* The other client continues while the engine waits for its reply. Returns the reply's body. */
static const void *ask_in_turns(struct raw_engine *e, uint16_t type, const void *body, size_t bytes, const char *what)
{
	int got;

	live_begin();
	raw_send(e->raw, type, body, bytes, -1);
	while ((got = raw_recv_answer(e->raw, 0)) < 0)
		live_once();
	ck_assert_msg(got == (int)(type | SKV_REPLY), "%s: %s", what, got ? raw_error_text(e->raw) : "hung up");
	live_end(what);
	return e->raw->packet + sizeof(struct skv_msg_header);
}

START_TEST(a_large_sequence)
{
	const uint32_t n_layers = is_full() ? 128 : 32;
	struct skv_msg_seq_name name = {0};
	struct skv_msg_seq m;
	struct raw_engine e;
	uint32_t child;

	others_open(n_layers);
	raw_engine_open(&e, fix.socket, n_layers);
	m = (struct skv_msg_seq){.session = e.session.session, .seq = raw_engine_seq(&e, "large", 8 * TOKENS)};
	name = (struct skv_msg_seq_name){.session = m.session, .seq = m.seq, .n_tokens = SKV_ALL};
	child = ((const struct skv_msg_seq_ok *)ask_in_turns(&e, SKV_MSG_SEQ_FORK, &name, sizeof(name), "fork"))->seq;
	ck_assert_uint_eq(e.raw->n_fds, 1);
	ask_in_turns(&e, SKV_MSG_SEQ_DROP, &(struct skv_msg_seq){.session = m.session, .seq = child}, sizeof(m), "drop of the fork");
	ask_in_turns(&e, SKV_MSG_SEQ_DETACH, &m, sizeof(m), "detach of what was shared");
	name = (struct skv_msg_seq_name){.session = m.session};
	skv_wire_string(name.name, sizeof(name.name), "large");
	m.seq = ((const struct skv_msg_seq_ok *)ask_in_turns(&e, SKV_MSG_SEQ_ATTACH, &name, sizeof(name), "attach"))->seq;
	ask_in_turns(&e, SKV_MSG_SEQ_DROP, &m, sizeof(m), "drop");

	m.seq = raw_engine_seq(&e, "own", 8 * TOKENS);
	ask_in_turns(&e, SKV_MSG_SEQ_DETACH, &m, sizeof(m), "detach");
	skv_wire_string(name.name, sizeof(name.name), "own");
	ask_in_turns(&e, SKV_MSG_SEQ_ATTACH, &name, sizeof(name), "attach of 2 million pages");
	ask_in_turns(&e, SKV_MSG_CLOSE, &(struct skv_msg_session){.session = m.session}, sizeof(struct skv_msg_session), "close");
	raw_close(e.raw);
}
END_TEST

/* ---- lists ----------------------------------------------------------------------------------- */

/* Makes sequences with tables that are to be counted; then 64 connections list them again and again. */
START_TEST(lists_without_end)
{
	const unsigned n_seqs = is_full() ? 4000 : 300, n_lists = is_full() ? 64 : 8;
	struct skv_msg_query query = {.what = SKV_QUERY_SEQS};
	struct raw *lists[64];
	unsigned answers = 0;
	struct raw_engine e;

	others_open(1);
	raw_engine_open(&e, fix.socket, 1);
	for (unsigned i = 0; i < n_seqs; i++)
		raw_engine_seq(&e, "", 2048);
	for (unsigned i = 0; i < n_lists; i++) {
		lists[i] = raw_hello(fix.socket);
		raw_send(lists[i], SKV_MSG_QUERY, &query, sizeof(query), -1);
	}
	live_begin();
	while (fix_now() < live.begun + (is_full() ? 10 : 1) || answers < n_lists) {
		live_once();
		for (unsigned i = 0; i < n_lists; i++) {
			int got = raw_recv_answer(lists[i], 0);
			const struct skv_msg_text *m = (const void *)(lists[i]->packet + sizeof(struct skv_msg_header));

			if (got < 0)
				continue;
			ck_assert_int_eq(got, SKV_MSG_QUERY | SKV_REPLY);
			if (m->more)
				continue;
			answers++;
			raw_send(lists[i], SKV_MSG_QUERY, &query, sizeof(query), -1);
		}
	}
	live_end("lists of sequences");
	printf("%u connections listed %u sequences each, %u times\n", n_lists, n_seqs, answers);
	for (unsigned i = 0; i < n_lists; i++)
		raw_hang_up(lists[i]); /* in the middle of a reply */
	raw_close(e.raw);
}
END_TEST

/* ---- sessions --------------------------------------------------------------------------------- */

#define CLIENT_SESSIONS 16u /* that a client may have */

/* Clients open all sessions that they may, while others ask for status and policies again and again. */
START_TEST(many_sessions)
{
	const unsigned n_clients = is_full() ? 500 : 50;
	const struct skv_wire_model model = raw_model("many");
	struct raw *clients[500], *asking[8];
	unsigned answers = 0;

	others_open(1);
	for (unsigned i = 0; i < n_clients; i++) {
		clients[i] = raw_hello(fix.socket);
		for (unsigned session = 0; session < CLIENT_SESSIONS; session++)
			raw_open_model(clients[i], &model, "full", NULL);
	}
	for (unsigned i = 0; i < 8; i++)
		asking[i] = i % 2 ? raw_hello(fix.socket) : raw_operator(fix.socket);
	live_begin();
	while (answers < 200) {
		live_once();
		for (unsigned i = 0; i < 8; i++) {
			json_t *answer = raw_query(asking[i], i % 4 < 2 ? SKV_QUERY_STATUS : SKV_QUERY_POLICIES);

			answers += answer != NULL;
			json_decref(answer);
		}
	}
	live_end("status and policies of many sessions");
	for (unsigned i = 0; i < 8; i++)
		raw_close(asking[i]);
	for (unsigned i = 0; i < n_clients; i++)
		raw_close(clients[i]);
}
END_TEST

/* ---- parking ---------------------------------------------------------------------------------- */

#define DUE_TOKENS 1024u
#define DUE_MIB 32u /* maximum memory of the daemon then; it always uses 8 */

static char parked[96];

static void setup_parked(void)
{
	static char option[128];
	static const char *const options[] = {"--pool-bytes=4G", "--account-bytes=4G", "--account-sequences=5000", "--park-after=1", option, NULL};

	strcpy(parked, "/tmp/sparsekv-parked-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(parked));
	snprintf(option, sizeof(option), "--parked-path=%s", parked);
	pauses_begin();
	fix_start_process(&fix, options);
	other = raw_operator(fix.socket);
}

static void teardown_parked(void)
{
	char command[160];

	teardown();
	snprintf(command, sizeof(command), "rm -r %s", parked);
	ck_assert_int_eq(system(command), 0);
}

static double parking_figure(const char *name)
{
	json_t *status = raw_query(other, SKV_QUERY_STATUS);
	const double x = json_number_value(json_object_get(json_array_get(json_object_get(status, "parking"), 0), name));

	json_decref(status);
	return x;
}

/*
 * All sequences of one user become due for parking at the same moment: another user does not notice, and parking uses
 * the memory of a few jobs.
 */
START_TEST(many_are_due)
{
	const uint32_t n = is_full() ? 4000 : 400;
	struct skv_msg_seq m = {0};
	struct raw_engine e;
	char name[16];
	uint32_t *seqs = calloc(n, sizeof(*seqs));
	double jobs, most_jobs = 0;

	others_open(1);
	raw_engine_open(&e, fix.socket, 1);
	for (uint32_t i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "s%u", i);
		seqs[i] = raw_engine_seq(&e, name, DUE_TOKENS);
	}
	live_begin();
	for (uint32_t i = 0; i < n; i++) {
		m = (struct skv_msg_seq){.session = e.session.session, .seq = seqs[i]};
		raw_ask(e.raw, SKV_MSG_SEQ_DETACH, &m, sizeof(m), -1);
	}
	while (parking_figure("parked") < n) {
		live_once();
		jobs = parking_figure("jobs");
		most_jobs = jobs > most_jobs ? jobs : most_jobs;
	}
	live_end("parking of all sequences of a user");
	printf("%u sequences parked, %.0f at a time; the daemon had %lu MiB at most\n", n, most_jobs, fix_memory_mib(&fix, "VmHWM"));
	ck_assert_double_ge(most_jobs, 1);
	ck_assert_double_le(most_jobs, 2);
	if (!slowed())
		ck_assert_uint_lt(fix_memory_mib(&fix, "VmHWM"), DUE_MIB);
	raw_close(e.raw);
	free(seqs);
}
END_TEST

/* ---- orphans --------------------------------------------------------------------------------- */

#define ORPHANS 64u
#define ORPHANS_PAGES 1024u

static void setup_small(void)
{
	static const char *const options[] = {"--pool-bytes=64M", "--account-bytes=80M", "--segment-bytes=1M", NULL};

	pauses_begin();
	fix_start_process(&fix, options);
	other = raw_operator(fix.socket); /* which sees what the daemon does for all users */
}

static void leave_orphans(void *unused)
{
	struct raw_engine e;
	char name[16];

	(void)unused;
	raw_engine_open(&e, fix.socket, 1);
	for (uint32_t i = 0; i < ORPHANS; i++) {
		struct skv_msg_seq m = {.session = e.session.session};

		snprintf(name, sizeof(name), "s%u", i);
		m.seq = raw_engine_seq(&e, name, ORPHANS_PAGES * SKV_PAGE_TOKENS);
		raw_ask(e.raw, SKV_MSG_SEQ_DETACH, &m, sizeof(m), -1);
	}
	raw_close(e.raw);
}

/* One user's sequences without a holder fill the memory: another user gets its half, and no more. */
START_TEST(orphans_make_room)
{
	struct skv_msg_lease_get get = {.least = ORPHANS_PAGES, .most = ORPHANS_PAGES};

	if (!can_change_user())
		return;
	fix_in_child(54321, leave_orphans, NULL);
	others_open(1);
	get.session = others_session;
	for (uint32_t i = 0; i < ORPHANS / 2; i++)
		raw_ask(other, SKV_MSG_LEASE_GET, &get, sizeof(get), -1);
	ck_assert_int_eq(raw_refused(other, SKV_MSG_LEASE_GET, &get, sizeof(get), -1), ENOSPC);
	ck_assert_double_eq(counter("sequences_displaced"), ORPHANS / 2);
	fix_expect_log(&fix, "more than their share of it");
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-turns");

	add_case(s, "turns", is_full() ? 600 : 120, setup, teardown, death_of_many_sequences, first_pages_back, a_large_sequence,
	         lists_without_end, many_sessions, NULL);
	add_case(s, "parking", is_full() ? 300 : 120, setup_parked, teardown_parked, many_are_due, NULL);
	add_case(s, "orphans", 60, setup_small, teardown, orphans_make_room, NULL);
	return run_suite(s);
}
