/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels/host/prefill/prefill.c - dense causal attention of many query rows, as in a prompt.
 *
 * A work item is (sequence, block of query rows, kv head); attend.h has its arithmetic.
 */
#include "kernels/host/prefill/attend.h"
#include "kernels/host/prefill/prefill.h"

struct prefill_params {
	const struct skv_shape *sh;
	const struct skv_batch *batch;
	const float *q;
	float *out;
	uint32_t rows;   /* number of query rows of a work item */
	uint32_t *first; /* [seq + 1]: number of blocks of query rows before those of sequence i */
	struct per_thread space;
};

static void prefill_item(void *ctx, uint32_t item, int thread)
{
	const struct prefill_params *p = ctx;
	const uint32_t block = item / p->sh->n_kv_heads, i = skv_range_of(p->first, p->batch->n, block);
	const struct skv_kseq *s = &p->batch->seq[i];
	/* the last rows of a sequence cost most, so they are processed first */
	const uint32_t row0 = (p->first[i + 1] - 1 - block) * p->rows, dim = p->sh->head_dim;
	struct rows r = {.sh = p->sh, .s = s, .h = item % p->sh->n_kv_heads,
	                 .heads = p->sh->n_heads / p->sh->n_kv_heads};
	struct carve c = thread_begin(&p->space, thread);
	struct buffers b;

	buffers_carve(&c, dim, &b);
	r.head = r.h * r.heads;
	for (r.n = 0; r.n < skv_min(p->rows, s->n_q - row0); r.n++) {
		r.pos[r.n] = s->len - s->n_q + row0 + r.n;
		r.from[r.n] = 0;
	}
	rows_begin(&r, &b, p->q);
	attend_blocks(&r, &b, 0, r.pos[r.n - 1] + 1);
	rows_end(&r, &b, p->sh->lse);
	for (uint32_t m = 0; m < r.n * r.heads; m++)
		for (uint32_t d = 0; d < dim; d += VL)
			v_storef(p->out + row_at(&r, m / r.heads) + m % r.heads * dim + d, attended(&b, m, dim, d));
}

size_t ISA(prefill_bytes)(const struct skv_shape *sh, uint32_t n, int threads)
{
	struct buffers b;
	return 2 * carve_size((n + 1) * sizeof(uint32_t)) + (size_t)threads * buffers_carve(NULL, sh->head_dim, &b);
}

void ISA(prefill_dense)(const struct skv_shape *sh, const struct skv_batch *batch, const void *q, void *out,
                        const struct skv_workspace *work)
{
	const uint32_t n = batch->n;
	struct carve c = carve_begin(work);
	struct buffers b;
	struct prefill_params p = {.sh = sh, .batch = batch, .q = q, .out = out};
	uint32_t *n_rows = carve(&c, n * sizeof *n_rows);

	p.first = carve(&c, (n + 1) * sizeof *p.first);
	p.space = per_thread(&c, work->threads, buffers_carve(NULL, sh->head_dim, &b));
	for (uint32_t i = 0; i < n; i++)
		n_rows[i] = batch->seq[i].n_q;
	p.rows = divide_rows(sh, n_rows, n, work->threads, p.first);
	skv_run(work->threads, p.first[n] * sh->n_kv_heads, prefill_item, &p);
}
