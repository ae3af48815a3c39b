/* SPDX-License-Identifier: Apache-2.0 */
/* Sealed prefixes: made of sequences, found by their blocks' keys, forked by sequences of other lengths, and dropped like others. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "daemon/core/charge.h"
#include "daemon/core/pins.h"
#include "daemon/core/prefix.h"
#include "daemon/core/parking.h"
#include "tests/support/core-peer.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

#define LAYERS 2u
#define FEW 16u /* sequences of a user */
#define BLOCK_PAGES (LAYERS * SKV_BLOCK_TOKENS / SKV_PAGE_TOKENS)

static struct skv_model model;
static struct peer a, b;
static const uint8_t origin[SKV_PREFIX_ORIGIN] = {1, 2, 3};

static void setup_with(uint32_t sequences)
{
	struct skv_core_config k = books_config();

	k.pool_bytes = 64 << 20;
	k.account_bytes = 64 << 20;
	k.account_sequences = sequences;
	k.max_sequences = 128;
	books_open(&k);
	model = test_model("m", LAYERS, 16);
	model.max_tokens = 8192;
	peer_join(&a, 1000, &model);
	peer_join(&b, 1000, &model);
}

static void setup(void)
{
	setup_with(128);
}

static void setup_few(void)
{
	setup_with(FEW);
}

static void teardown(void)
{
	peer_die(&a);
	peer_die(&b);
	skv_core_drop_all(core);
	ck_assert_uint_eq(n_corrupt, 0);
	books_close();
}

/* Keys of a text: blocks are equal as far as texts begin with the same letters, one for each. */
static uint32_t keys_of(const char *text, struct skv_block_key *ret)
{
	uint64_t sum = 0xcbf29ce484222325u;
	uint32_t n = 0;

	for (; *text; text++, n++) {
		sum = (sum ^ (uint64_t)*text) * 0x100000001b3u;
		memcpy(ret[n].bytes, &sum, 8);
		memset(ret[n].bytes + 8, *text, 8);
	}
	return n;
}

/* A sequence of the peer's with that text, and some tokens more. */
static void write_text(struct held *h, struct peer *p, const char *name, const char *text)
{
	const uint32_t n = (uint32_t)strlen(text) * SKV_BLOCK_TOKENS;

	held_new(h, p, name, 4096);
	held_append(h, p, n + 40);
	for (uint32_t i = 0; i < n; i++)
		skv_seqmem_tokens(h->mem, &h->layout)[i] = text[i / SKV_BLOCK_TOKENS] * 1000 + (int32_t)(i % SKV_BLOCK_TOKENS);
	h->mem->about[skv_commit_epoch(h->mem->commit) & 1] = n + 40;
}

static int seal(struct held *h, struct peer *p, const char *text)
{
	struct skv_block_key keys[32];
	struct skv_made made;
	int r = skv_core_prefix_made(core, p->client, p->session.session, h->seq, &made);

	return r ? r : in_turns(skv_core_prefix_seal(core, p->client, p->session.session, h->seq, origin, &made, keys, keys_of(text, keys)), NULL);
}

static uint32_t find(struct peer *p, const char *text)
{
	struct skv_block_key keys[32];
	uint32_t n;

	ck_assert_int_eq(skv_core_prefix_find(core, p->client, p->session.session, keys, keys_of(text, keys), &n), 0);
	return n;
}

/* How many blocks of the text the new sequence has. */
static uint32_t open_text(struct held *h, struct peer *p, const char *name, uint32_t max_tokens, const char *text)
{
	struct skv_core_seq_info info;
	struct skv_block_key keys[32];
	uint32_t blocks, n = keys_of(text, keys);
	int r = skv_core_prefix_open(core, p->client, p->session.session, name, max_tokens, keys, n, &info, &blocks);

	ck_assert_int_eq(in_turns(r, &info), 0);
	held_open(h, p, &info);
	ck_assert_uint_eq(held_len(h), blocks * SKV_BLOCK_TOKENS);
	for (uint32_t i = 0; i < blocks * SKV_BLOCK_TOKENS; i++)
		ck_assert_int_eq(skv_seqmem_tokens(h->mem, &h->layout)[i], text[i / SKV_BLOCK_TOKENS] * 1000 + (int32_t)(i % SKV_BLOCK_TOKENS));
	ck_assert_int_eq(skv_seqmem_tokens(h->mem, &h->layout)[blocks * SKV_BLOCK_TOKENS], -1);
	return blocks;
}

/* Another client goes on from what one has sealed, in a sequence of another length, when that one is gone. */
START_TEST(sealed_and_opened)
{
	struct held one, two;

	write_text(&one, &a, NULL, "abc");
	ck_assert_uint_eq(find(&b, "abc"), 0);
	ck_assert_int_eq(seal(&one, &a, "abc"), 0);
	ck_assert_int_eq(seal(&one, &a, "abc"), SKV_CORE_E_EXIST);
	ck_assert_uint_eq(find(&b, "abc"), 3);
	ck_assert_uint_eq(find(&b, "abcd"), 3);
	ck_assert_uint_eq(find(&b, "abx"), 2);
	ck_assert_uint_eq(find(&b, "xbc"), 0);
	held_append(&one, &a, 100);
	ck_assert_uint_eq(open_text(&two, &b, "two", 8192, "abxy"), 2);
	for (uint32_t i = 0; i < 2 * SKV_BLOCK_TOKENS / SKV_PAGE_TOKENS; i++)
		for (uint32_t layer = 0; layer < LAYERS; layer++) {
			ck_assert_uint_eq(skv_pte_kind(held_entry(&two, layer, i)), SKV_PTE_SHARED);
			ck_assert_uint_eq(held_entry(&two, layer, i), held_entry(&one, layer, i));
		}
	held_append(&two, &b, 3000);
	ck_assert_uint_eq(held_len(&two), 2 * SKV_BLOCK_TOKENS + 3000);
	peer_die(&a);
	held_close(&one);
	peer_join(&a, 1000, &model);
	ck_assert_uint_eq(find(&a, "abc"), 3);
	ck_assert_int_eq(held_detach(&two, &b), 0);
	ck_assert_int_eq(held_attach(&two, &b, "two"), 0);
	ck_assert_uint_eq(held_len(&two), 2 * SKV_BLOCK_TOKENS + 3000);
	held_drop(&two, &b);
	pool_is(&a, books_pool(a.session.pool).lease, 0, 3 * BLOCK_PAGES);
}
END_TEST

/* Nobody else finds it: another user, model, shape, dtype or rank. And a sequence that is too short has less of it. */
START_TEST(whose)
{
	struct skv_model other[5];
	struct peer c;
	struct held one, two;

	write_text(&one, &a, NULL, "ab");
	ck_assert_int_eq(seal(&one, &a, "ab"), 0);
	for (int i = 0; i < 5; i++)
		other[i] = model;
	strcpy(other[1].name, "n");
	other[2].n_heads *= 2;
	other[3].kv_dtype = model.kv_dtype == SKV_F16 ? SKV_BF16 : SKV_F16;
	other[4].n_ranks = 2;
	for (int i = 0; i < 5; i++) {
		peer_join(&c, i == 0 ? 1001 : 1000, &other[i]);
		ck_assert_uint_eq(find(&c, "ab"), 0);
		peer_die(&c);
	}
	ck_assert_uint_eq(open_text(&two, &b, NULL, 300, "ab"), 1);
	held_drop(&two, &b);
	ck_assert_uint_eq(open_text(&two, &b, NULL, 255, "ab"), 0);
	held_drop(&two, &b);
	held_drop(&one, &a);
}
END_TEST

/* Two that begin alike: when one goes the other is found. */
START_TEST(alike)
{
	struct skv_block_key keys[8];
	struct held one, two;
	char name[SKV_NAME_MAX] = "/";

	write_text(&one, &a, NULL, "abc");
	write_text(&two, &b, NULL, "abd");
	ck_assert_int_eq(seal(&one, &a, "abc"), 0);
	ck_assert_int_eq(seal(&two, &b, "abd"), 0);
	for (uint32_t i = 0, n = keys_of("abc", keys); i < sizeof(keys[0].bytes); i++)
		sprintf(name + strlen(name), "%02x", keys[n - 1].bytes[i]);
	ck_assert_int_eq(held_attach(&one, &a, name), SKV_CORE_E_NOENT);
	ck_assert_int_eq(skv_core_seq_drop_name(core, 1000, "m", name), 0);
	ck_assert_uint_eq(find(&a, "abc"), 2); /* at once, though its pages go in turns */
	skv_core_work_all(core);
	ck_assert_uint_eq(find(&a, "abd"), 3);
	held_close(&one);
	held_drop(&two, &b);
}
END_TEST

/* What the user is charged for beside files. */
static uint64_t beside_files(void)
{
	struct skv_core_held held;
	uint32_t at = 0;

	do
		skv_core_measure(core, &at, 1000);
	while (at);
	skv_core_held(core, true, 0, &held);
	return books_account(1000).other_bytes - held.sequences;
}

/* What a prefix is found by is charged to its user, and before it is there. */
START_TEST(keys_are_charged)
{
	static const char *const texts[] = {"a", "bcdefghijklmno"};
	struct held h;
	uint64_t before, took[2], pinned = 0;

	for (int i = 0; i < 2; i++) {
		write_text(&h, &a, NULL, texts[i]);
		before = beside_files();
		ck_assert_int_eq(seal(&h, &a, texts[i]), 0);
		took[i] = beside_files() - before;
		held_drop(&h, &a);
	}
	ck_assert_uint_eq(took[1] - took[0], 13 * SKV_BLOCK_BYTES); /* the rest are bits of references */
	write_text(&h, &a, NULL, "pqrstuvwxyzabc");
	before = books_account(1000).other_bytes + books_account(1000).page_bytes[SKV_DEVICE_HOST];
	ck_assert_int_eq(skv_core_pin(core, 1000, (64 << 20) - before - skv_file_bytes(core->seqs[skv_state_find(&core->state, SKV_TABLE_SEQUENCES, h.seq)].fd), &pinned), 0);
	ck_assert_int_eq(seal(&h, &a, "pqrstuvwxyzabc"), SKV_CORE_E_QUOTA);
	skv_core_unpin(core, 1000, &pinned);
	ck_assert_int_eq(seal(&h, &a, "pqrstuvwxyzabc"), 0);
	held_drop(&h, &a);
}
END_TEST

/* Texts of few letters, sealed, opened and dropped at random, against a list. */
START_TEST(at_random)
{
	char sealed[64][8];
	uint32_t n = 0;

	rnd_begin((uint64_t)_i);
	for (int i = 0; i < 150; i++) {
		char text[8] = "";
		uint32_t best = 0, len = 1 + rnd_below(4);
		bool known = false;
		struct held h;

		for (uint32_t k = 0; k < len; k++)
			text[k] = (char)('a' + rnd_below(2));
		for (uint32_t k = 0; k < n; k++) {
			uint32_t same = 0;

			while (same < len && sealed[k][same] == text[same])
				same++;
			best = same > best ? same : best;
			known |= !strcmp(sealed[k], text);
		}
		ck_assert_uint_eq(find(&a, text), best);
		if (rnd_below(2)) {
			write_text(&h, &a, NULL, text);
			ck_assert_int_eq(seal(&h, &a, text), known || best == len ? SKV_CORE_E_EXIST : 0);
			if (!known && best < len)
				strcpy(sealed[n++], text);
		} else {
			ck_assert_uint_eq(open_text(&h, &a, NULL, 0, text), best);
		}
		held_drop(&h, &a);
		if (n > 0 && rnd_below(6) == 0) {
			struct skv_block_key keys[8];
			const uint32_t at = rnd_below(n), blocks = keys_of(sealed[at], keys);
			char name[SKV_NAME_MAX] = "/";

			for (uint32_t k = 0; k < sizeof(keys[0].bytes); k++)
				sprintf(name + strlen(name), "%02x", keys[blocks - 1].bytes[k]);
			ck_assert_int_eq(drop_name(1000, "m", name), 0);
			memmove(sealed[at], sealed[--n], sizeof(sealed[0]));
		}
	}
	books_even();
}
END_TEST

/* A memory that is used up: prefixes make room, the one that was used last goes last. */
START_TEST(makes_room)
{
	static const char *const texts[] = {"a", "b", "c"}, *const order[] = {"b", "c", "a"};
	struct held h;

	for (int i = 0; i < 3; i++) {
		write_text(&h, &a, NULL, texts[i]);
		ck_assert_int_eq(seal(&h, &a, texts[i]), 0);
		held_drop(&h, &a);
	}
	ck_assert_uint_eq(open_text(&h, &b, NULL, 0, "a"), 1); /* it is used */
	held_drop(&h, &b);
	for (int gone = 0; gone < 3; gone++) {
		for (int calls = 0; find(&a, order[gone]) && calls < 200; calls++) {
			(void)peer_lease(&a, 1024, 1024);
			skv_core_work_all(core);
		}
		ck_assert_uint_eq(find(&a, order[gone]), 0);
		ck_assert_uint_eq(find(&a, "a"), gone < 2);
		(void)peer_lease(&a, 1, 1);
	}
	books_even();
}
END_TEST

/* The next one that is to be parked, once memory is wanted; 0: none. */
static uint32_t wanted(void)
{
	uint32_t seq = 0;

	for (int calls = 0; calls < 200 && !skv_core_next_park(core, &seq); calls++) {
		(void)peer_lease(&a, 1024, 1024);
		skv_core_work_all(core);
	}
	return seq;
}

/* Where sequences are parked, so are prefixes; what is in a file goes at once, and what cannot be parked is dropped. */
START_TEST(parked_for_room)
{
	const struct skv_block_key *keys;
	struct skv_block_key expected[8];
	uint32_t seq, n;
	struct held h;

	for (char text[] = "a"; *text <= 'c'; ++*text) {
		write_text(&h, &a, NULL, text);
		ck_assert_int_eq(seal(&h, &a, text), 0);
		held_drop(&h, &a);
	}
	skv_core_set_parking(core, true);
	seq = wanted();
	ck_assert_int_eq(skv_core_prefix_keys(core, seq, &keys, &n), 0);
	ck_assert_uint_eq(n, keys_of("a", expected));
	ck_assert_mem_eq(keys, expected, sizeof(*keys));
	ck_assert_uint_eq(find(&a, "a"), 1); /* until it is written */
	ck_assert_int_eq(skv_core_park_known(core, seq), 0);
	ck_assert_uint_eq(find(&a, "a"), 0);
	skv_core_work_all(core);
	ck_refused(skv_core_park_known(core, seq), SKV_CORE_E_NOENT);
	ck_refused(skv_core_prefix_keys(core, seq, &keys, &n), SKV_CORE_E_NOENT);
	seq = wanted();
	ck_assert_uint_eq(find(&a, "b"), 1);
	skv_core_park_failed(core, seq, 1);
	seq = wanted();
	ck_assert_uint_eq(find(&a, "b"), 0);
	ck_assert_uint_eq(find(&a, "c"), 1);
	skv_core_park_failed(core, seq, 1);
	ck_assert_uint_eq(wanted(), 0);
	ck_assert_uint_eq(find(&a, "c"), 0);
	books_even();
}
END_TEST

/* By number: parked beyond three quarters of the quota, one at a time; dropped where the disk cannot keep up. And with age. */
START_TEST(parked_by_number)
{
	uint32_t seq, again;
	struct held h;

	skv_core_set_parking(core, true);
	for (char text[] = "a"; *text < 'a' + (int)FEW - 2; ++*text) {
		write_text(&h, &a, NULL, text);
		ck_assert_int_eq(seal(&h, &a, text), 0);
		held_drop(&h, &a);
		ck_assert_int_eq(skv_core_next_park(core, &seq), *text == 'a' + (int)FEW * 3 / 4 - 1);
		skv_core_work_all(core);
		ck_assert_uint_eq(find(&a, "a"), 1);
	}
	for (char text[] = "y"; *text <= 'z'; ++*text) {
		write_text(&h, &a, NULL, text);
		ck_assert_int_eq(seal(&h, &a, text), 0);
		held_drop(&h, &a);
		ck_assert(!skv_core_next_park(core, &again));
		skv_core_work_all(core);
	}
	ck_assert_uint_eq(find(&a, "a"), 1); /* it is being written */
	ck_assert_uint_eq(find(&a, "b"), 0);
	ck_assert_int_eq(skv_core_park_known(core, seq), 0);
	skv_core_work_all(core);
	(void)age_all(10, 50, 0);
	(void)age_all(70, 50, 0);
	for (uint32_t n = 0; skv_core_next_park(core, &seq); n++)
		ck_assert_int_eq(skv_core_park_known(core, seq), 0);
	skv_core_work_all(core);
	ck_assert_uint_eq(find(&a, "z"), 0);
}
END_TEST

/* As if it were written to a file: what the core says to that. */
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

/* While it is forked it stays, though its memory is wanted, or it is to be dropped; then it grows old. */
START_TEST(stays_while_forked)
{
	const char *text = "abcdefghijklmnopqrstuvwxyzabcd"; /* of 30 blocks in 16 layers, it takes turns */
	struct skv_model deep = test_model("deep", 16, 16);
	struct skv_block_key keys[32];
	struct skv_core_seq_info info;
	char name[SKV_NAME_MAX] = "/";
	uint32_t n = keys_of(text, keys), blocks, seq;
	struct held h;
	struct peer c;

	deep.max_tokens = 8192;
	peer_join(&c, 1000, &deep);
	held_new(&h, &c, NULL, 8192);
	held_append(&h, &c, n * SKV_BLOCK_TOKENS);
	ck_assert_int_eq(seal(&h, &c, text), 0);
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
	ck_refused(list_and_leave(seq), SKV_CORE_E_BUSY); /* though nobody has used it since it was listed */
	ck_assert_int_eq(in_turns(SKV_CORE_E_TURNS, &info), 0);
	held_open(&h, &c, &info);
	ck_assert_uint_eq(held_len(&h), n * SKV_BLOCK_TOKENS);
	held_drop(&h, &c);
	ck_assert_uint_eq(age_all(200, 0, 5), 0);
	ck_assert_uint_eq(age_all(300, 0, 5), 1);
	skv_core_work_all(core);
	ck_assert_uint_eq(find(&c, text), 0);
	peer_die(&c);
}
END_TEST

/* Their number keeps no sequence out, but a prefix: those that are there leave a quarter of the quota, and go if it is used up. */
START_TEST(make_room_by_number)
{
	struct held h, held[FEW];
	struct skv_core_seq_info info;
	uint32_t found = 0;

	for (char text[] = "a"; *text <= 'z'; ++*text) {
		write_text(&h, &a, NULL, text);
		ck_assert_int_eq(seal(&h, &a, text), 0);
		held_drop(&h, &a);
		skv_core_work_all(core);
	}
	for (char text[] = "a"; *text <= 'z'; ++*text)
		found += find(&a, text);
	ck_assert_uint_ge(found, FEW / 2);
	ck_assert_uint_le(found, FEW * 3 / 4);
	write_text(&held[0], &a, NULL, "A");
	for (uint32_t i = 1; i < FEW; i++)
		held_new(&held[i], &b, NULL, 512);
	ck_refused(skv_core_seq_new(core, a.client, a.session.session, NULL, 512, &info), SKV_CORE_E_QUOTA);
	ck_refused(seal(&held[0], &a, "A"), SKV_CORE_E_QUOTA);
	(void)age_all(100, 0, 0);
	skv_core_work_all(core);
	for (char text[] = "a"; *text <= 'z'; ++*text)
		ck_assert_uint_eq(find(&a, text), 0);
	held_drop(&held[1], &b);
	ck_assert_int_eq(seal(&held[0], &a, "A"), 0);
}
END_TEST

/* Whose pages are read stays, too; one reader at a time. */
START_TEST(stays_while_read)
{
	struct skv_block_key keys[8];
	uint32_t n = keys_of("abc", keys), seq = 0;
	char name[SKV_NAME_MAX];
	struct held h;

	write_text(&h, &a, NULL, "abc");
	ck_assert_int_eq(seal(&h, &a, "abc"), 0);
	held_drop(&h, &a);
	ck_refused(skv_core_prefix_seq(core, b.client, b.session.session, keys, n - 1, &seq), SKV_CORE_E_NOENT);
	ck_assert_int_eq(skv_core_prefix_seq(core, b.client, b.session.session, keys, n, &seq), 0);
	ck_assert_int_eq(skv_core_prefix_read(core, seq), 0);
	ck_refused(skv_core_prefix_read(core, seq), SKV_CORE_E_BUSY);
	skv_prefix_name(&keys[n - 1], name);
	ck_refused(skv_core_seq_drop_name(core, 1000, model.name, name), SKV_CORE_E_BUSY);
	skv_core_set_parking(core, true);
	for (int calls = 0; calls < 100; calls++) {
		(void)peer_lease(&a, 1024, 1024);
		skv_core_work_all(core);
	}
	ck_assert_uint_eq(age_all(10, 0, 5), 0);
	ck_assert_uint_eq(age_all(100, 0, 5), 0);
	ck_assert_uint_eq(find(&b, "abc"), 3);
	skv_core_prefix_read_end(core, seq);
	(void)age_all(200, 0, 0); /* the quota is used up, of which prefixes leave a quarter */
	skv_core_work_all(core);
	ck_assert_uint_eq(find(&b, "abc"), 0);
	ck_refused(skv_core_prefix_read(core, seq), SKV_CORE_E_NOENT);
	skv_core_prefix_read_end(core, seq); /* gone: nothing */
}
END_TEST

/* The sealed prefix of a text, which is read from now on. */
static uint32_t read_text(const char *text)
{
	struct skv_block_key keys[8];
	uint32_t seq;

	ck_assert_int_eq(skv_core_prefix_seq(core, a.client, a.session.session, keys, keys_of(text, keys), &seq), 0);
	ck_assert_int_eq(skv_core_prefix_read(core, seq), 0);
	return seq;
}

/* A user who is owed memory gets that of prefixes that nobody reads. If all are read their reader is told. */
START_TEST(read_ones_go_last)
{
	uint32_t read, other, seq;
	struct held h;
	struct peer c;

	skv_core_set_parking(core, true);
	peer_join(&c, 1001, &model);
	for (char text[] = "a"; *text <= 'b'; ++*text) {
		write_text(&h, &a, NULL, text);
		ck_assert_int_eq(seal(&h, &a, text), 0);
		held_drop(&h, &a);
	}
	read = read_text("a");
	other = read_text("b");
	while (peer_lease(&a, 1024, 1024) == 0 || peer_lease(&a, 1, 1) == 0)
		;
	skv_core_prefix_read_end(core, other);
	skv_core_prefix_read_end(core, read);
	ck_assert_uint_eq(read_text("a"), read); /* and it is wanted by nobody yet */
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

/* What a worker does: entries, ids and a commit of `n` blocks, in order of blocks. Their pages, in that order too, are `ids`. */
static void restore_memory(uint32_t seq, const char *text, uint32_t n, const uint32_t *ids)
{
	static const struct skv_made rows;
	struct skv_core_location p;
	struct skv_seqmem_layout layout;
	struct skv_seqmem *m;

	ck_assert_int_eq(skv_core_seq_location(core, seq, &p), 0);
	skv_seqmem_layout(p.model, p.max_tokens, &layout);
	m = mmap(NULL, layout.total, PROT_READ | PROT_WRITE, MAP_SHARED, p.fd, 0);
	ck_assert(m != MAP_FAILED);
	for (uint32_t block = 0; block < n; block++)
		for (uint32_t layer = 0; layer < LAYERS; layer++)
			for (uint32_t k = 0; k < SKV_BLOCK_TOKENS / SKV_PAGE_TOKENS; k++)
				skv_seqmem_table(m, &layout, layer)[block * (SKV_BLOCK_TOKENS / SKV_PAGE_TOKENS) + k] = skv_pte_make(SKV_PTE_PRIVATE, *ids++);
	for (uint32_t i = 0; i < n * SKV_BLOCK_TOKENS; i++)
		skv_seqmem_tokens(m, &layout)[i] = text[i / SKV_BLOCK_TOKENS] * 1000 + (int32_t)(i % SKV_BLOCK_TOKENS);
	skv_seqmem_begin_with(m, n * SKV_BLOCK_TOKENS, LAYERS, &rows);
	munmap(m, layout.total);
}

/* A sequence without a name that has pages for three blocks; those of two are used, and it is sealed. Returns what that says. */
static int restore(const char *text)
{
	struct skv_block_key keys[8];
	struct skv_wire_run runs[512];
	uint32_t ids[3 * BLOCK_PAGES], n = 0, taken = 0, seq, n_runs;
	int r;

	keys_of(text, keys);
	r = skv_core_restore_new(core, 1000, &model, "", 3 * SKV_BLOCK_TOKENS, &seq);
	ck_assert_msg(r == 0, "%s", skv_core_why(core));
	while (taken < 3 * BLOCK_PAGES) {
		ck_assert_int_eq(skv_core_restore_take(core, seq, 3 * BLOCK_PAGES - taken, runs, 512, &n_runs), 0);
		for (uint32_t i = 0; i < n_runs; i++)
			for (uint32_t k = 0; k < runs[i].count; k++)
				ids[taken++] = runs[i].first + k;
	}
	restore_memory(seq, text, 2, ids);
	for (uint32_t i = 2 * BLOCK_PAGES; i < taken; i++)
		runs[n++] = (struct skv_wire_run){ids[i], 1};
	ck_assert_int_eq(skv_core_prefix_put_back(core, seq, runs, n), 0);
	ck_refused(skv_core_prefix_put_back(core, seq, runs, 1), SKV_CORE_E_NOENT); /* a second time */
	r = skv_core_prefix_restored(core, seq, origin, keys, 2);
	if (r)
		ck_assert_int_eq(in_turns(skv_core_restore_drop(core, seq), NULL), 0);
	return r;
}

START_TEST(restored)
{
	struct held h;

	ck_assert_int_eq(restore("abc"), 0);
	ck_assert_uint_eq(find(&a, "abc"), 2);
	pool_is(&a, books_pool(a.session.pool).lease, 2 * BLOCK_PAGES, 0);
	ck_assert_uint_eq(open_text(&h, &a, NULL, 0, "abz"), 2);
	ck_assert_int_eq(restore("abc"), SKV_CORE_E_EXIST);
	ck_assert_uint_eq(find(&a, "abc"), 2);
	held_append(&h, &a, 100);
	held_drop(&h, &a);
	books_even();
}
END_TEST

int main(void)
{
	Suite *s = begin_suite("test-core-prefix");
	TCase *t = add_case(s, "prefix", 60, setup, teardown, sealed_and_opened, whose, keys_are_charged, alike, makes_room, parked_for_room, stays_while_forked, stays_while_read, read_ones_go_last,
	                    restored, NULL);

	tcase_add_loop_test(t, at_random, 0, 6);
	add_case(s, "few", 60, setup_few, teardown, make_room_by_number, parked_by_number, NULL);
	return run_suite(s);
}
