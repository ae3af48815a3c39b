/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that changes the state is killed at any instant. After the next process has undone uncommitted changes, it
 * finds the state as of the last commit, byte for byte.
 */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/support/child.h"
#include "tests/support/core-victim.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

#define ROUNDS 250

/* ---- what the next process finds --------------------------------------------------------------- */

static int put_back(void *ctx, uint32_t seq, uint64_t offset, const void *was, size_t bytes)
{
	int *unknown = ctx;

	for (int i = 0; i < VICTIM_SEQS; i++)
		if (skv_state_find(&core->state, SKV_TABLE_SEQUENCES, victim_held[i].seq) == seq) {
			memcpy((char *)victim_held[i].mem + offset, was, bytes);
			return 0;
		}
	++*unknown;
	return 0;
}

static int look(void)
{
	const struct victim_copy *n = &victim_copies[victim_witness->last];
	const char *why;
	int unknown = 0, r = skv_undo(&core->state, put_back, &unknown, &why);

	ck_assert_msg(r == 0, "%s", why);
	ck_assert_int_eq(unknown, 0);
	if (memcmp(n->state, core->state.header, victim_state_bytes()) != 0)
		n = &victim_copies[1 - victim_witness->last];
	ck_assert_msg(memcmp(n->state, core->state.header, victim_state_bytes()) == 0, "after %u commits the state is neither the one before nor the one after",
	              victim_witness->commits);
	for (int i = 0; victim_witness->forking && i < VICTIM_SEQS; i++)
		ck_assert_msg(memcmp(n->tables[i], victim_tables(&victim_held[i]), victim_table_bytes(&victim_held[i])) == 0,
		              "after %u commits, in a fork, tables of s%d are others", victim_witness->commits, i);
	return victim_witness->forking;
}

/* 1: it was killed during a fork. */
static int round_of(int i)
{
	rnd_begin((uint64_t)i);
	victim_setup();
	victim_kill(6000);
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

/* ---- invalid logs ------------------------------------------------------------------------------ */

static int no_file(void *ctx, uint32_t seq, uint64_t offset, const void *was, size_t bytes)
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
		uint64_t used, offset;
		uint32_t bytes, file;
	} bad[] = {
		{1, 0, 8, 0}, {2, 0, 8, 0}, {3, 0, 0, 0}, {3, 0, 9, 0}, {3, UINT64_MAX, 8, 0}, {3, UINT64_MAX - 7, 8, 0},
		{3, 0, 8, 65}, {3, 0, UINT32_MAX, 0}, {UINT64_MAX, 0, 8, 0}, {3, 0, 8, UINT32_MAX},
	};
	struct skv_core_config config = books_config();
	const char *why;
	uint8_t *was;

	config.max_sequences = 64;
	books_open(&config);
	was = malloc(victim_state_bytes());
	memcpy(was, core->state.header, victim_state_bytes());
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		uint64_t *log = log_of();

		log[0] = bad[i].used;
		log[1] = ~UINT64_C(0);
		log[2] = bad[i].offset;
		log[3] = bad[i].bytes | (uint64_t)bad[i].file << 32;
		ck_assert_msg(skv_undo(&core->state, no_file, NULL, &why) == -EBADMSG, "log %zu", i);
		ck_assert_str_eq(why, "the state's undo log is not valid");
		ck_assert_mem_eq(core->state.header, was, victim_state_bytes());
	}
	log_of()[0] = 0;
	ck_assert_int_eq(skv_undo(&core->state, no_file, NULL, &why), 0);
	free(was);
	books_close();
}
END_TEST

/* Memory that a large change takes for the log is given back, except for a part. */
START_TEST(large_change)
{
	struct skv_core_config config = books_config();
	struct skv_core_held before, after;

	books_open(&config);
	skv_core_commit(core);
	before = books_held();
	for (int i = 0; i < 200000; i++)
		(void)skv_undo_save(&core->state, skv_client_row(&core->state, (uint32_t)i % 2), 8 + (size_t)i % 64);
	skv_core_commit(core);
	after = books_held();
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
