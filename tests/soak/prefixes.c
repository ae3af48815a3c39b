/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/soak/prefixes.c - sealed prefixes: engines seal what they have read, and begin sequences with what any of them
 * has sealed, while daemons die or come back with another secret, and a prefix store is killed and its values are
 * overwritten.
 *
 * There are few prompts, and each of their blocks is one of two, so two prompts have 0 to all blocks in common. K and V
 * of a token follow from its prompt and position, so an engine that is given a prefix knows each byte of it, whichever
 * engine sealed it. A prefix may be gone or shorter; it is never wrong, nor longer than what was sealed.
 */
#include "libclient/conn/pool.h"
#include "libclient/seq.h"
#include "tests/soak/engine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/support/folder.h"
#include "tests/support/manager.h"
#include "tests/support/output-hash.h"
#include "tests/support/policies.h"
#include "tests/support/reference-attention.h"
#include "tests/support/store-fixture.h"

#define KINDS 2u /* of a block */
#define PROMPTS 8u
#define TAIL 40u /* tokens after the last block, at most */
_Static_assert(SOAK_LONG > SOAK_BLOCKS * SKV_BLOCK_TOKENS + TAIL, "there is room for steps");

/* ---- prompts --------------------------------------------------------------------------------- */

static uint32_t prompt_key(uint32_t prompt, uint32_t at)
{
	for (uint32_t block = at / SKV_BLOCK_TOKENS; block > 0; block--)
		prompt /= KINDS;
	return 1 + prompt % KINDS;
}

/* Where it is recorded that the first n tokens of a life may be sealed. */
static _Atomic bool *may_be_sealed(const struct life *l, uint32_t n)
{
	uint64_t h = OUTPUT_HASH_NONE;

	for (uint32_t i = 0; i < n; i++)
		h = (h ^ l->keys[i]) * 0x9e3779b97f4a7c15u;
	return &soak->may_be_sealed[h >> 44];
}

void prefixes_ask(struct life *l, uint32_t prompt, uint32_t n)
{
	l->prompt = prompt;
	l->asked = n;
	l->most = SOAK_LONG;
}

bool prefixes_given(struct life *l, uint32_t len)
{
	if (len >= l->asked || len % SKV_BLOCK_TOKENS)
		return false;
	l->n = 0;
	for (uint32_t at = 0; at < len; at += SKV_BLOCK_TOKENS)
		life_add(l, (struct event){.what = SOAK_PROMPT, .stage = SOAK_DONE, .given = true, .rows = SKV_BLOCK_TOKENS,
		                           .accepted = SKV_BLOCK_TOKENS, .remaining = (uint16_t)(l->asked - at - SKV_BLOCK_TOKENS),
		                           .key = prompt_key(l->prompt, at)})->next = -1;
	return len == 0 || *may_be_sealed(l, len);
}

/* ---- actions of an engine ----------------------------------------------------------------------- */

/* Compares each byte of all pages in the daemon's memory. */
static void check_pages(const struct skv_seq *q, const struct life *l, uint32_t len)
{
	const struct pool *pool = q->session->pool;
	const size_t dim = soak_model.head_dim, half = soak_model.n_kv_heads * SKV_PAGE_TOKENS * dim;
	float row[256];

	for (uint32_t layer = 0; layer < soak_model.n_layers; layer++)
		for (uint32_t at = 0; at < len; at++) {
			const skv_pte entry = seq_table(q, layer)[at / SKV_PAGE_TOKENS];
			const float *page = (const float *)(const void *)(pool->base + skv_pte_id(entry) * pool->page_bytes);

			ck_assert_msg(skv_pte_resident(entry), "layer %u: token %u of %u was given, and has no page", layer, at, len);
			for (uint32_t i = 0; i < 2 * soak_model.n_kv_heads; i++) {
				const uint32_t head = i / 2;
				const float *have = page + i % 2 * half + (head * SKV_PAGE_TOKENS + at % SKV_PAGE_TOKENS) * dim;

				refmodel_row(life_content(l->keys[at], at), layer, i % 2 ? ROW_V : ROW_K, head, soak_model.head_dim, row);
				ck_assert_msg(!memcmp(have, row, dim * sizeof(*row)),
				              "layer %u: token %u of %u was given, and its %s is another: %g %g ..., expected %g %g ...", layer, at, len, i % 2 ? "V" : "K",
				              (double)have[0], (double)have[1], (double)row[0], (double)row[1]);
			}
		}
	ADD(PREFIX_PAGES, soak_model.n_layers * (len / SKV_PAGE_TOKENS));
}

int prefixes_new_from(struct skv_session *s, const char *name, const struct life *l, struct skv_seq **ret)
{
	int32_t ids[SOAK_LONG];

	for (uint32_t i = 0; i < l->asked; i++)
		ids[i] = refmodel_token(life_content(prompt_key(l->prompt, i), i));
	return skv_seq_new_from(s, name, 0, ids, l->asked, ret);
}

void prefixes_begun(struct life *l, const struct skv_seq *q)
{
	const uint32_t len = skv_seq_len(q);

	ck_assert_msg(prefixes_given(l, len), "life %u was given %u tokens of %u: so many were never sealed", life_number(l), len, l->asked);
	check_pages(q, l, len);
	life_runs(l, spec_of(q));
	ADD(PROMPTS, 1);
	ADD(BEGUN, len > 0);
	ADD(GIVEN, len);
}

/* Under these policies sealing compresses the sequence itself, too, which the record of its life does not include. */
static bool compresses(const struct mine *m)
{
	return policy_action(skv_seq_policy_spec(m->seq)) == SKV_ACT_COMPRESS;
}

/* Did it run only policies that keep all rows? Then sealing must be possible. */
static bool keeps_all(const struct life *l)
{
	for (uint32_t i = 0; i < l->n; i++) {
		const enum skv_action action = policy_action(soak->spec[l->event[i].spec]);

		if (action != SKV_ACT_NONE && action != SKV_ACT_SELECT)
			return false;
	}
	return true;
}

static void seal(struct mine *m)
{
	const uint32_t len = life_now(m->life).len, n = rnd_below(3) ? len : rnd_below(len + 1), blocks = n / SKV_BLOCK_TOKENS;
	const bool too_many = lives_may_be_too_many();
	uint32_t sealed;
	int e;

	if (compresses(m))
		return;
	engine_say("seal %u tokens of %s", n, told(m));
	for (uint32_t i = 1; i <= blocks; i++)
		*may_be_sealed(m->life, i * SKV_BLOCK_TOKENS) = true;
	e = called(skv_seq_seal(m->seq, n == len && rnd_below(2) ? SKV_ALL : n, &sealed));
	if (e == -ESTALE && (strstr(skv_last_error(), "computed under") || !keeps_all(m->life))) {
		ADD(STALE_SEALS, 1);
	} else if (e == -EDQUOT && (too_many || lives_may_be_too_many())) {
		ADD(QUOTA_SEQS, 1);
	} else {
		ck_assert_msg(e == 0 && sealed == blocks * SKV_BLOCK_TOKENS, "seal %u tokens: %d %s, %u sealed", n, e, skv_last_error(), sealed);
		ADD(SEALED, blocks > 0);
	}
}

void act_seal(void)
{
	struct mine *m = any(true);

	for (uint32_t i = 0; i < HELD; i++) /* preferably one that is long enough */
		if (mine[i].seq && life_now(mine[i].life).len >= SKV_BLOCK_TOKENS && rnd_below(2))
			m = &mine[i];
	if (m)
		seal(m);
}

/* Begins with what exists of a prompt, and reads the rest. */
void act_prompt(void)
{
	const uint32_t prompt = rnd_below(PROMPTS), blocks = rnd_below(1 + rnd_below(SOAK_BLOCKS + 1));
	const uint32_t n = blocks * SKV_BLOCK_TOKENS + 1 + rnd_below(TAIL);
	struct mine *m = any(false);

	if (!m || !make(m, NULL, n, rnd_below(2) ? reserve_name() : SOAK_NONE, prompt))
		return;
	for (uint32_t at = life_now(m->life).len, rows; at < n; at += rows) {
		const uint32_t block = SKV_BLOCK_TOKENS - at % SKV_BLOCK_TOKENS, left = n - at < block ? n - at : block;
		struct soak_item item = {.seq = m->seq, .life = m->life};

		rows = rnd_below(2) ? left : 1 + rnd_below(left);
		item.event.what = SOAK_PROMPT;
		item.event.rows = item.event.accepted = (uint16_t)rows;
		item.event.remaining = (uint16_t)(n - at - rows);
		item.event.key = prompt_key(prompt, at);
		item.event.next_spec = self->target;
		engine_say("prompt of %s: %u rows at %u", told(m), rows, at);
		OK(engine_step(m->session, &item, 1));
	}
	if (rnd_below(4))
		seal(m);
}

/* ---- the daemon's options, and the store ------------------------------------------------------- */

static struct store_server store;
static bool has_store, store_runs;
static char secret[200];

void prefixes_other_secret(void)
{
	secret[strlen(secret) - 1] ^= 'a' ^ 'b';
}

const char *const *prefixes_begin(void)
{
	static const char *const programs[] = {"redis-server", "redis-cli", NULL};
	static const char *const args[] = {"--maxmemory", "300mb", "--maxmemory-policy", "allkeys-lru", NULL};
	static const char *options[] = {secret, NULL, NULL, NULL};
	static char url[200];
	uint8_t bytes[32];

	for (char which = 'a'; which <= 'b'; which++) {
		snprintf(secret, sizeof(secret), "--prefix-secret-file=%s/secret-%c", manager_folder(), which);
		rnd_bytes(bytes, sizeof(bytes));
		fx_write(strchr(secret, '/'), bytes, sizeof(bytes));
		ck_assert_int_eq(chmod(strchr(secret, '/'), 0600), 0);
	}
	has_store = store_runs = store_skip(programs) == 0;
	if (has_store) {
		store_begin(&store, store_port(), args);
		snprintf(url, sizeof(url), "--prefix-store=unix://%s?timeout=1000", store.socket);
		options[1] = url;
		options[2] = "--prefix-store-wait=2";
	}
	return options;
}

/* Changes some byte of some value, most likely. */
static void overwrite_value(void)
{
	const char byte[] = {(char)('a' + rnd_below(26)), 0};
	char *key = store_cli(&store, "--raw", "randomkey", NULL), *bytes, at[16];

	key[strcspn(key, "\n")] = 0;
	bytes = store_cli(&store, "--raw", "strlen", key, NULL);
	if (*key && atoi(bytes) > 0) {
		snprintf(at, sizeof(at), "%u", rnd_below((uint32_t)atoi(bytes)));
		free(store_cli(&store, "setrange", key, at, byte, NULL));
		ADD(OVERWRITTEN, 1);
	}
	free(bytes);
	free(key);
}

void prefixes_disturb_store(void)
{
	if (!has_store)
		return;
	if (!store_runs) {
		store_restart(&store);
		store_runs = true;
	} else if (rnd_below(4) == 0) {
		store_kill(&store);
		store_runs = false;
		ADD(KILLED_STORES, 1);
	} else {
		for (uint32_t i = rnd_below(8); i > 0; i--)
			overwrite_value();
	}
}

void prefixes_end(void)
{
	if (has_store && !store_runs)
		store_restart(&store);
	if (has_store)
		store_end(&store);
	ck_assert_msg(soak->count[COUNT_SEALED] < 50 || soak->count[COUNT_BEGUN] > 0, "prefixes are sealed, and never found");
}

/* ---- status of the daemon ----------------------------------------------------------------------- */

void prefixes_look(const json_t *status)
{
	static json_int_t fetched, restored;
	static pid_t of;
	const json_t *prefixes = json_array_get(json_object_get(status, "prefixes"), 0);

	if (of != manager_daemon())
		fetched = restored = 0;
	of = manager_daemon();
	ADD(FROM_STORE, (uint64_t)(json_integer_value(json_object_get(prefixes, "fetched_tokens")) - fetched));
	ADD(RESTORED, (uint64_t)(json_integer_value(json_object_get(prefixes, "restored_tokens")) - restored));
	fetched = json_integer_value(json_object_get(prefixes, "fetched_tokens"));
	restored = json_integer_value(json_object_get(prefixes, "restored_tokens"));
}

const char *prefixes_off(const json_t *status)
{
	static char why[200];
	json_int_t fetching, sending, asked, hits, asked_tokens, hit_tokens, fetched_tokens;

	ck_assert_int_eq(json_unpack((json_t *)status, "{s:[{s:I, s:I, s:I, s:I, s:I, s:I, s:I}]}", "prefixes", "fetching", &fetching, "sending",
	                             &sending, "asked", &asked, "hits", &hits, "asked_tokens", &asked_tokens, "hit_tokens", &hit_tokens,
	                             "fetched_tokens", &fetched_tokens),
	                 0);
	ck_assert_msg(hits <= asked && hit_tokens < asked_tokens + !asked && hit_tokens >= hits * SKV_BLOCK_TOKENS &&
	                      hit_tokens % SKV_BLOCK_TOKENS == 0 && fetched_tokens % SKV_BLOCK_TOKENS == 0,
	              "%lld of %lld prompts began with a prefix, %lld of %lld tokens, %lld from the store", hits, asked, hit_tokens, asked_tokens,
	              fetched_tokens);
	snprintf(why, sizeof(why), "%lld prompts are being fetched, %lld sent", fetching, sending);
	return fetching || sending ? why : "";
}
