/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/core-prefix.h"

#include <check.h>
#include <string.h>

struct skv_model text_model;
struct peer text_a, text_b;
const uint8_t text_origin[SKV_PREFIX_ORIGIN] = {1, 2, 3};

void text_begin(uint32_t sequences)
{
	struct skv_core_config k = books_config();

	k.pool_bytes = 64 << 20;
	k.account_bytes = 64 << 20;
	k.account_sequences = sequences;
	k.max_sequences = 128;
	books_open(&k);
	text_model = test_model("m", TEXT_LAYERS, 16);
	text_model.max_tokens = 8192;
	peer_join(&text_a, 1000, &text_model);
	peer_join(&text_b, 1000, &text_model);
}

void text_end(void)
{
	peer_die(&text_a);
	peer_die(&text_b);
	skv_core_drop_all(core);
	ck_assert_uint_eq(n_corrupt, 0);
	books_close();
}

/* Keys of a text: one block for each letter; blocks are equal up to the first letter that differs. */
uint32_t text_keys(const char *text, struct skv_block_key *ret)
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

/* A sequence of the peer with that text, and 40 more tokens. */
void text_write(struct held *h, struct peer *p, const char *name, const char *text)
{
	const uint32_t n = (uint32_t)strlen(text) * SKV_BLOCK_TOKENS;

	held_new(h, p, name, 4096);
	held_append(h, p, n + 40);
	for (uint32_t i = 0; i < n; i++)
		skv_seqmem_tokens(h->mem, &h->layout)[i] = text[i / SKV_BLOCK_TOKENS] * 1000 + (int32_t)(i % SKV_BLOCK_TOKENS);
	h->mem->about[skv_commit_epoch(h->mem->commit) & 1] = n + 40;
}

int text_seal(struct held *h, struct peer *p, const char *text)
{
	struct skv_block_key keys[32];
	struct skv_made made;
	int r = skv_core_prefix_made(core, p->client, p->session.session, h->seq, &made);

	return r ? r : in_turns(skv_core_prefix_seal(core, p->client, p->session.session, h->seq, text_origin, &made, keys, text_keys(text, keys)), NULL);
}

uint32_t text_find(struct peer *p, const char *text)
{
	struct skv_block_key keys[32];
	uint32_t n;

	ck_assert_int_eq(skv_core_prefix_find(core, p->client, p->session.session, keys, text_keys(text, keys), &n), 0);
	return n;
}

/* Returns how many blocks of the text the new sequence has. */
uint32_t text_open(struct held *h, struct peer *p, const char *name, uint32_t max_tokens, const char *text)
{
	struct skv_core_seq_info info;
	struct skv_block_key keys[32];
	uint32_t blocks, n = text_keys(text, keys);
	int r = skv_core_prefix_open(core, p->client, p->session.session, name, max_tokens, keys, n, &info, &blocks);

	ck_assert_int_eq(in_turns(r, &info), 0);
	held_open(h, p, &info);
	ck_assert_uint_eq(held_len(h), blocks * SKV_BLOCK_TOKENS);
	for (uint32_t i = 0; i < blocks * SKV_BLOCK_TOKENS; i++)
		ck_assert_int_eq(skv_seqmem_tokens(h->mem, &h->layout)[i], text[i / SKV_BLOCK_TOKENS] * 1000 + (int32_t)(i % SKV_BLOCK_TOKENS));
	ck_assert_int_eq(skv_seqmem_tokens(h->mem, &h->layout)[blocks * SKV_BLOCK_TOKENS], -1);
	return blocks;
}
