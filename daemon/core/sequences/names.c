/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/sequences/names.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

int skv_names_init(struct skv_names *t, uint32_t max_sequences)
{
	*t = SKV_NAMES_NULL;
	for (t->n_lists = 16; t->n_lists < max_sequences; t->n_lists *= 2)
		;
	t->list = malloc(t->n_lists * sizeof(*t->list));
	t->next = malloc(max_sequences * sizeof(*t->next));
	t->in = malloc(max_sequences * sizeof(*t->in));
	if (!t->list || !t->next || !t->in) {
		skv_names_deinit(t);
		return -ENOMEM;
	}
	memset(t->list, 0xff, t->n_lists * sizeof(*t->list));
	memset(t->in, 0xff, max_sequences * sizeof(*t->in));
	/* the seed is random: users choose names, and must not be able to fill one list on purpose */
	if (getrandom(&t->seed, sizeof(t->seed), GRND_NONBLOCK) != sizeof(t->seed))
		t->seed = (uint64_t)(uintptr_t)t->list;
	return 0;
}

void skv_names_deinit(struct skv_names *t)
{
	free(t->list);
	free(t->next);
	free(t->in);
	*t = SKV_NAMES_NULL;
}

static uint64_t hash_text(uint64_t h, const char *text)
{
	do
		h = (h ^ (uint8_t)*text) * 1099511628211u;
	while (*text++);
	return h ^ h >> 29;
}

static uint32_t list_of(const struct skv_names *t, uint32_t account, const char *model, const char *name)
{
	const uint64_t h = hash_text(hash_text(t->seed + account, model), name);

	return (uint32_t)(h ^ h >> 32) & (t->n_lists - 1);
}

static void leave(struct skv_names *t, uint32_t seq)
{
	uint32_t *at = &t->list[t->in[seq]];

	while (*at != seq)
		at = &t->next[*at];
	*at = t->next[seq];
}

void skv_names_add(struct skv_core *c, uint32_t seq)
{
	const struct skv_seq_row *q = skv_seq_row(&c->state, seq);
	struct skv_names *t = &c->names;

	if (t->in[seq] != SKV_NO_INDEX)
		leave(t, seq);
	t->in[seq] = SKV_NO_INDEX;
	if (!q->name[0])
		return;
	t->in[seq] = list_of(t, q->account, q->model.name, q->name);
	t->next[seq] = t->list[t->in[seq]];
	t->list[t->in[seq]] = seq;
}

static bool is_it(const struct skv_core *c, uint32_t seq, uint32_t account, const char *model, const char *name)
{
	const struct skv_seq_row *q = skv_seq_row(&c->state, seq);

	return skv_state_next(&c->state, SKV_TABLE_SEQUENCES, seq) == seq && q->account == account && q->name[0] &&
	       !strcmp(q->name, name) && !strcmp(q->model.name, model);
}

uint32_t skv_names_next(const struct skv_core *c, uint32_t seq, uint32_t account, const char *model, const char *name)
{
	const struct skv_names *t = &c->names;

	seq = seq == SKV_NO_INDEX ? t->list[list_of(t, account, model, name)] : t->next[seq];
	while (seq != SKV_NO_INDEX && !is_it(c, seq, account, model, name))
		seq = t->next[seq];
	return seq;
}
