/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tests/oracle/case.c - see case.h.
 *
 * Equal scores are made from equal rows, or from pages that are equal row by row: then they are equal in every
 * arithmetic. Sums of the same numbers in another order do not occur, because patterns have no row in common.
 */
#include "tests/oracle/case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/oracle.h"
#include "tests/ref/attention.h"

#define MEMORY (12u << 20) /* bytes of the pool that all sequences together may take */
#define LEAST_ROOM 512u    /* tokens, for models that are too large for MEMORY */
#define PATTERNS 3u
#define ROWS 4u
#define NEEDLE_EVERY 37u

/* ---- numbers ---------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

uint32_t oracle_case_below(struct oracle_case *b, uint32_t n)
{
	b->random += 0x9e3779b97f4a7c15u;
	return (uint32_t)(mix(b->random) % n);
}

/* Adds a row of `dim` numbers in [-size, size), determined by `id`. */
static void add_row(float *to, uint32_t dim, uint64_t id, float size)
{
	for (uint32_t d = 0; d < dim; d++)
		to[d] += size * ((float)(mix(id + d * 0x9e3779b97f4a7c15u) >> 40) / (float)(1 << 23) - 1.0f);
}

/* Ids of rows: of one sequence's layer, head and kind. */
enum row { ROW_K, ROW_V, ROW_Q, ROW_NEEDLE };
static uint64_t row_id(const struct oracle_case_seq *s, uint32_t layer, uint32_t head, enum row row, uint64_t index)
{
	return mix(mix(s->key + layer) + ((uint64_t)head << 40 | (uint64_t)row << 32 | index));
}

/* ---- shapes and sequences --------------------------------------------------------------------- */

/* A random RoPE. The keys' contents do not depend on it, but policies that undo it do. */
static struct skv_rope some_rope(struct oracle_case *b, bool on_host)
{
	const uint32_t dims = on_host ? 8 : 16; /* a device's kernels rotate 16 elements at a time */


	return (struct skv_rope){
	        .type = SKV_ROPE_NONE + oracle_case_below(b, SKV_ROPE_YARN),
	/* heads have at least 16 elements, on a device 64 */
	        .dims = oracle_case_below(b, 3) ? 0 : dims * (1 + oracle_case_below(b, 2)),
	        .interleaved = oracle_case_below(b, 2),
	        .theta = oracle_case_below(b, 2) ? 1e4 : 5e5,
	        .factor = 1 + oracle_case_below(b, 8),
	        .low = 1,
	        .high = 4 + oracle_case_below(b, 28),
	        .original = 256u << oracle_case_below(b, 6),
	};
}

void oracle_case_init(struct oracle_case *b, uint64_t seed, uint32_t device)
{
	static const uint32_t kv_heads[] = {1, 1, 2, 2, 3, 4};
	struct skv_model *m = &b->model;

	*b = (struct oracle_case){.random = seed, .model = SKV_MODEL_INIT};
	m->n_layers = 1 + oracle_case_below(b, 6);
	m->n_kv_heads = kv_heads[oracle_case_below(b, 6)];
	m->n_heads = m->n_kv_heads * (1 + oracle_case_below(b, 4));
	m->head_dim = device == SKV_DEVICE_HOST ? 16 * (1 + oracle_case_below(b, 4)) : 32 * (2 + oracle_case_below(b, 3));
	m->kv_dtype = device == SKV_DEVICE_HOST ? oracle_case_below(b, 4) : 1 + oracle_case_below(b, 3);
	m->device = device;
	m->rope = some_rope(b, device == SKV_DEVICE_HOST);
}

static float **rows_new(uint32_t n_layers, size_t n)
{
	float **rows = calloc(n_layers, sizeof(*rows));

	for (uint32_t layer = 0; layer < n_layers; layer++)
		rows[layer] = calloc(n, sizeof(**rows));
	return rows;
}

/*
 * A random length, often a special one: empty, a few tokens, full pages, one token less than full pages or 16 pages,
 * the longest.
 */
static uint32_t some_length(struct oracle_case *b, uint32_t longest)
{
	uint32_t n = 1 + oracle_case_below(b, longest), unit;

	switch (oracle_case_below(b, 8)) {
	case 0:
		return oracle_case_below(b, 3);
	case 1:
		return n < 40 ? n : 1 + n % 40;
	case 2:
		return n / SKV_PAGE_TOKENS * SKV_PAGE_TOKENS;
	case 3:
		unit = oracle_case_below(b, 2) ? SKV_PAGE_TOKENS : SKV_PAGE_TOKENS * SKV_PAGE_TOKENS;
		return n / unit * unit + unit - 1;
	case 4:
		return longest;
	default:
		return n;
	}
}

void oracle_case_make_seqs(struct oracle_case *b, uint32_t longest)
{
	const struct skv_model *m = &b->model;
	size_t width = (size_t)m->n_kv_heads * m->head_dim;
	uint32_t room = (uint32_t)(MEMORY / (m->n_layers * 2 * width * skv_dtype_bytes(m->kv_dtype)));

	room = room > LEAST_ROOM ? room : LEAST_ROOM;
	longest = longest < room ? longest : room;
	b->n_seqs = room / longest < BED_MAX_SEQS ? room / longest : BED_MAX_SEQS;
	b->n_seqs = 1 + oracle_case_below(b, b->n_seqs);
	for (uint32_t i = 0; i < b->n_seqs; i++) {
		struct oracle_case_seq *s = &b->seq[i];

		s->kind = oracle_case_below(b, BED_KINDS);
		s->key = mix(b->random + i);
		s->n = some_length(b, longest);
		s->prompt = s->n;
		s->cap = s->n + 2 * b->reserve;
		snprintf(s->name, sizeof(s->name), "verify-%u", i);
		s->k = rows_new(m->n_layers, s->cap * width);
		s->v = rows_new(m->n_layers, s->cap * width);
		s->q = rows_new(m->n_layers, (size_t)s->cap * m->n_heads * m->head_dim);
		s->hole = calloc(m->n_layers, sizeof(*s->hole));
		for (uint32_t layer = 0; layer < m->n_layers; layer++)
			s->hole[layer] = calloc(skv_pages_of(s->cap) + 1u, sizeof(**s->hole));
		s->compress = calloc(m->n_layers, sizeof(*s->compress));
		s->times_compressed = calloc(m->n_layers, sizeof(*s->times_compressed));
		for (uint32_t layer = 0; layer < m->n_layers; layer++)
			s->times_compressed[layer] = calloc(s->cap, sizeof(**s->times_compressed));
		for (uint32_t t = 0; t < s->n; t++)
			oracle_case_token(b, s, t);
	}
}

void oracle_case_deinit(struct oracle_case *b)
{
	for (uint32_t i = 0; i < b->n_seqs; i++) {
		struct oracle_case_seq *s = &b->seq[i];

		for (uint32_t layer = 0; layer < b->model.n_layers; layer++) {
			free(s->k[layer]);
			free(s->v[layer]);
			free(s->q[layer]);
			free(s->hole[layer]);
			free(s->times_compressed[layer]);
		}
		free(s->k);
		free(s->v);
		free(s->q);
		free(s->hole);
		free(s->compress);
		free(s->times_compressed);
		oracle_kept_free(s->kept);
	}
	b->n_seqs = 0;
}

/* ---- rows -------------------------------------------------------------------------------------- */

static void round_row(const struct oracle_case *b, float *row)
{
	ref_round_row(b->model.kv_dtype, row, b->model.head_dim);
}

static void make_key(const struct oracle_case *b, const struct oracle_case_seq *s, uint32_t layer, uint32_t head,
                     uint32_t at, float *k)
{
	uint32_t dim = b->model.head_dim, page = at / SKV_PAGE_TOKENS;
	uint64_t pattern = mix(s->key ^ page * 77u) % PATTERNS;

	switch (s->kind) {
	case BED_SAME:
		add_row(k, dim, row_id(s, layer, head, ROW_K, 0), 1);
		break;
	case BED_ROWS:
		add_row(k, dim, row_id(s, layer, head, ROW_K, mix(s->key ^ at * 55u) % ROWS), 1);
		break;
	case BED_PATTERNS:
		add_row(k, dim, row_id(s, layer, head, ROW_K, pattern * SKV_PAGE_TOKENS + at % SKV_PAGE_TOKENS), 1);
		break;
	case BED_NEEDLES:
		if (mix(s->key ^ at) % NEEDLE_EVERY == 0)
			add_row(k, dim, row_id(s, layer, head, ROW_NEEDLE, 0), 2);
		add_row(k, dim, row_id(s, layer, head, ROW_K, at), 0.25f);
		break;
	default:
		add_row(k, dim, row_id(s, layer, head, ROW_K, at), s->kind == BED_SHARP ? 4 : 1);
	}
	round_row(b, k);
}

static void make_queries(struct oracle_case *b, struct oracle_case_seq *s, uint32_t at)
{
	const struct skv_model *m = &b->model;
	uint32_t group = m->n_heads / m->n_kv_heads;

	for (uint32_t layer = 0; layer < m->n_layers; layer++)
		for (uint32_t head = 0; head < m->n_heads; head++) {
			float *q = s->q[layer] + ((size_t)at * m->n_heads + head) * m->head_dim;

			if (s->kind == BED_ZERO)
				continue;
			if (s->kind == BED_NEEDLES)
				add_row(q, m->head_dim, row_id(s, layer, head / group, ROW_NEEDLE, 0), 1);
			add_row(q, m->head_dim, row_id(s, layer, head, ROW_Q, at), s->kind == BED_SHARP ? 2 : 1);
			round_row(b, q);
		}
}

void oracle_case_token(struct oracle_case *b, struct oracle_case_seq *s, uint32_t at)
{
	const struct skv_model *m = &b->model;

	for (uint32_t layer = 0; layer < m->n_layers; layer++)
		for (uint32_t head = 0; head < m->n_kv_heads; head++) {
			size_t o = ((size_t)at * m->n_kv_heads + head) * m->head_dim;

			make_key(b, s, layer, head, at, s->k[layer] + o);
			add_row(s->v[layer] + o, m->head_dim, row_id(s, layer, head, ROW_V, at), 1);
			round_row(b, s->v[layer] + o);
		}
	make_queries(b, s, at);
}
