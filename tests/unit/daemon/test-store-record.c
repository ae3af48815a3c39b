/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of values that NIXL transfers, metadata of agents, and the window with the values: only what was sealed can
 * be opened; a value that others may be reading is not overwritten until the ring wraps around.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "daemon/store/record.h"
#include "daemon/store/transfer-ring.h"
#include "tests/support/random.h"
#include "tests/support/suite.h"

static uint8_t key[SKV_STORE_KEY], name[SKV_STORE_NAME];
static struct skv_store_cipher cipher;
static const struct skv_model model = {.n_layers = 40, .n_kv_heads = 8, .head_dim = 64, .kv_dtype = SKV_BF16};
static const struct skv_made rows;
static struct skv_store_cut cut;
static struct skv_store_record record;

static void begin(void)
{
	rnd_bytes(key, sizeof(key));
	rnd_bytes(name, sizeof(name));
	cipher = (struct skv_store_cipher){EVP_CIPHER_CTX_new(), key};
	ck_assert_int_eq(skv_store_cut_init(&cut, &model, &rows, 0), 0);
	ck_assert_uint_gt(cut.n_parts, 2);
	record = (struct skv_store_record){.version = SKV_STORE_RECORD_VERSION, .at = rnd64(), .device = rnd64(),
	                                   .bytes = skv_store_cut_bytes(&cut, 1) + SKV_STORE_PART_OVERHEAD};
	rnd_bytes(record.agent, sizeof(record.agent));
}

static void end(void)
{
	EVP_CIPHER_CTX_free(cipher.ctx);
	skv_store_cut_free(&cut);
}

static bool opens(const void *value, size_t n)
{
	struct skv_store_record got;

	return skv_store_record_open(&cipher, &cut, name, 1, value, n, &got) && memcmp(&got, &record, sizeof(got)) == 0;
}

/* ---- records --------------------------------------------------------------------------------- */

START_TEST(damage)
{
	uint8_t value[SKV_STORE_RECORD_BYTES + 1] = {0};

	ck_assert(skv_store_record_seal(&cipher, &cut, name, 1, &record, value));
	ck_assert(skv_store_is_record(value, SKV_STORE_RECORD_BYTES));
	ck_assert(opens(value, SKV_STORE_RECORD_BYTES));
	for (size_t n = 0; n < sizeof(value); n++) { /* truncated; in a buffer of just that length, for a sanitizer */
		uint8_t *copy = malloc(n + 1);

		memcpy(copy, value, n);
		ck_assert(n == SKV_STORE_RECORD_BYTES || !skv_store_is_record(copy, n));
		ck_assert(n == SKV_STORE_RECORD_BYTES || !opens(copy, n));
		free(copy);
	}
	ck_assert(!opens(value, sizeof(value)));
	for (size_t bit = 0; bit < 8 * SKV_STORE_RECORD_BYTES; bit++) {
		value[bit / 8] ^= (uint8_t)(1u << bit % 8);
		ck_assert(!opens(value, SKV_STORE_RECORD_BYTES));
		value[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	ck_assert(opens(value, SKV_STORE_RECORD_BYTES));
}
END_TEST

/* Values sealed with another key, or for another purpose; and a part under a record's name. */
START_TEST(others)
{
	uint8_t value[SKV_STORE_RECORD_BYTES];
	struct skv_model smaller = model;
	struct skv_store_cut small;
	struct skv_store_record got;

	ck_assert(skv_store_record_seal(&cipher, &cut, name, 1, &record, value));
	ck_assert(!skv_store_record_open(&cipher, &cut, name, 0, value, sizeof(value), &got));
	smaller.n_kv_heads = 4;
	ck_assert_int_eq(skv_store_cut_init(&small, &smaller, &rows, 0), 0);
	ck_assert(!skv_store_record_open(&cipher, &small, name, 1, value, sizeof(value), &got));
	skv_store_cut_free(&small);
	name[3] ^= 1;
	ck_assert(!opens(value, sizeof(value)));
	name[3] ^= 1;
	key[7] ^= 1;
	ck_assert(!opens(value, sizeof(value)));
	key[7] ^= 1;
	ck_assert(opens(value, sizeof(value)));
	record.version++;
	ck_assert(skv_store_record_seal(&cipher, &cut, name, 1, &record, value));
	ck_assert(!opens(value, sizeof(value)));
	record.version--;
	record.bytes--; /* not the size of the part */
	ck_assert(skv_store_record_seal(&cipher, &cut, name, 1, &record, value));
	ck_assert(!opens(value, sizeof(value)));
}
END_TEST

START_TEST(agents)
{
	const uint8_t agent[SKV_STORE_AGENT] = {0xff, 0x01}, other[SKV_STORE_AGENT] = {0xff, 0x02};
	uint8_t value[500 + SKV_STORE_SEAL_OVERHEAD], text[500], got[sizeof(value)];
	char at[SKV_STORE_AGENT_KEY];

	skv_store_agent_key(agent, at);
	ck_assert_str_eq(at, "sparsekv-agent:ff010000000000000000000000000000");
	rnd_bytes(text, sizeof(text));
	ck_assert(skv_store_agent_seal(&cipher, agent, text, sizeof(text), value));
	ck_assert(skv_store_agent_open(&cipher, agent, value, sizeof(value), got));
	ck_assert_mem_eq(got, text, sizeof(text));
	ck_assert(!skv_store_agent_open(&cipher, other, value, sizeof(value), got));
	for (size_t n = 0; n < sizeof(value); n++)
		ck_assert(!skv_store_agent_open(&cipher, agent, value, n, got));
	value[rnd_below(sizeof(value))] ^= 0x10;
	ck_assert(!skv_store_agent_open(&cipher, agent, value, sizeof(value), got));
}
END_TEST

/* ---- the window ------------------------------------------------------------------------------ */

#define VALUES 2000
#define WINDOW ((size_t)10000)

static struct {
	uint8_t *at; /* NULL: overwritten */
	size_t n;
} held[VALUES];

/* Values do not overlap; the oldest are overwritten first, and each is reported once. */
START_TEST(ring)
{
	uint8_t *memory = malloc(WINDOW);
	struct skv_store_window w = {.at = memory, .bytes = WINDOW};
	char text[20];
	int oldest = 0;

	for (int i = 0; i < VALUES; i++) {
		held[i].n = 1 + rnd_below(rnd_below(4) ? 900 : 5000);
		snprintf(text, sizeof(text), "%d", i);
		held[i].at = skv_store_window_take(&w, held[i].n, text);
		ck_assert_ptr_nonnull(held[i].at);
		ck_assert(held[i].at >= memory && held[i].at + held[i].n <= memory + WINDOW);
		while (skv_store_window_gone(&w, text, sizeof(text)))
			held[atoi(text)].at = NULL;
		while (!held[oldest].at)
			oldest++;
		for (int k = oldest; k < i; k++)
			ck_assert(held[k].at && (held[k].at + held[k].n <= held[i].at || held[i].at + held[i].n <= held[k].at));
	}
	ck_assert_int_lt(oldest, VALUES - 1); /* it holds several */
	ck_assert_ptr_null(skv_store_window_take(&w, WINDOW + 1, "large"));
	ck_assert(!skv_store_window_gone(&w, text, sizeof(text)));
	skv_store_window_deinit(&w);
	free(memory);
}
END_TEST

int main(void)
{
	Suite *suite = begin_suite("test-store-record");

	add_case(suite, "record", 20, begin, end, damage, others, agents, NULL);
	add_case(suite, "window", 20, NULL, NULL, ring, NULL);
	return run_suite(suite);
}
