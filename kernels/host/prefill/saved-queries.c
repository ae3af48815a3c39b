/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/prefill/saved-queries.c - saves the queries of representative rows, which later calls of a prompt need,
 * in pages of the pool.
 */
#include "kernels/host/prefill/prefill.h"
#include "kernels/host/prefill/tiles.h"

struct save_params {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const struct skv_sparse *sp;
	const float *q;
};

static void save_item(void *ctx, uint32_t i, int thread)
{
	const struct save_params *c = ctx;
	const struct skv_sparse *sp = c->sp;
	const struct skv_kseq *s = &c->batch->seq[i];
	const uint32_t p = skv_first_row(s, s->len - 1, sp->segment ? sp->segment : sp->tile), dim = c->sh->head_dim;
	(void)thread;

	for (uint32_t x = 0; s->prompt_continues && x < skv_min(sp->n_saved_queries, s->len - p); x++)
		for (uint32_t head = 0; head < c->sh->n_heads; head++) {
			const size_t at = ((size_t)x * c->sh->n_heads + head) * dim * sizeof(float);
			memcpy(skv_saved_at(c->sh, s, sp, s->set, skv_saved_queries_offset(c->sh, sp) + at),
			       query_of(c->sh, s, sp, c->q, p + x, x, head), dim * sizeof(float));
		}
}

void ISA(save_queries)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q,
                       const struct skv_sparse *sp, const struct skv_workspace *work)
{
	struct save_params c = {.sh = sh, .batch = batch, .sp = sp, .q = q};

	skv_run(work->threads, batch->n, save_item, &c);
}
