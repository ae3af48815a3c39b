/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/parked-chats.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/support/client-test.h"
#include "tests/support/output-hash.h"

struct chat chats[MAX_CHATS];
struct refmodel world[MAX_CHAT_SPECS];
uint32_t chats_first_prompt = 1;

void chats_models(void)
{
	refmodel_model(&world[0].model, "parked", SKV_F32, CHAT_MAX_TOKENS);
	if (world[0].model.device == SKV_DEVICE_HOST)
		world[0].model.head_dim = 32; /* a multiple of 32, so that it can be quantized */
	for (size_t i = 1; i < CHAT_SPECS; i++)
		world[i].model = world[0].model;
}

void chats_open(struct skv_client *client)
{
	for (size_t i = 0; i < CHAT_SPECS; i++)
		OK(skv_open(client, &world[i].model, policy_row(SET_CHATS, (int)i)->spec, &world[i].session));
}

static uint64_t run_step(struct chat *c, struct skv_seq *q, uint32_t from, uint32_t n, bool prompt)
{
	const struct skv_model *m = &c->w->model;
	const size_t size = (size_t)m->n_layers * n * m->n_heads * m->head_dim;
	float *out = malloc(size * sizeof(*out));
	uint64_t hash;

	OK(refmodel_run(c->w, q, c->content + from, n, prompt, out, NULL));
	hash = output_hash(OUTPUT_HASH_NONE, out, size);
	free(out);
	return hash;
}

/* Extends a chat by one decoded token, or by a few tokens of a prompt. Returns how many. */
static uint32_t next_step(struct chat *c)
{
	const uint32_t n = c->len == 0 ? chats_first_prompt + rnd_below(60) : rnd_below(6) == 0 ? 1 + rnd_below(20) : 1;

	ck_assert_uint_lt(c->steps, CHAT_MAX_STEPS);
	for (uint32_t i = 0; i < n; i++)
		c->content[c->len + i] = refmodel_content((uint64_t)(c - chats) + 17, c->len + i);
	c->at[c->steps] = c->len;
	c->len += n;
	c->at[++c->steps] = c->len;
	return n;
}

/* Repeats the steps in a sequence that is never parked, and stores their hashes. */
static void replay(struct chat *c)
{
	struct skv_seq *calm;

	OK(skv_seq_new(c->w->session, NULL, 0, &calm));
	for (uint32_t i = 0; i < c->steps; i++)
		c->hash[i] = run_step(c, calm, c->at[i], c->at[i + 1] - c->at[i], c->at[i + 1] - c->at[i] > 1);
	OK(skv_seq_drop(calm));
}

void chat_talk(struct chat *c, unsigned steps)
{
	struct skv_seq *q;

	if (c->len == 0)
		OK(skv_seq_new(c->w->session, c->name, 0, &q));
	else
		OK(skv_seq_attach(c->w->session, c->name, &q));
	ck_assert_uint_eq(skv_seq_len(q), c->len);
	while (steps--) {
		const uint32_t n = next_step(c);

		c->hash[c->steps - 1] = run_step(c, q, c->len - n, n, n > 1);
	}
	OK(skv_seq_detach(q));
}

void chats_make(unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		snprintf(chats[i].name, sizeof(chats[i].name), "chat-%u", i);
		chats[i].w = &world[i % CHAT_SPECS];
		chat_talk(&chats[i], 1 + rnd_below(4));
	}
}

void chat_check(struct chat *c)
{
	uint64_t hash[CHAT_MAX_STEPS];

	memcpy(hash, c->hash, sizeof(hash));
	replay(c);
	for (uint32_t i = 0; i < c->steps; i++)
		ck_assert_msg(hash[i] == c->hash[i], "%s under %s: other outputs in step %u, at %u", c->name,
		              policy_row(SET_CHATS, (int)(c->w - world))->spec, i, c->at[i]);
}
