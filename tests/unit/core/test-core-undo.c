/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that changes the state is killed at any instant: what the next one finds, once it has undone what was not
 * committed, is the state as it was at the last commit, byte for byte.
 *
 * What it was is noted down beside it before each commit. The process may die between note and commit; so there are two notes, in
 * turns, and one of them it is.
 */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "daemon/core/core-priv.h"
#include "tests/support/child.h"
#include "tests/support/core-peer.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

#define ROUNDS 250
#define PEERS 3
#define SEQS 4 /* of each peer, from the start on */
#define TOKENS 400

/* Of the state and of the first sequences' tables; in memory that both processes have. */
struct note {
	uint8_t *state;
	skv_pte *tables[PEERS * SEQS];
};
static struct note notes[2];
static struct witness {
	uint32_t last;    /* the note that was taken last */
	uint32_t commits; /* how many were */
	bool forking;     /* tables are changed by the core, and by nobody else */
} *witness;

static struct peer peers[PEERS];
static struct held held[PEERS * SEQS];
static bool is_held[PEERS * SEQS];

static void *shared_memory(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	ck_assert_ptr_ne(p, MAP_FAILED);
	return p;
}

static size_t state_bytes(void)
{
	return core->state.header->offset[SKV_TABLE_UNDO];
}

static size_t table_bytes(const struct held *h)
{
	return (size_t)h->layout.n_tables * h->layout.max_pages * sizeof(skv_pte);
}

static const skv_pte *tables_of(const struct held *h)
{
	return (const skv_pte *)((const char *)h->mem + h->layout.table);
}

static void take_note(void)
{
	struct note *n = &notes[1 - witness->last];

	memcpy(n->state, core->state.header, state_bytes());
	for (int i = 0; i < PEERS * SEQS; i++)
		memcpy(n->tables[i], tables_of(&held[i]), table_bytes(&held[i]));
	witness->last = 1 - witness->last;
	witness->commits++;
}

static void commit(void)
{
	take_note();
	skv_core_commit(core);
}

static void setup(void)
{
	struct skv_core_config config = books_config();
	struct skv_model m = test_model("m", 3, 16);
	char name[8];

	config.max_sequences = 64;
	books_open(&config);
	witness = shared_memory(sizeof(*witness));
	for (int i = 0; i < PEERS; i++)
		peer_join(&peers[i], 1000 + (uid_t)i % 2, &m);
	for (int i = 0; i < PEERS * SEQS; i++) {
		snprintf(name, sizeof(name), "s%d", i);
		held_new(&held[i], &peers[i / SEQS], name, TOKENS);
		held_append(&held[i], &peers[i / SEQS], 40 + rnd_below(100));
		is_held[i] = true;
	}
	for (int i = 0; i < 2; i++) {
		notes[i].state = shared_memory(state_bytes());
		for (int k = 0; k < PEERS * SEQS; k++)
			notes[i].tables[k] = shared_memory(table_bytes(&held[k]));
	}
	commit();
}

/* ---- what the process does ------------------------------------------------------------------- */

static void fork_one(struct held *parent, struct peer *p)
{
	struct held child;

	witness->forking = true;
	if (held_fork(&child, parent, p, "") == 0) {
		commit();
		witness->forking = false;
		if (rnd_below(2))
			held_append(&child, p, 1 + rnd_below(30));
		held_drop(&child, p);
		held_close(&child);
	}
	witness->forking = false;
}

static void detach_or_attach(int i, struct peer *p)
{
	const struct skv_core_seq_view v = {.seq = held[i].seq};
	struct skv_core_seq_info info;
	char name[8];

	snprintf(name, sizeof(name), "s%d", i);
	if (is_held[i])
		ck_assert_int_eq(in_turns(skv_core_seq_detach(core, p->client, p->session.session, v.seq), NULL), 0);
	else
		ck_assert_int_eq(in_turns(skv_core_seq_attach(core, p->client, p->session.session, name, &info), &info), 0);
	is_held[i] = !is_held[i];
}

static void give_pages(struct peer *p)
{
	struct skv_wire_run runs[8];
	uint32_t n = 0;

	while (n < 8 && p->n_stock)
		runs[n++] = (struct skv_wire_run){p->stock[--p->n_stock], 1};
	if (n)
		ck_assert_int_eq(skv_core_lease_put(core, p->client, p->session.session, runs, n), 0);
}

/* Where there is room for it. */
static void come_and_go(void)
{
	struct skv_model m = test_model("other", 2, 32);
	struct skv_core_session_info session;
	struct skv_core_seq_info seq;
	struct skv_wire_run runs[64];
	uint32_t client, n;

	if (skv_core_client_add(core, 1000 + rnd_below(3), getpid(), "test", &client) != 0)
		return;
	if (skv_core_session_open(core, client, &m, "full", 1, &session) == 0) {
		(void)skv_core_lease_get(core, client, session.session, 1, 1 + rnd_below(60), runs, 64, &n);
		(void)skv_core_seq_new(core, client, session.session, rnd_below(2) ? "x" : "", 100, &seq);
	}
	commit();
	client_gone(client);
}

static void do_something(void)
{
	const int i = (int)rnd_below(PEERS * SEQS);
	struct peer *p = &peers[i / SEQS];

	switch (rnd_below(6)) {
	case 0: (void)peer_lease(p, 1, 1 + rnd_below(200)); break;
	case 1: give_pages(p); break;
	case 2: detach_or_attach(i, p); break;
	case 3: come_and_go(); break;
	case 4:
		if (is_held[i] && held_len(&held[i]) + 8 < TOKENS)
			held_append(&held[i], p, 1 + rnd_below(8));
		break;
	case 5:
		if (is_held[i])
			fork_one(&held[i], p);
		break;
	}
	commit();
}

/* ---- what the next one finds ----------------------------------------------------------------- */

static void put_back(void *ctx, uint32_t seq, uint64_t offset, const void *was, size_t bytes)
{
	int *unknown = ctx;

	for (int i = 0; i < PEERS * SEQS; i++)
		if (skv_state_find(&core->state, SKV_TABLE_SEQUENCES, held[i].seq) == seq) {
			memcpy((char *)held[i].mem + offset, was, bytes);
			return;
		}
	++*unknown;
}

static int look(void)
{
	const struct note *n = &notes[witness->last];
	const char *why;
	int unknown = 0, r = skv_undo(&core->state, put_back, &unknown, &why);

	ck_assert_msg(r == 0, "%s", why);
	ck_assert_int_eq(unknown, 0);
	if (memcmp(n->state, core->state.header, state_bytes()) != 0)
		n = &notes[1 - witness->last];
	ck_assert_msg(memcmp(n->state, core->state.header, state_bytes()) == 0, "after %u commits the state is neither the one before nor the one after",
	              witness->commits);
	for (int i = 0; witness->forking && i < PEERS * SEQS; i++)
		ck_assert_msg(memcmp(n->tables[i], tables_of(&held[i]), table_bytes(&held[i])) == 0,
		              "after %u commits, in a fork, tables of s%d are others", witness->commits, i);
	return witness->forking;
}

/* One process sets up, another one works; it is killed, and the first one looks. 1: in a fork. */
static int round_of(int i)
{
	pid_t child;
	int status;

	rnd_begin((uint64_t)i);
	setup();
	child = child_fork();
	while (child == 0)
		do_something();
	usleep(rnd_below(6000));
	ck_assert_int_eq(kill(child, SIGKILL), 0);
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_msg(WIFSIGNALED(status), "it ended by itself: %s", child_problem());
	return look();
}

START_TEST(killed)
{
	int forks = 0;

	for (int i = 0; i < ROUNDS; i++) {
		int status;
		pid_t pid = child_fork();

		if (pid == 0)
			_exit(2 + round_of(i));
		ck_assert_int_eq(waitpid(pid, &status, 0), pid);
		ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) > 1, "round %d, status %#x: %s", i, (unsigned)status, child_problem());
		forks += WEXITSTATUS(status) == 3;
	}
	ck_assert_msg(forks > 0, "none was killed in a fork");
}
END_TEST

/* ---- logs that are none ---------------------------------------------------------------------- */

static void no_file(void *ctx, uint32_t seq, uint64_t offset, const void *was, size_t bytes)
{
	(void)ctx, (void)seq, (void)offset, (void)was, (void)bytes;
	ck_abort_msg("a sequence's memory was written");
}

static uint64_t *log_of(void)
{
	return (uint64_t *)((char *)(uintptr_t)core->state.header + core->state.header->offset[SKV_TABLE_UNDO]);
}

START_TEST(broken_logs)
{
	static const struct {
		uint64_t used, file, offset, bytes;
	} bad[] = {
		{1, 0, 0, 8}, {3, 0, 0, 8}, {4, 0, 0, 0}, {4, 0, 0, 9}, {4, 0, UINT64_MAX, 8}, {4, 0, UINT64_MAX - 7, 8},
		{4, 65, 0, 8}, {4, 0, 0, UINT64_MAX}, {UINT64_MAX, 0, 0, 8}, {4, UINT64_MAX, 0, 8},
	};
	struct skv_core_config config = books_config();
	const char *why;
	uint8_t *was;

	config.max_sequences = 64;
	books_open(&config);
	was = malloc(state_bytes());
	memcpy(was, core->state.header, state_bytes());
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		uint64_t *log = log_of();

		log[0] = bad[i].used;
		log[1] = ~UINT64_C(0);
		log[2] = bad[i].file;
		log[3] = bad[i].offset;
		log[4] = bad[i].bytes;
		ck_assert_msg(skv_undo(&core->state, no_file, NULL, &why) == -EBADMSG, "log %zu", i);
		ck_assert_str_eq(why, "the state's undo log is not one");
		ck_assert_mem_eq(core->state.header, was, state_bytes());
	}
	log_of()[0] = 0;
	ck_assert_int_eq(skv_undo(&core->state, no_file, NULL, &why), 0);
	free(was);
	books_close();
}
END_TEST

/* What a change takes of memory, beyond some, is given back. */
START_TEST(large_change)
{
	struct skv_core_config config = books_config();
	struct skv_core_held before, after;

	books_open(&config);
	skv_core_commit(core);
	skv_core_held(core, &before);
	for (int i = 0; i < 200000; i++)
		(void)skv_undo_save(&core->state, skv_client_row(&core->state, (uint32_t)i % 2), 8 + (size_t)i % 64);
	skv_core_commit(core);
	skv_core_held(core, &after);
	ck_assert_uint_le(after.state, before.state + (UINT64_C(2) << 20));
	books_close();
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-core-undo");

	rnd_seed("test-core-undo");
	add_case(s, "undo", 120, NULL, NULL, killed, broken_logs, large_change, NULL);
	return run_suite(s);
}
