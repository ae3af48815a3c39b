/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Increments every count that the core keeps, one at a time. The balance must detect each, or tests that check the
 * balance prove nothing.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/core/memory/refs.h"
#include "daemon/core/state/core-priv.h"
#include "tests/support/core-peer.h"
#include "tests/support/suite.h"

static struct peer a, b;
static struct held parent, child, own;
static uint32_t client, session, held, detached;

/* Two clients of a UID, a fork, a detached sequence, a stock, and segments that are announced in part. */
static void setup(void)
{
	struct skv_core_config config = books_config();
	struct skv_model m = test_model("m", 2, 16);
	struct skv_wire_run run;
	uint32_t n;

	books_open(&config);
	peer_join(&a, 1000, &m);
	m.device = SKV_DEVICE_CUDA(0);
	device_add(m.device, &config);
	peer_join(&b, 1000, &m);
	held_new(&parent, &a, "parent", 1024);
	held_append(&parent, &a, 64);
	ck_assert_int_eq(held_fork(&child, &parent, &a, "child"), 0);
	held_append(&child, &a, 64);
	held_new(&own, &a, "own", 1024);
	held_append(&own, &a, 64);
	detached = skv_state_find(&core->state, SKV_TABLE_SEQUENCES, own.seq);
	ck_assert_int_eq(skv_core_seq_detach(core, a.client, a.session.session, own.seq), 0);
	ck_assert_int_eq(skv_core_lease_get(core, b.client, b.session.session, 150, 150, &run, 1, &n), SKV_CORE_E_WAIT);
	devices_make();
	ck_assert_int_eq(skv_core_lease_get(core, b.client, b.session.session, 150, 150, &run, 1, &n), 0);
	peer_hear(&b);
	/* given back: ends of segments wait for acknowledgement */
	ck_assert_int_eq(skv_core_lease_put(core, b.client, b.session.session, &run, 1), 0);
	books_trim();
	client = skv_state_find(&core->state, SKV_TABLE_CLIENTS, a.client);
	session = skv_state_find(&core->state, SKV_TABLE_SESSIONS, a.session.session);
	held = skv_state_find(&core->state, SKV_TABLE_SEQUENCES, child.seq);
	books_even();
}

static void teardown(void)
{
	held_close(&parent);
	held_close(&child);
	held_close(&own);
	peer_die(&a);
	peer_die(&b);
	books_close();
}

static void found(const char *what)
{
	ck_assert_msg(skv_core_balance(core, false), "%s put off was not found", what);
}

#define OFF(lvalue)             \
	do {                    \
		(lvalue)++;     \
		found(#lvalue); \
		(lvalue)--;     \
		books_even();   \
	} while (0)

START_TEST(counts)
{
	struct skv_state *s = &core->state;
	struct skv_account_row *account = skv_write_account(s, 0);
	struct skv_pool_row *pool = skv_write_pool(s, 0);

	OFF(account->clients);
	OFF(account->sessions);
	OFF(account->sequences);
	OFF(account->pools);
	OFF(account->page_bytes[0]);
	OFF(skv_write_client(s, client)->sessions);
	OFF(skv_write_client(s, client)->notices);
	OFF(skv_write_session(s, session)->sequences);
	OFF(skv_write_seq(s, detached)->pages);
	OFF(skv_write_seq(s, held)->refs);
	OFF(pool->sessions);
	OFF(pool->sequences);
	OFF(pool->segments);
	OFF(pool->empty);
	OFF(pool->pending);
	OFF(pool->wanted);
	for (int kind = 0; kind < SKV_OWNER_KINDS; kind++)
		OFF(pool->count[kind]);
	OFF(skv_write_member(s, 0, client)->sessions);
	OFF(skv_write_member(s, 0, client)->lease);
	OFF(skv_write_segment(s, 0, 0)->free);
	OFF(skv_write_segment(s, 0, 0)->waiting);
	OFF(skv_write_segment(s, 0, 0)->state);
	for (int t = 0; t < SKV_TABLE_ROWS; t++) {
		OFF(skv_write_header(s)->live[t]);
		OFF(skv_write_header(s)->high[t]);
		OFF(skv_write_header(s)->free[t]);
	}
	OFF(skv_write_header(s)->segment_bytes[0]);
	OFF(skv_write_header(s)->segment_bytes[SKV_MAX_DEVICES]);
	OFF(account->page_bytes[SKV_DEVICE_CUDA(2)]);
}
END_TEST

/* Sets another value, expects that the balance detects it, and restores the old value. */
#define SET(lvalue, value)                          \
	do {                                        \
		__typeof__(lvalue) was_ = (lvalue); \
		(lvalue) = (value);                 \
		found(#lvalue " = " #value);        \
		(lvalue) = was_;                    \
		books_even();                       \
	} while (0)

START_TEST(owners)
{
	struct skv_state *s = &core->state;
	uint32_t shared = 0, leaving = 0;
	uint64_t *bits;

	while (!skv_ref_held(core, held, shared))
		shared++;
	bits = skv_undo_save(
		s, skv_state_at(s, SKV_TABLE_REFS, held * skv_ref_words(&s->header->geometry) + shared / 64), sizeof(*bits));
	SET(*skv_write_owners(s, 0, shared, 1), 0);
	SET(*skv_write_owners(s, 0, shared, 1), skv_owner_make(SKV_OWNER_SHARED, 3));
	SET(*skv_write_owners(s, 0, shared, 1), skv_owner_make(SKV_OWNER_LEASE, client));
	SET(*skv_write_owners(s, 0, shared, 1), skv_owner_make(SKV_OWNER_LEASE, 5));
	SET(*skv_write_owners(s, 0, shared, 1), skv_owner_make(SKV_OWNER_LEASE, 5000));
	SET(*skv_write_owners(s, 0, shared, 1), skv_owner_make(SKV_OWNER_SEQ, detached));
	SET(*skv_write_owners(s, 0, shared, 1), skv_owner_make(SKV_OWNER_SEQ, 11));
	SET(*skv_write_owners(s, 0, shared, 1), 7);
	SET(*bits, *bits & ~(UINT64_C(1) << shared % 64));
	SET(*bits, *bits << 1);
	SET(*bits, ~UINT64_C(0));
	SET(skv_write_seq(s, held)->referred, 0);
	SET(skv_write_account(s, 0)->other_bytes, 0);
	SET(skv_write_client(s, client)->bytes, 4096);
	SET(skv_write_seq(s, held)->bytes, UINT64_C(1) << 40);
	SET(skv_write_pool(s, 0)->stray_bytes, 4096);
	SET(core->pools[1].handles[0].fd, -1);
	while (skv_segment_row(s, 1, leaving)->state != SKV_SEGMENT_LEAVING)
		leaving++;
	SET(skv_write_segment(s, 1, leaving)->waiting, 0);
	SET(skv_write_segment(s, 1, leaving)->state, SKV_SEGMENT_NONE);
	SET(*skv_write_owners(s, 1, leaving * 64, 1), skv_owner_make(SKV_OWNER_LEASE, client));
	SET(core->pools[0].empty.level[0][0], core->pools[0].empty.level[0][0] ^ 1);
	SET(core->pools[0].runs[0].level[0][0], core->pools[0].runs[0].level[0][0] ^ 1);
	SET(core->pools[1].vacant.level[0][0], core->pools[1].vacant.level[0][0] ^ 1);
	SET(skv_write_seq(s, held)->session, SKV_NO_INDEX);
}
END_TEST

START_TEST(what_is_left)
{
	ck_assert_ptr_nonnull(skv_core_balance(core, true));
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-core-balance");

	add_case(s, "balance", 60, setup, teardown, counts, owners, what_is_left, NULL);
	return run_suite(s);
}
