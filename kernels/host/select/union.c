/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/select/union.c - one selection for all q heads: the union of what they select (LessIsMore).
 *
 * Heads name tokens in turns: first each head its best token, then each head its second best, and so on. In the first
 * step, whose work items are sequences, the best tokens of each head get a new score, which is higher the earlier a
 * head names the token. In the second step the best tokens by the new score are selected.
 */
#include <math.h>
#include "kernels/host/select/select.h"
#include "kernels/host/select/topk-key.h"

struct union_params {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_scores *scores;
	const struct skv_select *sel;
	float *score; /* [seq][stride]: the new scores of tokens */
	size_t stride;
	struct per_thread space; /* two integers for each token: ids of the best tokens, and workspace */
};

/* Returns the new score of the token that is named in turn number `turn`: the next lower float for each later turn. */
static float score_of_turn(uint32_t turn)
{
	uint32_t bits = 0x7f7fffff - turn; /* the largest finite float in turn 0 */
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

static void union_item(void *ctx, uint32_t item, int thread)
{
	const struct union_params *x = ctx;
	const struct skv_kseq *s = &x->batch->seq[item];
	float *order = x->score + item * x->stride;
	uint32_t *ids = (uint32_t *)thread_begin(&x->space, thread).at, *workspace = ids + x->batch->max_len;
	const struct skv_topk_counts c = skv_topk_counts_of(x->sel, s->len);
	const uint32_t end = c.n - c.recent;

	for (uint32_t t = 0; t < c.n; t++)
		order[t] = NAN; /* the score of a token that no head names, which is never selected */
	for (uint32_t row = 0; row < x->scores->rows; row++) {
		float *score = x->scores->token + ((size_t)item * x->scores->rows + row) * x->scores->token_stride;
		ISA(mask_holes)(x->sh, s, SKV_PAGE_TOKENS, c.pin, end, score);
		uint32_t best = ISA(topk)(score + c.pin, end - c.pin, c.want, ids, workspace);
		ISA(sort_ids)(score + c.pin, ids, best, workspace);
		for (uint32_t rank = 0; rank < best; rank++) {
			float turn = score_of_turn(rank * x->scores->rows + row), *was = &order[c.pin + ids[rank]];
			*was = *was > turn ? *was : turn;
		}
	}
}

size_t ISA(union_bytes)(uint32_t n_seqs, uint32_t max_len, int threads)
{
	return carve_size((size_t)n_seqs * max_len * sizeof(float)) + 2 * (size_t)threads * carve_size(max_len * sizeof(uint32_t)) +
	       ISA(select_bytes)(max_len, threads);
}

void ISA(select_union)(const struct skv_shape *sh, const struct skv_batch *batch, const struct skv_scores *scores,
                       const struct skv_select *sel, struct skv_index_list *list, const struct skv_workspace *work)
{
	struct carve c = carve_begin(work);
	struct union_params x = {.sh = sh, .batch = batch, .scores = scores, .sel = sel, .stride = batch->max_len};
	x.score = carve(&c, batch->n * x.stride * sizeof *x.score);
	x.space = per_thread(&c, work->threads, 2 * carve_size(batch->max_len * sizeof(uint32_t)));
	skv_run(work->threads, batch->n, union_item, &x);
	const struct skv_scores order = {.rows = 1, .token_stride = batch->max_len, .token = x.score};
	const struct skv_workspace rest = {.mem = c.at, .bytes = (size_t)(c.end - c.at), .threads = work->threads};
	ISA(select)(sh, batch, &order, true, sel, list, &rest);
}
