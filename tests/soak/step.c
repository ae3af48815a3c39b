/* SPDX-License-Identifier: Apache-2.0 */
/* tests/soak/step.c - steps of engines, and of comparers, which repeat them. */
#include "tests/soak/soak.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/device-helper.h"
#include "tests/support/output-hash.h"
#include "tests/support/reference-attention.h"

#define ITEMS 4u

/* Attends in all layers of an open step: the hash of each item's outputs. */
static void attend(struct skv_session *s, const struct soak_item *items, uint32_t n, uint32_t rows, uint64_t *hash)
{
	const size_t width = (size_t)soak_model.n_heads * soak_model.head_dim;
	struct devmem_rows r = devmem_rows_new(&soak_model, rows);

	for (uint32_t i = 0; i < n; i++)
		hash[i] = OUTPUT_HASH_NONE;
	for (uint32_t layer = 0; layer < soak_model.n_layers; layer++) {
		uint32_t at = 0;

		for (uint32_t i = 0; i < n; i++)
			for (uint32_t k = 0; k < items[i].event.rows; k++)
				refmodel_fill(&soak_model, &r, at++, life_content(items[i].event.key,
				                                                  items[i].event.before + k), layer);
		OK(devmem_attend(s, layer, &r, false));
		at = 0;
		for (uint32_t i = 0; i < n; at += items[i++].event.rows)
			hash[i] = output_hash(hash[i], r.out + at * width, items[i].event.rows * width);
	}
	devmem_rows_free(&r);
}

static int begin(struct skv_session *s, const struct soak_item *items, uint32_t n, uint32_t rows)
{
	struct skv_step_item step[ITEMS];
	int32_t *ids = calloc(rows, sizeof(*ids)), *at = ids;
	int e;

	for (uint32_t i = 0; i < n; i++) {
		const struct event *v = &items[i].event;

		step[i] = SKV_STEP_ITEM(.seq = items[i].seq, .n_tokens = v->rows, .tokens = at,
		                        .n_prompt_remaining = v->remaining,
		                        .flags = v->what == SOAK_PROMPT ? SKV_STEP_PROMPT : 0);
		for (uint32_t k = 0; k < v->rows; k++)
			*at++ = refmodel_token(life_content(v->key, v->before + k));
	}
	e = skv_step_begin(s, step, n, NULL);
	free(ids);
	return e;
}

static void end(struct skv_session *s, const struct soak_item *items, uint32_t n)
{
	uint32_t accepted[ITEMS];
	int32_t next[ITEMS];

	for (uint32_t i = 0; i < n; i++) {
		accepted[i] = items[i].event.accepted;
		next[i] = items[i].event.next;
	}
	OK(skv_step_end(s, next, accepted));
}

static uint32_t all_rows(const struct soak_item *items, uint32_t n)
{
	uint32_t rows = 0;

	for (uint32_t i = 0; i < n; i++)
		rows += items[i].event.rows;
	return rows;
}

uint8_t spec_of(const struct skv_seq *q)
{
	const char *canonical = skv_seq_policy_spec(q);

	for (uint8_t i = 0; i < soak->n_specs; i++)
		if (strcmp(soak->spec[i], canonical) == 0)
			return i;
	ck_abort_msg("runs %s, which nobody asked for", canonical);
	return 0;
}

int soak_step(struct skv_session *s, struct soak_item *items, uint32_t n)
{
	const uint32_t rows = all_rows(items, n);
	struct event *event[ITEMS];
	uint64_t hash[ITEMS], resident, total;
	int e;

	for (uint32_t i = 0; i < n; i++) {
		items[i].event.stage = SOAK_BEGINNING;
		items[i].event.spec = spec_of(items[i].seq);
		event[i] = life_add(items[i].life, items[i].event);
		memcpy(&items[i].event, event[i], sizeof(items[i].event));
	}
	e = begin(s, items, n, rows);
	for (uint32_t i = 0; i < n; i++) {
		event[i]->spec = spec_of(items[i].seq);
		event[i]->stage = e < 0 ? SOAK_UNSURE : SOAK_BEGUN;
	}
	if (e < 0)
		return e;
	attend(s, items, n, rows, hash);
	for (uint32_t i = 0; i < n; i++) {
		event[i]->hash = hash[i];
		event[i]->stage = SOAK_ENDING;
	}
	end(s, items, n);
	for (uint32_t i = 0; i < n; i++) {
		event[i]->stage = SOAK_DONE;
		skv_seq_pages(items[i].seq, &resident, &total);
		event[i]->pages = (uint16_t)resident;
		ck_assert_uint_eq(skv_seq_len(items[i].seq), event[i]->after);
		ADD(TOKENS, event[i]->accepted);
	}
	ADD(STEPS, 1);
	return 0;
}

int soak_step_again(struct skv_session *s, struct skv_seq *q, const struct event *v, uint32_t len, bool commits,
                    uint64_t *ret)
{
	struct soak_item item = {.seq = q};
	int e;

	memcpy(&item.event, v, sizeof(item.event));
	item.event.before = (uint16_t)len;
	e = begin(s, &item, 1, v->rows);
	if (e < 0)
		return e;
	if (!commits) {
		skv_step_abort(s);
		return 0;
	}
	attend(s, &item, 1, v->rows, ret);
	end(s, &item, 1);
	return 0;
}
