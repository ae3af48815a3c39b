/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A damaged state, by table: it is refused with a text that names the table; if only a sequence is wrong, only that
 * sequence is lost.
 */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "common/fd.h"
#include "daemon/core/restart/verify.h"
#include "daemon/core/state/fdstore.h"
#include "tests/support/core-victim.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

static int n_lost;
static char lost_why[128];

static void lost(void *ctx, const char *name, const char *why)
{
	(void)ctx, (void)name;
	snprintf(lost_why, sizeof(lost_why), "%s", why);
	n_lost++;
}

static int client(void *ctx, const struct skv_core_past_client *c)
{
	(void)ctx, (void)c;
	return 0;
}

static int no_device(void *ctx, struct skv_core *c, uint32_t device)
{
	(void)ctx, (void)c, (void)device;
	return 1;
}

/* A second map of the state, which stays, for damaging its rows. */
static struct skv_state damaged;

static void setup(void)
{
	struct held child, gone;

	n_lost = 0;
	victim_setup();
	ck_assert_int_eq(held_fork(&child, &victim_held[4], &victim_peers[1], "child"), 0);
	held_new(&gone, &victim_peers[1], "gone", 100);
	held_drop(&gone, &victim_peers[1]); /* a free row */
	skv_core_commit(core);
	books_even();
	damaged = (struct skv_state){.fd = dup(core->state.fd)};
	damaged.header = mmap(NULL, core->state.header->total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, damaged.fd, 0);
	ck_assert_ptr_ne(damaged.header, MAP_FAILED);
}

static int resume(const char **ret_why)
{
	size_t n;
	struct skv_core_found *found = victim_stored(&n);
	const struct skv_core_past past = {.found = found, .n = n, .device = no_device, .client = client, .lost = lost};
	const struct skv_core_config config = core->config;
	int r;

	core = skv_core_abandon(core);
	r = skv_core_resume(&config, &mem.ops, &past, &core, ret_why);
	for (size_t i = 0; i < n; i++)
		skv_close_fd(found[i].fd);
	free(found);
	if (r == 0)
		books_watch();
	return r;
}

/* ---- damage that refuses the state ------------------------------------------------------------- */

#define OF(row) ((void *)(uintptr_t)(row))
#define ACCOUNT(i) ((struct skv_account_row *)OF(skv_account_row(&damaged, i)))
#define CLIENT(i) ((struct skv_client_row *)OF(skv_client_row(&damaged, i)))
#define SESSION(i) ((struct skv_session_row *)OF(skv_session_row(&damaged, i)))
#define SEQ(i) ((struct skv_seq_row *)OF(skv_seq_row(&damaged, i)))
#define POOL(i) ((struct skv_pool_row *)OF(skv_pool_row(&damaged, i)))
#define SEGMENT(i) ((struct skv_segment_row *)OF(skv_segment_row(&damaged, 0, i)))
#define MEMBER(pool, client) ((struct skv_member *)OF(skv_member_row(&damaged, pool, client)))
#define WORD(page) ((skv_owner *)OF(skv_owner_word(&damaged, 0, page)))
#define HEADER ((struct skv_state_header *)OF(damaged.header))

static uint64_t *refs(uint32_t seq, uint64_t word)
{
	return OF(skv_state_at(&damaged, SKV_TABLE_REFS, seq * skv_ref_words(&damaged.header->geometry) + word));
}

/* Writes an entry of the undo log that would restore other bytes at this offset of the state. */
static void log_entry(uint64_t offset, uint32_t file)
{
	uint64_t *log = OF(skv_state_at(&damaged, SKV_TABLE_UNDO, 0));

	log[1] = UINT64_C(0xa5a5a5a5a5a5a5a5);
	log[2] = offset;
	log[3] = (uint64_t)file << 32 | sizeof(uint64_t);
	log[0] = 3;
}

static uint32_t seq_row(int i)
{
	return skv_state_find(&damaged, SKV_TABLE_SEQUENCES, victim_held[i].seq);
}

static const char *damage_row(int which)
{
	switch (which) {
	case 0: ACCOUNT(0)->row.live = 2; return "account row 0";
	case 1: CLIENT(1)->row.generation = 0; return "client row 1";
	case 2: HEADER->live[SKV_TABLE_SESSIONS]--; return "session rows";
	case 3: HEADER->free[SKV_TABLE_SEQUENCES] = 1; return "sequence rows: the free list";
	case 4: HEADER->free[SKV_TABLE_SEQUENCES] = 0; return "sequence rows: the free list";
	case 5:
		((struct skv_row *)OF(skv_state_at(&damaged, SKV_TABLE_SEQUENCES, HEADER->free[SKV_TABLE_SEQUENCES] - 1)))->next_free =
			HEADER->free[SKV_TABLE_SEQUENCES];
		return "sequence rows: the free list";
	case 6: ACCOUNT(1)->uid = ACCOUNT(0)->uid; return "account rows";
	case 7: CLIENT(0)->account = 99; return "client row 0: its account";
	case 8: CLIENT(0)->fenced = 2; return "client row 0";
	case 9: memset(CLIENT(2)->program, 'x', SKV_NAME_MAX); return "client row 2";
	case 10: SESSION(0)->client = UINT32_MAX; return "session row 0: its client";
	case 11: SESSION(0)->pool = SESSION(1)->pool; return "session row 0: its pool";
	case 12: SESSION(0)->model.n_heads = 0; return "session row 0: model";
	case 13: SESSION(0)->model.device = 1; return "session row 0: model";
	case 14: memset(SESSION(0)->given.spec, 'x', SKV_SPEC_MAX); return "session row 0: a spec";
	case 15: SEQ(3)->account = 4000000000u; return "sequence row 3: its account";
	case 16: SEQ(3)->pool = 5; return "sequence row 3: its pool";
	case 17: SEQ(3)->session = 60; return "sequence row 3: its session";
	case 18: SEQ(3)->referred = 7; return "sequence row 3";
	case 19: POOL(0)->device = SKV_MEMORY_KINDS; return "pool row 0: there is no memory";
	case 20: POOL(0)->pages_per_segment = 0; return "pool row 0";
	case 21: POOL(0)->max_segments = UINT32_MAX; return "pool row 0";
	case 22: POOL(0)->page_bytes *= 2; return "pool row 0";
	case 23: POOL(0)->high = POOL(0)->max_segments + 1; return "pool row 0";
	default: POOL(0)->account = 77; return "pool row 0: its account";
	}
}
#define ROW_DAMAGES 25

static const char *damage_sparse(int which)
{
	switch (which) {
	case 0: SEGMENT(0)->state = 9; return "segment row 0";
	case 1: SEGMENT(0)->state = SKV_SEGMENT_WANTED; return "segment row 0";
	case 2: SEGMENT(0)->serial = UINT64_MAX; return "segment row 0";
	case 3: SEGMENT(0)->free = UINT32_MAX; return "segment row 0";
	case 4: MEMBER(0, 0)->sessions = 2; return "member row";
	case 5: MEMBER(3, 0)->sessions = 1; return "member row";
	case 6: MEMBER(0, 5)->lease = 1; return "member row";
	case 7: *(uint8_t *)OF(skv_told(&damaged, 0, 0, 0)) = 7; return "told value";
	case 8: *(uint8_t *)OF(skv_told(&damaged, 0, 0, 0)) = SKV_TOLD_GONE; return "told value";
	case 9: *WORD(POOL(0)->high * POOL(0)->pages_per_segment) = 1; return "owner word";
	case 10: *((skv_owner *)OF(skv_owner_word(&damaged, 4, 0))) = 1; return "owner word";
	case 11: *refs(seq_row(5), 0) = 1; return "references of sequence row";
	case 12: *refs(60, 0) = 1; return "references of sequence row 60";
	case 13: *refs(seq_row(4), skv_ref_words(&damaged.header->geometry) - 1) = 1; return "references of sequence row";
	case 28: *(uint8_t *)OF(skv_told(&damaged, 0, 0, 3)) = SKV_TOLD_GONE; return "told value";
	case 29: *(uint8_t *)OF(skv_told(&damaged, 3, 1, 0)) = SKV_TOLD_LIVE; return "told value";
	case 30: SEGMENT(POOL(0)->high)->waiting = 1; return "segment row";
	/* counts */
	case 14: *WORD(0) = skv_owner_make(SKV_OWNER_LEASE, 1u << 20); return "page 0";
	case 15: *WORD(0) = skv_owner_make(SKV_OWNER_SEQ, 50); return "page 0";
	case 16: *WORD(0) = skv_owner_make(SKV_OWNER_SHARED, 0); return "page 0";
	case 17: *refs(seq_row(4), 0) ^= 1; return "sequence row";
	case 18: POOL(0)->empty++; return "pool 0";
	case 19: POOL(0)->count[SKV_OWNER_LEASE]--; return "pool 0";
	case 20: POOL(0)->pending = 1; return "pool 0";
	case 21: SEGMENT(0)->longest = 0, SEGMENT(0)->free++; return "segment 0";
	case 22: SEQ(3)->pages = 4; return "sequence row 3";
	case 23: MEMBER(0, 0)->lease++; return "client row 0";
	case 24: SESSION(0)->sequences = 0; return "session row 0";
	case 25: CLIENT(0)->notices = 40; return "client row 0";
	case 26: ACCOUNT(0)->other_bytes++; return "UID 1000";
	default: HEADER->segment_bytes[0] += 65536; return "bytes in segments";
	}
}
#define SPARSE_DAMAGES 31

static const char *damage_log(int which)
{
	switch (which) {
	case 0: log_entry(offsetof(struct skv_state_header, geometry), 0); break;
	case 1: log_entry(damaged.header->offset[SKV_TABLE_UNDO], 0); break;
	case 2: log_entry(UINT64_MAX, 0); break;
	case 3: log_entry(4096, damaged.header->geometry.max_sequences + 1); break;
	case 4: *(uint64_t *)OF(skv_state_at(&damaged, SKV_TABLE_UNDO, 0)) = UINT64_MAX; break;
	default: *(uint64_t *)OF(skv_state_at(&damaged, SKV_TABLE_UNDO, 0)) = 1; break;
	}
	return "undo log";
}
#define LOG_DAMAGES 6

static void refused(const char *expected, int error)
{
	const char *why;
	int r = resume(&why);

	ck_assert_msg(r == error, "%d for %s", r, expected);
	ck_assert_msg(strstr(why, expected) != NULL, "'%s' does not name %s", why, expected);
	ck_assert_ptr_null(core);
}

START_TEST(rows)
{
	setup();
	refused(damage_row(_i), -EUCLEAN);
}
END_TEST

START_TEST(sparse)
{
	setup();
	refused(damage_sparse(_i), -EUCLEAN);
}
END_TEST

START_TEST(undo_log)
{
	setup();
	refused(damage_log(_i), -EBADMSG);
}
END_TEST

/*
 * Logged bytes of a sequence's memory are written there and nowhere else: beyond its end or to its header they are
 * skipped.
 */
START_TEST(log_of_memory)
{
	const char *why;

	setup();
	log_entry(_i == 0 ? 0 : UINT64_C(1) << 40, seq_row(2) + 1);
	ck_assert_int_eq(resume(&why), 0);
	ck_assert_int_eq(n_lost, 0);
	ck_assert(books_has_seq("s2"));
	books_even();
}
END_TEST

/* ---- damage that loses one sequence ------------------------------------------------------------ */

static void damage_seq(int which, struct skv_seq_row *q, struct skv_seqmem *memory)
{
	switch (which) {
	case 0: q->model.n_layers = 0; break;
	case 1: q->model.n_layers = UINT32_MAX; break;
	case 2: q->model.head_dim = 32; break;
	case 3: q->model.device = 1; break;
	case 4: memset(q->model.name, 'x', SKV_NAME_MAX); break;
	case 5: memset(q->name, 'x', SKV_NAME_MAX); break;
	case 6: q->name[0] = '/'; break;
	case 7: q->max_tokens = 0; break;
	case 8: q->max_tokens = UINT32_MAX; break;
	case 9: q->max_tokens += 1000; break; /* its memory is shorter */
	case 10: memory->magic = 0; break;
	default: memory->commit = 1u << 20; break;
	}
}
#define SEQ_DAMAGES 12

/* Each damage while the sequence is held, and while it is not. */
START_TEST(a_sequence)
{
	const int i = _i % 2 ? 6 : 4; /* without references, and with some */
	struct peer *p = &victim_peers[1];
	struct skv_core_seq_info info;
	const char *why;
	char name[8];

	setup();
	if (_i % 4 / 2)
		ck_assert_int_eq(in_turns(skv_core_seq_detach(core, p->client, p->session.session, victim_held[i].seq), NULL), 0);
	skv_core_commit(core);
	damage_seq(_i / 4, SEQ(seq_row(i)), victim_held[i].mem);
	ck_assert_msg(resume(&why) == 0, "%s", why);
	ck_assert_int_eq(n_lost, 1);
	ck_assert_str_ne(lost_why, "");
	books_even();
	for (int k = 0; k < VICTIM_SEQS; k++) {
		snprintf(name, sizeof(name), "s%d", k);
		ck_assert_int_eq(books_has_seq(name), k != i);
	}
	ck_assert(books_has_seq("child"));
	ck_assert_int_eq(in_turns(skv_core_seq_detach(core, p->client, p->session.session, victim_held[5].seq), NULL), 0);
	ck_assert_int_eq(in_turns(skv_core_seq_attach(core, p->client, p->session.session, "s5", &info), &info), 0);
	for (int k = 0; k < VICTIM_PEERS; k++)
		client_gone(victim_peers[k].client);
	ck_assert_uint_eq(n_corrupt, 0);
	skv_core_drop_all(core);
	ck_assert_ptr_null(skv_core_balance(core, true));
}
END_TEST

/* ---- cost -------------------------------------------------------------------------------------- */

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Two million pages on lease. */
START_TEST(time_taken)
{
	struct skv_core_config config = books_config();
	struct skv_model m = test_model("m", 1, 16);
	struct skv_wire_run runs[512];
	const char *why;
	struct peer p;
	uint64_t pages = 0;
	uint32_t n;
	double from;

	config.pool_bytes = config.account_bytes = UINT64_C(4) << 30;
	config.segment_bytes = 1 << 20;
	books_open(&config);
	victim_store();
	peer_join(&p, 1000, &m);
	while (pages < 2000000 && skv_core_lease_get(core, p.client, p.session.session, 1, SKV_CALL_PAGES, runs, 512, &n) == 0) {
		for (uint32_t i = 0; i < n; i++)
			pages += runs[i].count;
		skv_core_commit(core);
	}
	ck_assert_uint_ge(pages, 2000000);
	from = now();
	ck_assert_ptr_null(skv_verify(&core->state));
	printf("%llu pages: verified in %.1f ms", (unsigned long long)pages, now() - from);
	from = now();
	ck_assert_ptr_null(skv_core_balance(core, false));
	printf(", recounted in %.1f ms", now() - from);
	from = now();
	ck_assert_int_eq(resume(&why), 0);
	printf(", resumed in %.1f ms\n", now() - from);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-core-verify");
	TCase *c = tcase_create("damages");

	rnd_seed("test-core-verify");
	tcase_set_timeout(c, 120);
	tcase_add_loop_test(c, rows, 0, ROW_DAMAGES);
	tcase_add_loop_test(c, sparse, 0, SPARSE_DAMAGES);
	tcase_add_loop_test(c, undo_log, 0, LOG_DAMAGES);
	tcase_add_loop_test(c, log_of_memory, 0, 2);
	tcase_add_loop_test(c, a_sequence, 0, 4 * SEQ_DAMAGES);
	tcase_add_test(c, time_taken);
	suite_add_tcase(s, c);
	return run_suite(s);
}
