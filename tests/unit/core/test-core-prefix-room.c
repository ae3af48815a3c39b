/* SPDX-License-Identifier: Apache-2.0 */
/* Sealed prefixes where memory is used up or a user has too many sequences: which of them are dropped or parked. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "daemon/core/state/block-index.h"
#include "daemon/core/operations/parking.h"
#include "tests/support/core-prefix.h"
#include "tests/support/suite.h"

#define FEW 16u /* sequences of a user */

static void setup(void)
{
	text_begin(128);
}

static void setup_few(void)
{
	text_begin(FEW);
}

/* Memory is used up: prefixes make room, the least recently used first. */
START_TEST(makes_room)
{
	static const char *const texts[] = {"a", "b", "c"}, *const order[] = {"b", "c", "a"};
	struct held h;

	for (int i = 0; i < 3; i++) {
		text_write(&h, &text_a, NULL, texts[i]);
		ck_assert_int_eq(text_seal(&h, &text_a, texts[i]), 0);
		held_drop(&h, &text_a);
	}
	ck_assert_uint_eq(text_open(&h, &text_b, NULL, 0, "a"), 1); /* uses the prefix */
	held_drop(&h, &text_b);
	for (int gone = 0; gone < 3; gone++) {
		for (int calls = 0; text_find(&text_a, order[gone]) && calls < 200; calls++) {
			(void)peer_lease(&text_a, 1024, 1024);
			skv_core_work_all(core);
		}
		ck_assert_uint_eq(text_find(&text_a, order[gone]), 0);
		ck_assert_uint_eq(text_find(&text_a, "a"), gone < 2);
		(void)peer_lease(&text_a, 1, 1);
	}
	books_even();
}
END_TEST

/* The next sequence that is to be parked when memory is wanted; 0: none. */
static uint32_t wanted(void)
{
	uint32_t seq = 0;

	for (int calls = 0; calls < 200 && !skv_core_next_park(core, &seq); calls++) {
		(void)peer_lease(&text_a, 1024, 1024);
		skv_core_work_all(core);
	}
	return seq;
}

/*
 * Where sequences are parked, so are prefixes; a prefix that is in a file already is removed at once, and one that
 * cannot be parked is dropped.
 */
START_TEST(parked_for_room)
{
	const struct skv_block_key *keys;
	struct skv_block_key expected[8];
	uint32_t seq, n;
	struct held h;

	for (char text[] = "a"; *text <= 'c'; ++*text) {
		text_write(&h, &text_a, NULL, text);
		ck_assert_int_eq(text_seal(&h, &text_a, text), 0);
		held_drop(&h, &text_a);
	}
	skv_core_set_parking(core, true);
	seq = wanted();
	ck_assert_int_eq(skv_core_prefix_keys(core, seq, &keys, &n), 0);
	ck_assert_uint_eq(n, text_keys("a", expected));
	ck_assert_mem_eq(keys, expected, sizeof(*keys));
	ck_assert_uint_eq(text_find(&text_a, "a"), 1); /* until it is written */
	ck_assert_int_eq(skv_core_park_known(core, seq), 0);
	ck_assert_uint_eq(text_find(&text_a, "a"), 0);
	skv_core_work_all(core);
	ck_refused(skv_core_park_known(core, seq), SKV_CORE_E_NOENT);
	ck_refused(skv_core_prefix_keys(core, seq, &keys, &n), SKV_CORE_E_NOENT);
	seq = wanted();
	ck_assert_uint_eq(text_find(&text_a, "b"), 1);
	skv_core_park_failed(core, seq, 1);
	seq = wanted();
	ck_assert_uint_eq(text_find(&text_a, "b"), 0);
	ck_assert_uint_eq(text_find(&text_a, "c"), 1);
	skv_core_park_failed(core, seq, 1);
	ck_assert_uint_eq(wanted(), 0);
	ck_assert_uint_eq(text_find(&text_a, "c"), 0);
	books_even();
}
END_TEST

/*
 * By number: prefixes beyond three quarters of the quota are parked one at a time, and dropped if the disk is too slow.
 * Then by age.
 */
START_TEST(parked_by_number)
{
	uint32_t seq, again;
	struct held h;

	skv_core_set_parking(core, true);
	for (char text[] = "a"; *text < 'a' + (int)FEW - 2; ++*text) {
		text_write(&h, &text_a, NULL, text);
		ck_assert_int_eq(text_seal(&h, &text_a, text), 0);
		held_drop(&h, &text_a);
		ck_assert_int_eq(skv_core_next_park(core, &seq), *text == 'a' + (int)FEW * 3 / 4 - 1);
		skv_core_work_all(core);
		ck_assert_uint_eq(text_find(&text_a, "a"), 1);
	}
	for (char text[] = "y"; *text <= 'z'; ++*text) {
		text_write(&h, &text_a, NULL, text);
		ck_assert_int_eq(text_seal(&h, &text_a, text), 0);
		held_drop(&h, &text_a);
		ck_assert(!skv_core_next_park(core, &again));
		skv_core_work_all(core);
	}
	ck_assert_uint_eq(text_find(&text_a, "a"), 1); /* it is being written */
	ck_assert_uint_eq(text_find(&text_a, "b"), 0);
	ck_assert_int_eq(skv_core_park_known(core, seq), 0);
	skv_core_work_all(core);
	(void)age_all(10, 50, 0);
	(void)age_all(70, 50, 0);
	for (uint32_t n = 0; skv_core_next_park(core, &seq); n++)
		ck_assert_int_eq(skv_core_park_known(core, seq), 0);
	skv_core_work_all(core);
	ck_assert_uint_eq(text_find(&text_a, "z"), 0);
}
END_TEST

/* Lists the sequence as if it were written to a file. Returns the result of skv_core_park_done(). */
static int list_and_leave(uint32_t seq)
{
	int fd = memfd_create("list", MFD_CLOEXEC), r;
	struct skv_core_listing listing;
	uint32_t units;

	ck_assert_int_eq(skv_core_list_begin(core, seq, fd, &listing), 0);
	do {
		units = 100000;
		r = skv_core_list_some(core, &listing, &units);
	} while (r == SKV_CORE_E_TURNS);
	ck_assert_int_eq(r, 0);
	close(fd);
	return skv_core_park_done(core, &listing);
}

/* A prefix that is being forked stays, although it is due or is to be dropped; afterwards it ages. */
START_TEST(stays_while_forked)
{
	const char *text = "abcdefghijklmnopqrstuvwxyzabcd"; /* 30 blocks in 16 layers: the fork takes several turns */
	struct skv_model deep = test_model("deep", 16, 16);
	struct skv_block_key keys[32];
	struct skv_core_seq_info info;
	char name[SKV_NAME_MAX] = "/";
	uint32_t n = text_keys(text, keys), blocks, seq;
	struct held h;
	struct peer c;

	deep.max_tokens = 8192;
	peer_join(&c, 1000, &deep);
	held_new(&h, &c, NULL, 8192);
	held_append(&h, &c, n * SKV_BLOCK_TOKENS);
	ck_assert_int_eq(text_seal(&h, &c, text), 0);
	held_drop(&h, &c);
	for (uint32_t i = 0; i < sizeof(keys[0].bytes); i++)
		sprintf(name + strlen(name), "%02x", keys[n - 1].bytes[i]);
	ck_assert_uint_eq(age_all(10, 0, 5), 0);
	ck_assert_int_eq(skv_core_prefix_seq(core, c.client, c.session.session, keys, n, &seq), 0);
	ck_assert_int_eq(skv_core_prefix_open(core, c.client, c.session.session, NULL, 0, keys, n, &info, &blocks), SKV_CORE_E_TURNS);
	ck_assert_uint_eq(blocks, n);
	ck_assert_uint_eq(age_all(100, 0, 5), 0);
	ck_assert_int_eq(skv_core_seq_drop_name(core, 1000, "deep", name), SKV_CORE_E_BUSY);
	ck_refused(skv_core_park_known(core, seq), SKV_CORE_E_BUSY);
	ck_refused(list_and_leave(seq), SKV_CORE_E_BUSY); /* although it was not used since it was listed */
	ck_assert_int_eq(in_turns(SKV_CORE_E_TURNS, &info), 0);
	held_open(&h, &c, &info);
	ck_assert_uint_eq(held_len(&h), n * SKV_BLOCK_TOKENS);
	held_drop(&h, &c);
	ck_assert_uint_eq(age_all(200, 0, 5), 0);
	ck_assert_uint_eq(age_all(300, 0, 5), 1);
	skv_core_work_all(core);
	ck_assert_uint_eq(text_find(&c, text), 0);
	peer_die(&c);
}
END_TEST

/*
 * The number of prefixes does not prevent new sequences, only new prefixes: prefixes leave a quarter of the quota, and
 * are removed if it is used up.
 */
START_TEST(make_room_by_number)
{
	struct held h, held[FEW];
	struct skv_core_seq_info info;
	uint32_t found = 0;

	for (char text[] = "a"; *text <= 'z'; ++*text) {
		text_write(&h, &text_a, NULL, text);
		ck_assert_int_eq(text_seal(&h, &text_a, text), 0);
		held_drop(&h, &text_a);
		skv_core_work_all(core);
	}
	for (char text[] = "a"; *text <= 'z'; ++*text)
		found += text_find(&text_a, text);
	ck_assert_uint_ge(found, FEW / 2);
	ck_assert_uint_le(found, FEW * 3 / 4);
	text_write(&held[0], &text_a, NULL, "A");
	for (uint32_t i = 1; i < FEW; i++)
		held_new(&held[i], &text_b, NULL, 512);
	ck_refused(skv_core_seq_new(core, text_a.client, text_a.session.session, NULL, 512, &info), SKV_CORE_E_QUOTA);
	ck_refused(text_seal(&held[0], &text_a, "A"), SKV_CORE_E_QUOTA);
	(void)age_all(100, 0, 0);
	skv_core_work_all(core);
	for (char text[] = "a"; *text <= 'z'; ++*text)
		ck_assert_uint_eq(text_find(&text_a, text), 0);
	held_drop(&held[1], &text_b);
	ck_assert_int_eq(text_seal(&held[0], &text_a, "A"), 0);
}
END_TEST

/* A prefix whose pages are being read stays, too; it has at most one reader. */
START_TEST(stays_while_read)
{
	struct skv_block_key keys[8];
	uint32_t n = text_keys("abc", keys), seq = 0;
	char name[SKV_NAME_MAX];
	struct held h;

	text_write(&h, &text_a, NULL, "abc");
	ck_assert_int_eq(text_seal(&h, &text_a, "abc"), 0);
	held_drop(&h, &text_a);
	ck_refused(skv_core_prefix_seq(core, text_b.client, text_b.session.session, keys, n - 1, &seq), SKV_CORE_E_NOENT);
	ck_assert_int_eq(skv_core_prefix_seq(core, text_b.client, text_b.session.session, keys, n, &seq), 0);
	ck_assert_int_eq(skv_core_prefix_read(core, seq), 0);
	ck_refused(skv_core_prefix_read(core, seq), SKV_CORE_E_BUSY);
	skv_prefix_name(&keys[n - 1], name);
	ck_refused(skv_core_seq_drop_name(core, 1000, text_model.name, name), SKV_CORE_E_BUSY);
	skv_core_set_parking(core, true);
	for (int calls = 0; calls < 100; calls++) {
		(void)peer_lease(&text_a, 1024, 1024);
		skv_core_work_all(core);
	}
	ck_assert_uint_eq(age_all(10, 0, 5), 0);
	ck_assert_uint_eq(age_all(100, 0, 5), 0);
	ck_assert_uint_eq(text_find(&text_b, "abc"), 3);
	skv_core_prefix_read_end(core, seq);
	(void)age_all(200, 0, 0); /* the quota is used up, of which prefixes leave a quarter */
	skv_core_work_all(core);
	ck_assert_uint_eq(text_find(&text_b, "abc"), 0);
	ck_refused(skv_core_prefix_read(core, seq), SKV_CORE_E_NOENT);
	skv_core_prefix_read_end(core, seq); /* it no longer exists: does nothing */
}
END_TEST

/* Starts reading the sealed prefix of a text. */
static uint32_t read_text(const char *text)
{
	struct skv_block_key keys[8];
	uint32_t seq;

	ck_assert_int_eq(skv_core_prefix_seq(core, text_a.client, text_a.session.session, keys, text_keys(text, keys), &seq), 0);
	ck_assert_int_eq(skv_core_prefix_read(core, seq), 0);
	return seq;
}

/*
 * A user that is below its share gets the memory of prefixes that are not being read. If all are being read, their
 * reader is told.
 */
START_TEST(read_ones_go_last)
{
	uint32_t read, other, seq;
	struct held h;
	struct peer c;

	skv_core_set_parking(core, true);
	peer_join(&c, 1001, &text_model);
	for (char text[] = "a"; *text <= 'b'; ++*text) {
		text_write(&h, &text_a, NULL, text);
		ck_assert_int_eq(text_seal(&h, &text_a, text), 0);
		held_drop(&h, &text_a);
	}
	read = read_text("a");
	other = read_text("b");
	while (peer_lease(&text_a, 1024, 1024) == 0 || peer_lease(&text_a, 1, 1) == 0)
		;
	skv_core_prefix_read_end(core, other);
	skv_core_prefix_read_end(core, read);
	ck_assert_uint_eq(read_text("a"), read); /* and no request waits for its memory yet */
	ck_refused(peer_lease(&c, 1, 1), SKV_CORE_E_WAIT);
	ck_assert(!skv_core_prefix_is_wanted(core, read));
	ck_assert(skv_core_next_park(core, &seq) && seq == other);
	ck_assert_int_eq(skv_core_park_known(core, other), 0);
	skv_core_work_all(core);
	ck_refused(peer_lease(&c, 1, 1), SKV_CORE_E_WAIT);
	ck_assert(skv_core_prefix_is_wanted(core, read));
	skv_core_prefix_read_end(core, read);
	peer_die(&c);
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-core-prefix-room");

	add_case(s, "room", 60, setup, text_end, makes_room, parked_for_room, stays_while_forked, stays_while_read, read_ones_go_last, NULL);
	add_case(s, "few", 60, setup_few, text_end, make_room_by_number, parked_by_number, NULL);
	return run_suite(s);
}
