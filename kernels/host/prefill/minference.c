/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/prefill/minference.c - MInference's lists of tiles: verticals and slashes of a segment, by the weights of its first rows.
 *
 * An item is (sequence, segment, q head). Weights are added up over a token and over a distance, in the order of the rows;
 * those of distances lie from the farthest to the nearest, so that a row's next token is the next number in both.
 */
#include "kernels/host/prefill/tiles.h"
#include "kernels/host/prefill/weights.h"

static_assert(BLOCK == SKV_MINFERENCE_ROWS && SKV_MINFERENCE_ROWS <= M_MAX, "a segment's first rows are an item, blocks are listed");

struct lines {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_sparse *sp;
	const struct skv_tiles *units, *more;
	const float *q;
	uint32_t vertical, slash;
	uint32_t *first; /* [seq + 1]: segments before sequence i's */
	uint8_t *scratch;
	size_t scratch_stride;
};

/* A thread's own. */
struct room {
	struct weigh w;
	float *token;    /* [max_len + BLOCK]: sums over tokens */
	float *distance; /* [max_len + 2 BLOCK]: over distances, the farthest first */
	float *score;    /* [max_len] */
	uint32_t *ids, *scratch; /* [max_len] */
	uint8_t *back;   /* [max_len / BLOCK + 2]: is the block so far before a tile's listed? */
};

static size_t room_carve(struct carve *c, uint32_t dim, uint32_t max_len, struct room *r)
{
	const size_t bytes = (max_len + 2 * BLOCK) * sizeof(float);

	if (c) {
		r->token = carve(c, bytes);
		r->distance = carve(c, bytes);
		r->score = carve(c, bytes);
		r->ids = carve(c, bytes);
		r->scratch = carve(c, bytes);
		r->back = carve(c, max_len / BLOCK + 2);
	}
	return 5 * carve_size(bytes) + carve_size(max_len / BLOCK + 2) + weigh_carve(c, dim, &r->w);
}

/* Sums of the weights of rows [begin, begin + BLOCK); distance d is number begin + BLOCK - 1 - d of its own. */
static void add_up(const struct lines *l, struct room *r, uint32_t begin, uint32_t head)
{
	const struct weigh *w = &r->w;

	for (uint32_t m = 0; m < BLOCK; m++)
		weigh_row(&r->w, query_of(l->sh, w->s, l->sp, l->q, begin + m, m, head), begin + m + 1);
	weigh_sums(w);
	memset(r->token, 0, (begin + 2 * BLOCK) * sizeof *r->token);
	memset(r->distance, 0, (begin + 3 * BLOCK) * sizeof *r->distance);
	for (uint32_t t0 = 0; t0 < begin + BLOCK; t0 += BLOCK) {
		const uint32_t resident = widen_block(w->sh, w->s, w->h, t0, w->k, NULL);
		for (uint32_t m0 = 0; resident && m0 < BLOCK; m0 += STRIP) {
			if (!weigh_strip(w, m0, t0, resident))
				continue;
			for (uint32_t m = m0; m < m0 + STRIP; m++) {
				float *token = r->token + t0, *distance = r->distance + t0 + BLOCK - 1 - m;
				for (uint32_t t = 0; t < BLOCK; t += VL) {
					const vf x = v_loadf(w->w + (m - m0) * BLOCK + t);
					v_storef(token + t, v_loadf(token + t) + x);
					v_storef(distance + t, v_loadf(distance + t) + x);
				}
			}
		}
	}
}

/* The best k of n, the first ones among them, ascending into r->ids; of r->score. */
static uint32_t best_of(struct room *r, uint32_t n, uint32_t k)
{
	for (uint32_t x = 0; x < SKV_MINFERENCE_FORCED; x++)
		r->score[x] = INFINITY;
	return ISA(topk)(r->score, n, k, r->ids, r->scratch);
}

/* Mark how far before a tile's own block those are that a chosen distance leads to from some position of the tile. */
static void mark_blocks(const struct lines *l, struct room *r, uint32_t n)
{
	memset(r->back, 0, n / BLOCK + 2);
	for (uint32_t d = 0; d < n; d++)
		r->score[d] = r->distance[n - 1 - d];
	const uint32_t chosen = best_of(r, n, l->slash);
	for (uint32_t x = 0; x < chosen; x++)
		r->back[r->ids[x] / BLOCK] = r->back[(r->ids[x] + BLOCK - 1) / BLOCK] = 1;
}

/* The two lists of the tile that begins at x, of n candidates and the chosen tokens in r->ids. */
static void list_tile(const struct lines *l, const struct room *r, uint32_t x, uint32_t n, uint32_t chosen, size_t list,
                      size_t list_more)
{
	uint32_t *units = l->units->ids + list * l->units->stride, *more = l->more->ids + list_more * l->more->stride;
	uint32_t n_units = 0, n_more = 0;

	for (uint32_t back = skv_min(x / BLOCK, n / BLOCK + 1); back > 0; back--)
		if (r->back[back])
			units[n_units++] = x / BLOCK - back;
	for (uint32_t i = 0; i < chosen && r->ids[i] < x; i++) {
		const uint32_t back = x / BLOCK - r->ids[i] / BLOCK;
		if (back > n / BLOCK + 1 || !r->back[back])
			more[n_more++] = r->ids[i];
	}
	l->units->count[list] = n_units;
	l->more->count[list_more] = n_more;
}

static void lines_item(void *ctx, uint32_t item, int thread)
{
	const struct lines *l = ctx;
	const uint32_t head = item % l->sh->n_heads, number = item / l->sh->n_heads, segment = l->sp->segment;
	const uint32_t i = skv_owner(l->first, l->batch->n, number);
	const struct skv_kseq *s = &l->batch->seq[i];
	const uint32_t from = (call_start(s) / segment + number - l->first[i]) * segment, start = skv_max(from, call_start(s));
	const uint32_t end = skv_min(from + segment, s->len), begin = skv_begin(s, start, segment), n = begin + BLOCK;
	const bool known = n <= s->len; /* all rows that choose have come */
	uint8_t *scratch = l->scratch + thread * l->scratch_stride;
	struct carve c = {scratch, scratch + l->scratch_stride};
	struct room r;
	uint32_t chosen = 0;

	room_carve(&c, l->sh->head_dim, l->batch->max_len, &r);
	r.w.sh = l->sh;
	r.w.s = s;
	r.w.h = head / (l->sh->n_heads / l->sh->n_kv_heads);
	r.w.m = 0;
	if (known) {
		add_up(l, &r, begin, head);
		mark_blocks(l, &r, n);
		memcpy(r.score, r.token, n * sizeof *r.score);
		chosen = best_of(&r, n, l->vertical);
	}
	for (uint32_t x = start / BLOCK * BLOCK; x < end; x += BLOCK) {
		const uint32_t j = x / BLOCK - call_start(s) / BLOCK;
		const size_t list = list_of(l->units, i, j, head), list_more = list_of(l->more, i, j, head);
		l->units->count[list] = l->more->count[list_more] = 0;
		if (known && x >= begin)
			list_tile(l, &r, x, n, chosen, list, list_more);
	}
}

size_t ISA(lines_bytes)(const struct skv_shape *sh, const struct skv_batch *bounds, int threads)
{
	struct room r;

	return carve_size((bounds->n + 1) * sizeof(uint32_t)) +
	       (size_t)threads * room_carve(NULL, sh->head_dim, bounds->max_len, &r);
}

void ISA(tile_lines)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q, const struct skv_sparse *sp,
                     uint32_t vertical, uint32_t slash, const struct skv_tiles *units, const struct skv_tiles *more,
                     const struct skv_work *work)
{
	struct lines l = {.sh = sh, .batch = batch, .sp = sp, .units = units, .more = more, .q = q, .vertical = vertical,
	                  .slash = slash};
	struct carve c = carve_begin(work);
	struct room r;

	l.first = carve(&c, (batch->n + 1) * sizeof *l.first);
	l.scratch_stride = room_carve(NULL, sh->head_dim, batch->max_len, &r);
	l.scratch = carve(&c, (size_t)work->threads * l.scratch_stride);
	l.first[0] = 0;
	for (uint32_t i = 0; i < batch->n; i++)
		l.first[i + 1] = l.first[i] + tiles_of(&batch->seq[i], sp->segment);
	skv_run(work->threads, l.first[batch->n] * sh->n_heads, lines_item, &l);
}
