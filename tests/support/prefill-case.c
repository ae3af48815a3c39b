/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/prefill-case.h"
#include <check.h>
#include <stdlib.h>
#include <string.h>

void prompts_make(struct kernel_case *c, int shape, uint32_t most)
{
	const uint32_t len[] = {1 + rnd_below(70), most / 2 + rnd_below(most / 2), most - rnd_below(40), most};
	const uint32_t n_q[] = {1 + rnd_below(len[0]), len[1], len[2] - 1 - rnd_below(most / 4),
	                        len[3] - 64 * rnd_below(most / 128)};

	case_of_shape(c, shape, 4, len, n_q);
	if (rnd_below(2))
		case_punch(c, 5);
}

void prompts_init(struct kernel_case *c, const struct skv_sparse *sp)
{
	c->sh.io_dtype = SKV_F32; /* the largest dtype: sets of any other dtype fit */
	case_keep(c, 2 * skv_saved_pages(&c->sh, sp));
	for (uint32_t i = 0; i < c->n; i++) {
		c->seq[i].prompt_start = c->seq[i].len - c->seq[i].n_q;
		c->seq[i].dense_from = UINT32_MAX;
	}
}

struct ref_rows prompts_ref(const struct kernel_case *c, uint32_t i, const float *q)
{
	const struct skv_kseq *s = &c->seq[i];
	bool *there = malloc(s->len);

	for (uint32_t t = 0; t < s->len; t++)
		there[t] = case_resident(c, i, t);
	return (struct ref_rows){.n_heads = c->sh.n_heads, .n_kv_heads = c->sh.n_kv_heads, .dim = c->sh.head_dim,
	                         .softcap = (double)c->sh.softcap, .sinks = c->sinks,
	                         .scale = c->sh.scale, .from = s->len - s->n_q, .to = s->len,
	                         .q = q + (size_t)s->row * c->sh.n_heads * c->sh.head_dim, .k = c->k[i], .v = c->v[i],
	                         .there = there};
}

/* ---- calls ----------------------------------------------------------------------------------- */

void calls_begin(struct calls *a, const struct kernel_case *c, uint32_t step)
{
	*a = (struct calls){.step = step, .held = c->n_held};
	case_from(c, a->all, c->batch.seq, c->n * sizeof *a->all);
}

/* Returns how many of the `rest` remaining rows the next call brings. */
static uint32_t take(const struct calls *a, uint32_t rest)
{
	uint32_t n = a->step;

	if (a->step == STEP_RANDOM)
		n = rnd_below(4) ? rnd_below(90) : 0;
	return a->step == STEP_WHOLE || n > rest ? rest : n;
}

bool calls_next(struct calls *a, struct kernel_case *c)
{
	uint32_t rest = 0;

	c->on->wait();
	while (c->n_held > a->held)
		c->on->put(c->held[--c->n_held]);
	for (uint32_t i = 0; i < c->n; i++)
		rest += a->all[i].n_q - a->done[i];
	if (rest == 0)
		return false;
	a->batch = (struct skv_batch){.max_len = c->max_len};
	while (a->batch.n == 0)
		for (uint32_t i = 0; i < c->n; i++) {
			struct skv_kseq *s = &a->seq[a->batch.n];
			const uint32_t left = a->all[i].n_q - a->done[i], n = take(a, left);
			if (n == 0)
				continue;
			*s = a->all[i];
			s->n_q = n;
			s->row += a->done[i];
			s->len -= left - n;
			s->prompt_continues = left - n;
			s->set = a->set[i] ^= 1;
			a->done[i] += n;
			a->of[a->batch.n++] = i;
			a->batch.max_q = n > a->batch.max_q ? n : a->batch.max_q;
		}
	a->batch.max_q += rnd_below(3);
	a->batch.seq = case_to(c, a->seq, a->batch.n * sizeof *a->seq);
	return true;
}

struct skv_workspace calls_work(const struct calls *a, const struct kernel_case *c, const struct skv_sparse *sp,
                                int threads)
{
	const struct skv_batch bounds = {.n = a->batch.n, .max_len = a->batch.max_len, .max_q = a->batch.max_q};

	return case_work_of(c, c->on->kern->prefill_sparse_bytes(&c->sh, &bounds, sp, threads), threads);
}

/* ---- lists ----------------------------------------------------------------------------------- */

size_t tiles_number(const struct calls *a, const struct skv_tile_lists *t)
{
	return (size_t)a->batch.n * t->tiles * t->rows;
}

struct skv_tile_lists tiles_for(const struct calls *a, struct kernel_case *c, uint32_t tile, uint32_t rows,
                                uint32_t unit)
{
	struct skv_tile_lists t = {.rows = rows, .unit = unit, .tiles = skv_max_tiles(a->batch.max_q, tile) + rnd_below(2),
	                      .stride = c->max_len / unit + 1 + rnd_below(3)};

	t.ids = case_to(c, NULL, tiles_number(a, &t) * t.stride * sizeof *t.ids);
	t.count = case_to(c, NULL, tiles_number(a, &t) * sizeof *t.count);
	return t;
}

struct skv_tile_lists tiles_to(struct kernel_case *c, const struct calls *a, const struct skv_tile_lists *from)
{
	struct skv_tile_lists t = *from;

	t.ids = case_to(c, from->ids, tiles_number(a, &t) * t.stride * sizeof *t.ids);
	t.count = case_to(c, from->count, tiles_number(a, &t) * sizeof *t.count);
	return t;
}

struct skv_tile_lists tiles_from(const struct kernel_case *c, const struct calls *a, const struct skv_tile_lists *from)
{
	struct skv_tile_lists t = *from;
	const size_t n = tiles_number(a, &t);

	t.ids = malloc(n * t.stride * sizeof *t.ids);
	t.count = malloc(n * sizeof *t.count);
	case_from(c, t.ids, from->ids, n * t.stride * sizeof *t.ids);
	case_from(c, t.count, from->count, n * sizeof *t.count);
	return t;
}

void tiles_free(struct skv_tile_lists *t)
{
	free(t->ids);
	free(t->count);
}
