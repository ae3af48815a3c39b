/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/prefill/minference.c - makes MInference's lists of tiles: chooses verticals (tokens) and slashes
 * (distances between a row and a token) of a segment by the softmax weights of the segment's first rows.
 *
 * A work item is (sequence, segment, q head). Weights are summed for each token and for each distance, in the order of
 * the rows. The sums of distances are stored from the farthest distance to the nearest, so that the next token of a row
 * is the next element in both arrays of sums.
 */
#include "kernels/host/prefill/prefill.h"
#include "kernels/host/prefill/tiles.h"
#include "kernels/host/prefill/weights.h"

static_assert(BLOCK == SKV_MINFERENCE_ROWS && SKV_MINFERENCE_ROWS <= M_MAX,
              "a segment's first rows are an item, blocks are listed");

struct minference_params {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_sparse *sp;
	const struct skv_tile_lists *blocks, *tokens;
	const float *q;
	uint32_t vertical, slash;
	uint32_t *first; /* [seq + 1]: number of segments before those of sequence i */
	struct per_thread space;
};

/* The buffers of one thread. */
struct buffers {
	struct weigh w;
	float *token;    /* [max_len + BLOCK]: sums of the weights on each token */
	float *distance; /* [max_len + 2 BLOCK]: sums of the weights at each distance, the farthest distance first */
	float *score;    /* [max_len]: scores by which tokens or distances are chosen */
	uint32_t *ids, *workspace; /* [max_len]: chosen tokens or distances; workspace of topk() */
	uint8_t *back;   /* [max_len / BLOCK + 2]: is the block so many blocks before a tile's own block listed? */
};

static size_t buffers_carve(struct carve *c, uint32_t dim, uint32_t max_len, struct buffers *r)
{
	const size_t bytes = (max_len + 2 * BLOCK) * sizeof(float);

	if (c) {
		r->token = carve(c, bytes);
		r->distance = carve(c, bytes);
		r->score = carve(c, bytes);
		r->ids = carve(c, bytes);
		r->workspace = carve(c, bytes);
		r->back = carve(c, max_len / BLOCK + 2);
	}
	return 5 * carve_size(bytes) + carve_size(max_len / BLOCK + 2) + weigh_carve(c, dim, &r->w);
}

/*
 * Sums the weights of rows [begin, begin + BLOCK) by token and by distance. Element begin + BLOCK - 1 - d of
 * r->distance is the sum of distance d.
 */
static void add_up(const struct minference_params *l, struct buffers *r, uint32_t begin, uint32_t head)
{
	const struct weigh *w = &r->w;

	for (uint32_t m = 0; m < BLOCK; m++)
		weigh_row(&r->w, query_of(l->sh, w->s, l->sp, l->q, begin + m, m, head), head, begin + m + 1);
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

/*
 * Lists the best k of n by r->score in r->ids, ascending. The first SKV_MINFERENCE_FORCED are always among them.
 * Returns the number of ids.
 */
static uint32_t best_of(struct buffers *r, uint32_t n, uint32_t k)
{
	for (uint32_t x = 0; x < SKV_MINFERENCE_FORCED; x++)
		r->score[x] = INFINITY;
	return ISA(topk)(r->score, n, k, r->ids, r->workspace);
}

/*
 * Selects distances and marks the blocks that a selected distance reaches from some position of a tile. Element i of
 * r->back marks the block that is i blocks before the tile's own.
 */
static void mark_blocks(const struct minference_params *l, struct buffers *r, uint32_t n)
{
	memset(r->back, 0, n / BLOCK + 2);
	for (uint32_t d = 0; d < n; d++)
		r->score[d] = r->distance[n - 1 - d];
	const uint32_t selected = best_of(r, n, l->slash);
	for (uint32_t x = 0; x < selected; x++)
		r->back[r->ids[x] / BLOCK] = r->back[(r->ids[x] + BLOCK - 1) / BLOCK] = 1;
}

/*
 * Makes the list of blocks and the list of tokens of the tile that begins at x, from n candidates and the selected
 * tokens in r->ids.
 */
static void list_tile(const struct minference_params *l, const struct buffers *r, uint32_t x, uint32_t n, uint32_t selected, size_t blocks_list,
                      size_t tokens_list)
{
	uint32_t *blocks = l->blocks->ids + blocks_list * l->blocks->stride;
	uint32_t *tokens = l->tokens->ids + tokens_list * l->tokens->stride;
	uint32_t n_blocks = 0, n_tokens = 0;

	for (uint32_t back = skv_min(x / BLOCK, n / BLOCK + 1); back > 0; back--)
		if (r->back[back])
			blocks[n_blocks++] = x / BLOCK - back;
	for (uint32_t i = 0; i < selected && r->ids[i] < x; i++) {
		const uint32_t back = x / BLOCK - r->ids[i] / BLOCK;
		if (back > n / BLOCK + 1 || !r->back[back])
			tokens[n_tokens++] = r->ids[i];
	}
	l->blocks->count[blocks_list] = n_blocks;
	l->tokens->count[tokens_list] = n_tokens;
}

static void minference_item(void *ctx, uint32_t item, int thread)
{
	const struct minference_params *l = ctx;
	const uint32_t head = item % l->sh->n_heads, number = item / l->sh->n_heads, segment = l->sp->segment;
	const uint32_t i = skv_range_of(l->first, l->batch->n, number);
	const struct skv_kseq *s = &l->batch->seq[i];
	const uint32_t from = (call_start(s) / segment + number - l->first[i]) * segment, start = skv_max(from,
			call_start(s));
	const uint32_t end = skv_min(from + segment, s->len), begin = skv_first_row(s, start, segment), n = begin + BLOCK;
	const bool known = n <= s->len; /* do the sequence's tokens include all rows on which the selection depends? */
	struct carve c = thread_begin(&l->space, thread);
	struct buffers r;
	uint32_t selected = 0;

	buffers_carve(&c, l->sh->head_dim, l->batch->max_len, &r);
	r.w.sh = l->sh;
	r.w.s = s;
	r.w.h = head / (l->sh->n_heads / l->sh->n_kv_heads);
	r.w.m = 0;
	if (known) {
		add_up(l, &r, begin, head);
		mark_blocks(l, &r, n);
		memcpy(r.score, r.token, n * sizeof *r.score);
		selected = best_of(&r, n, l->vertical);
	}
	for (uint32_t x = start / BLOCK * BLOCK; x < end; x += BLOCK) {
		const uint32_t j = x / BLOCK - call_start(s) / BLOCK;
		const size_t blocks_list = list_of(l->blocks, i, j, head), tokens_list = list_of(l->tokens, i, j, head);
		l->blocks->count[blocks_list] = l->tokens->count[tokens_list] = 0;
		if (known && x >= begin)
			list_tile(l, &r, x, n, selected, blocks_list, tokens_list);
	}
}

size_t ISA(minference_bytes)(const struct skv_shape *sh, const struct skv_batch *bounds, int threads)
{
	struct buffers r;

	return carve_size((bounds->n + 1) * sizeof(uint32_t)) +
	       (size_t)threads * buffers_carve(NULL, sh->head_dim, bounds->max_len, &r);
}

void ISA(minference_lists)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q, const struct skv_sparse *sp,
                     uint32_t vertical, uint32_t slash, const struct skv_tile_lists *blocks, const struct skv_tile_lists *tokens,
                     const struct skv_workspace *work)
{
	struct minference_params l = {.sh = sh, .batch = batch, .sp = sp, .blocks = blocks, .tokens = tokens, .q = q,
	                              .vertical = vertical, .slash = slash};
	struct carve c = carve_begin(work);
	struct buffers r;

	l.first = carve(&c, (batch->n + 1) * sizeof *l.first);
	l.space = per_thread(&c, work->threads, buffers_carve(NULL, sh->head_dim, batch->max_len, &r));
	l.first[0] = 0;
	for (uint32_t i = 0; i < batch->n; i++)
		l.first[i + 1] = l.first[i] + tiles_of(&batch->seq[i], sp->segment);
	skv_run(work->threads, l.first[batch->n] * sh->n_heads, minference_item, &l);
}
